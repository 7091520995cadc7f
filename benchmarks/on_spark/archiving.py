"""Archiving history to Parquet by day and endpoint, beside a JDBC read with a write by Spark.

The last run also removes the events from the store, after it has read each back from the table.
"""

import shutil
from datetime import timedelta
from statistics import median

from harness.figures import Sample, apart, cpu_ratios, ratios
from harness.messages import micros
from harness.report import Report
from harness.servers import connect
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from timeoutmgr.clock import SystemClock
from timeoutmgr.pipeline.jobs.archive import archive
from timeoutmgr.pipeline.options import ArchiveOptions

from .bench import HISTORY, Bench, Cases, measured


def archiving(bench: Bench, spark: SparkSession, report: Report) -> None:
    """Write a month of history of four endpoints as Parquet by day."""
    store, count = bench.store("archiving"), bench.given.count
    with connect(str(store.database.url)) as sql:
        sql.execute(
            f"INSERT INTO {HISTORY} (id, event, at, due, endpoint, destination, attempt, node) "
            "SELECT gen_random_uuid()::text, 'dispatched', at, at - 1000, 'e' || (n %% 4), "
            "'q' || (n %% 50), 0, 'node' FROM (SELECT n, (%s - random() * 30 * 86400e6)::bigint "
            "AS at FROM generate_series(1, %s) n) s",
            [micros() - 86_400_000_000, count],
        )
        sql.execute(f"ANALYZE {HISTORY}")
    files: list[int] = []

    def ours(*, purge: bool = False) -> Sample:
        to = bench.folder / "archive"
        shutil.rmtree(to, ignore_errors=True)
        given = ArchiveOptions(
            store=store.name, to=str(to), older_than=timedelta(minutes=1), purge=purge
        )

        def work() -> None:
            ended = archive(given, clock=SystemClock())
            assert ended.written == count, f"{ended.written} of {count} events were written"
            assert ended.removed == (count if purge else 0), f"{ended.removed} were removed"

        sample = bench.cost.of(count, work)
        files.append(len(list(to.rglob("*.parquet"))))
        return sample

    def theirs() -> Sample:
        columns = "sequence, id, event, at, due, endpoint, destination, attempt, node, run_id"

        def work() -> None:
            rows = bench.by_ctid(spark, store, HISTORY, columns)
            dated = rows.withColumn("event_date", f.to_date(f.timestamp_micros("at")))
            written = dated.repartition("endpoint", "event_date").write.mode("overwrite")
            target = str(bench.folder / "jdbc")
            written.partitionBy("endpoint", "event_date").parquet(target)

        return bench.cost.of(count, work)

    cases: Cases = {"archive": ours}
    if bench.has_jdbc:
        cases["JDBC to Parquet, no proof"] = theirs
    found = measured(bench, report, cases)
    report.runs({"archive, proved and removed": [ours(purge=True)]})
    days_and_endpoints = 4 * 31
    report.bar("files per day and endpoint", max(files) / days_and_endpoints, 2, at_most=True)
    if bench.has_jdbc:
        first, second = found.values()
        wall, cpu = ratios(second, first), median(cpu_ratios(first, second))
        beside = f"spread {apart(wall):.0%}; CPU {cpu:.2f}"
        title = "archive ÷ JDBC to Parquet, wall"
        report.bar(title, median(wall), 0.90, at_most=True, beside=beside)
