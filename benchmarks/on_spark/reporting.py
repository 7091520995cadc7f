"""All stores on one page: how long that takes, and how often each row of history is read."""

from datetime import timedelta

from harness.figures import Sample, spread
from harness.report import Report
from pyspark.sql import SparkSession

from timeoutmgr.clock import SystemClock
from timeoutmgr.pipeline.jobs.report import report as reported
from timeoutmgr.pipeline.jobs.report_page import report_page
from timeoutmgr.pipeline.options import ReportOptions

from .bench import Bench, measured
from .histories import fill, rows_read

DAYS = 56


def reporting(bench: Bench, spark: SparkSession, report: Report) -> None:
    """Report on ten times the rows, of eight weeks."""
    store, rows = bench.store("reporting"), bench.given.count * 10
    fill(store, rows=rows, days=DAYS)
    options = ReportOptions(stores=(store.name,), days=DAYS + 1, promise=timedelta(seconds=1))
    pages: list[str] = []
    reads: list[float] = []

    def page() -> None:
        found = reported(spark, options, clock=SystemClock())
        assert found.verdicts.messages == rows // 2, found.verdicts.counts
        assert found.verdicts.examples, "late messages are named"
        pages.append(report_page(found))

    def ours() -> Sample:
        before = rows_read(store)
        sample = bench.cost.of(rows, page)
        reads.append((rows_read(store) - before) / rows)
        return sample

    found = measured(bench, report, {"report": ours})["report"]
    assert min(reads) > 0.9, "the server counts what it reads"
    report.bar("reads of each row of history", max(reads), 1.01, at_most=True)
    seconds = sorted(one.seconds for one in found)[len(found) // 2]
    cpu = sorted(one.cpu for one in found)[len(found) // 2]
    beside = f"spread {spread(found):.0%}; {cpu:.0f} s of CPU"
    scale = rows / 10_000_000
    report.bar("report of ten million", seconds / scale, 60, at_most=True, unit=" s", beside=beside)
    report.fact("the page", len(pages[-1]) / 1024, " kB")
