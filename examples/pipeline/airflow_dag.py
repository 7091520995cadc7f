"""The nightly jobs of the pipeline as a DAG of Airflow 3; each task may be repeated."""

from datetime import datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, chain

STORE = "/shared/sales.toml"
LAKE = "delta:s3://lake/history"
JOBS = {
    "archive": f"archive --store {STORE} --to {LAKE} --older-than 7d --with-pending",
    "compact": f"compact --lake {LAKE}",
    "reconcile": f"reconcile --store {STORE} --archive {LAKE} --since {{{{ ds }}}}T00:00Z",
    "report": f"report --store {STORE} --archive {LAKE} --promise 1s --html /www/report.html",
}

with DAG(
    "timeoutmgr",
    schedule="0 2 * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=5)},
):
    tasks = [
        BashOperator(task_id=name, bash_command=f"timeoutmgr pipeline {words}")
        for name, words in JOBS.items()
    ]
    chain(*tasks)
