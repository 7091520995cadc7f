"""The jobs that the examples for schedulers name are jobs of the command line, with its options."""

from __future__ import annotations

import importlib.util
import runpy
import shlex
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
import yaml
from databricks.bundles.jobs import Job

from timeoutmgr.cli.pipeline.group import pipeline

PIPELINE = Path(__file__).parents[2] / "examples" / "pipeline"


class Operator:
    """Stands for the operator of Airflow, which brings 100 packages, where it is not installed.

    `.ci/versions airflow` has Airflow itself.
    """

    def __init__(self, *, task_id: str, bash_command: str) -> None:
        self.task_id, self.bash_command = task_id, bash_command
        self.downstream_task_ids: set[str] = set()


class Dag:
    def __init__(self, dag_id: str, **_options: Any) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *_error: object) -> None: ...


def chain(*tasks: Operator) -> None:
    for one, following in pairwise(tasks):
        one.downstream_task_ids.add(following.task_id)


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow, or what stands for it."""
    if importlib.util.find_spec("airflow") is not None:
        return
    for name, held in (
        ("airflow.sdk", {"DAG": Dag, "chain": chain}),
        ("airflow.providers.standard.operators.bash", {"BashOperator": Operator}),
    ):
        module = ModuleType(name)
        vars(module).update(held)
        monkeypatch.setitem(sys.modules, name, module)


def parsed(words: list[str]) -> str | None:
    """Return the job of *words*, whose options are parsed as the command line does."""
    assert words[0] == "pipeline"
    command = pipeline.commands[words[1]]
    return command.make_context(words[1], words[2:], parent=click.Context(pipeline)).info_name


@pytest.mark.usefixtures("airflow")
def test_the_tasks_of_airflow_are_jobs_in_their_order() -> None:
    tasks = runpy.run_path(str(PIPELINE / "airflow_dag.py"))["tasks"]

    commands = [one.bash_command.replace("{{ ds }}", "2030-01-31") for one in tasks]
    names = [one.task_id for one in tasks]
    assert [parsed(shlex.split(one)[1:]) for one in commands] == names
    assert names == ["archive", "compact", "reconcile", "report"]
    assert [one.downstream_task_ids for one in tasks] == [*({one} for one in names[1:]), set()]


def test_the_tasks_of_databricks_are_jobs_in_their_order() -> None:
    bundle = yaml.safe_load((PIPELINE / "databricks.yml").read_text())

    job: Any = Job.from_dict(bundle["resources"]["jobs"]["timeoutmgr_nightly"])

    keys = [one.task_key for one in job.tasks]
    assert [parsed(one.python_wheel_task.parameters) for one in job.tasks] == keys
    assert [one.depends_on[0].task_key for one in job.tasks[1:]] == keys[:-1]
    (cluster,) = job.job_clusters
    assert {one.job_cluster_key for one in job.tasks} == {cluster.job_cluster_key}


def test_the_notebook_is_a_program() -> None:
    text = (PIPELINE / "notebook.py").read_text()

    compile(text, "notebook.py", "exec")
    assert text.startswith("# Databricks notebook source\n")
