"""Reconcile of the last day, beside reconcile of all history."""

from datetime import UTC, datetime, timedelta

from harness.figures import Sample
from harness.report import Report
from pyspark.sql import SparkSession

from timeoutmgr.clock import SystemClock
from timeoutmgr.pipeline.jobs.reconcile import ReconcileReport, reconcile
from timeoutmgr.pipeline.options import ReconcileOptions

from .bench import Bench, measured
from .histories import fill, rows_read

DAYS = 100


def windows(bench: Bench, spark: SparkSession, report: Report) -> None:
    """Judge the last day, a hundredth of ten times as many rows; then judge all rows."""
    store, rows = bench.store("windows"), bench.given.count * 10
    fill(store, rows=rows, days=DAYS)
    reads: dict[str, list[int]] = {"all": [], "a day": []}
    judged: dict[str, ReconcileReport] = {}

    def of(name: str, since: datetime | None) -> Sample:
        options = ReconcileOptions(stores=(store.name,), since=since)
        before = rows_read(store)

        def work() -> None:
            judged[name] = reconcile(spark, options, clock=SystemClock())

        sample = bench.cost.of(rows, work)
        reads[name].append(rows_read(store) - before)
        return sample

    def a_day() -> Sample:
        return of("a day", datetime.now(UTC) - timedelta(days=1))

    found = measured(bench, report, {"all": lambda: of("all", None), "a day": a_day})
    assert judged["all"].messages == rows // 2, judged["all"].counts
    report.fact("messages of the day", judged["a day"].messages, "")
    assert min(reads["all"]) > 0.9 * rows, "the server counts what it reads"
    share = max(reads["a day"]) / min(reads["all"])
    report.bar("reconcile of a day ÷ of all, rows read", share, 0.1, at_most=True)
    report.cheaper("reconcile of a day ÷ of all, CPU", found["a day"], found["all"], 0.1)
