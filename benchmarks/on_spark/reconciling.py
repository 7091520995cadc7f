"""A verdict for each message, beside two full joins and DuckDB."""

import importlib.util
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

from harness.figures import apart, cpu_ratios, ratio, ratios
from harness.report import Report
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from timeoutmgr.pipeline.transforms.verdicts import (
    Bounds,
    about,
    of_history,
    of_pending,
    tallied,
    together,
    verdicts,
    verdicts_by_print,
)

from .bench import Bench, Cases, measured


def reconciling(bench: Bench, spark: SparkSession, report: Report) -> None:
    """Judge five times as many rows as are scheduled, of which nine in ten are dispatched."""
    count = bench.given.count * 5
    folder = bench.folder
    base = spark.range(count, numPartitions=4).select(
        f.sha1(f.col("id").cast("string").cast("binary")).alias("id"),
        f.timestamp_micros(f.col("id")).alias("due"),
        (f.col("id") % 10 == 0).alias("waits"),
    )
    at = f.timestamp_micros(f.unix_micros("due") + 1_000).alias("at")
    base.select("id", f.lit("scheduled").alias("event"), at, "due").write.parquet(f"{folder}/one")
    sent = base.where("not waits").select("id", f.lit("dispatched").alias("event"), at, "due")
    sent.write.parquet(f"{folder}/two")
    base.where("waits").select("id", "due").write.parquet(f"{folder}/three")
    one, two, three = (spark.read.parquet(f"{folder}/{name}") for name in ("one", "two", "three"))
    bounds = Bounds(cutoff=count * 2)
    counts: dict[str, dict[str, int]] = {}

    def evidence() -> list[DataFrame]:
        return [of_history(one), of_history(two), of_pending(three)]

    def ours() -> list[int]:
        heaps = tallied(verdicts_by_print(evidence(), bounds), "verdict").collect()
        counts["ours"] = dict.fromkeys((heap["verdict"] for heap in heaps), 0)
        for heap in heaps:
            counts["ours"][heap["verdict"]] += heap["many"]
        return sorted(heap["first"] for heap in heaps if heap["verdict"] == "overdue")[:20]

    def ours_with_examples() -> None:
        named = verdicts([about(together(evidence()), ours())], bounds).collect()
        assert len(named) == 20, named

    def joins() -> None:
        both = (
            one.alias("s").join(two.alias("d"), "id", "full").join(three.alias("p"), "id", "full")
        )
        verdict = (
            f.when(f.col("d.at").isNotNull() & f.col("p.due").isNotNull(), "dispatched_but_pending")
            .when(f.col("d.at").isNotNull(), "ok")
            .when(f.col("p.due").isNotNull(), "overdue")
            .otherwise("lost")
        )
        found = both.groupBy(verdict.alias("verdict")).count().collect()
        counts["joins"] = {row["verdict"]: row["count"] for row in found}

    cases: Cases = {
        "reconcile": lambda: bench.cost.of(count, ours),
        "two joins": lambda: bench.cost.of(count, joins),
        "reconcile, examples named": lambda: bench.cost.of(count, ours_with_examples),
    }
    if importlib.util.find_spec("duckdb") is not None:
        cases["DuckDB, 2 threads"] = lambda: bench.cost.of(count, lambda: duck(folder))
    found = measured(bench, report, cases)
    assert counts["ours"] == counts["joins"], counts
    samples = list(found.values())
    report.cheaper("reconcile ÷ two joins, CPU", samples[0], samples[1], 0.65)
    wall = ratio(samples[1], samples[0])
    report.bar("reconcile ÷ two joins, wall", wall, 0.65, at_most=True)
    both = median(cpu_ratios(samples[2], samples[1]))
    report.fact("reconcile with examples ÷ two joins, CPU", both, " times")
    if len(samples) > 3:
        slower = ratios(samples[3], samples[0])
        beside = f"spread {apart(slower):.0%}"
        report.bar("reconcile ÷ DuckDB, wall", median(slower), 3.5, at_most=True, beside=beside)


def duck(folder: Path) -> None:
    """Do the same in DuckDB, as one union and one grouping."""
    duckdb: Any = importlib.import_module("duckdb")
    with closing(duckdb.connect(config={"threads": 2})) as database:
        database.sql(
            f"""
            SELECT v, count(*) FROM (
                SELECT CASE WHEN max(d) = 1 AND max(p) = 1 THEN 'dispatched_but_pending'
                    WHEN sum(d) > 1 THEN 'duplicate' WHEN max(d) = 1 THEN 'ok'
                    WHEN max(p) = 1 THEN 'overdue' ELSE 'lost' END AS v
                FROM (SELECT id, 0 AS d, 0 AS p FROM '{folder}/one/*.parquet'
                    UNION ALL SELECT id, 1, 0 FROM '{folder}/two/*.parquet'
                    UNION ALL SELECT id, 0, 1 FROM '{folder}/three/*.parquet') GROUP BY id)
            GROUP BY v
            """
        ).fetchall()
