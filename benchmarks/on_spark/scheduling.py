"""Storing rows in bulk: keys and timeouts, beside JDBC and one stream of COPY."""

import subprocess
from pathlib import Path

from harness import pending
from harness.figures import Sample, ratio
from harness.report import Report
from harness.servers import connect
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from sqlalchemy import make_url

from timeoutmgr.pipeline import snapshot, write_timeouts
from timeoutmgr.pipeline.views import TO_STORE

from .bench import KEYS, TIMEOUTS, Bench, Cases, measured


def scheduling(bench: Bench, spark: SparkSession, report: Report) -> None:
    """Store rows from Parquet: keys and timeouts, with their indexes."""
    source, store, count = bench.store("source"), bench.store("target"), bench.given.count
    url = str(store.database.url)
    pending.load(str(source.database.url), pending.far_future("bench", count))
    rows = bench.folder / "rows"
    with snapshot(source) as moment:
        frame = moment.read(spark, "pending", columns=TO_STORE.names)
        frame.repartition(2).write.parquet(str(rows))
    frame = spark.read.parquet(str(rows))
    files = copied(bench, str(source.database.url))

    def clean() -> None:
        pending.clear(url)

    def ours() -> Sample:
        clean()
        return again()

    def again() -> Sample:
        return bench.cost.of(count, lambda: write_timeouts(frame, store.name, run_id="bench"))

    def jdbc() -> None:
        zero = f.lit(0)
        plain = frame.withColumns(
            {"due": f.unix_micros("due"), "created": f.unix_micros("created"), "version": zero}
        )
        rows_ = plain.withColumn("attempts", zero)
        keys = plain.select("endpoint", "id", "due", "version", f.lit("pending").alias("state"))
        for part, table in ((keys, KEYS), (rows_, TIMEOUTS)):
            address = bench.jdbc(store) | {"dbtable": table, "batchsize": "10000"}
            address["url"] += "?reWriteBatchedInserts=true&stringtype=unspecified"
            part.write.format("jdbc").options(**address).mode("append").save()

    def theirs() -> Sample:
        clean()
        return bench.cost.of(count, jdbc)

    def copy() -> Sample:
        clean()
        return bench.cost.of(count, lambda: copy_in(url, files))

    cases: Cases = {"schedule": ours, "schedule again": again, "COPY, one stream": copy}
    if bench.has_jdbc:
        cases["JDBC, batches rewritten"] = theirs
    found = measured(bench, report, cases)
    first, second, stream_ = (found[name] for name in list(cases)[:3])
    report.bar("schedule ÷ one stream of COPY, rows/s", ratio(first, stream_), 1.0)
    report.bar("schedule again ÷ first, seconds", ratio(first, second), 1.0, at_most=True)
    if bench.has_jdbc:
        theirs_ = found["JDBC, batches rewritten"]
        report.cheaper("schedule ÷ JDBC (not idempotent), CPU", first, theirs_, 0.80)


def copied(bench: Bench, url: str) -> dict[str, Path]:
    """Return files in PostgreSQL's binary form, of the keys and of the timeouts at *url*."""
    found = {}
    for table in (KEYS, TIMEOUTS):
        found[table] = bench.folder / f"{table}.copy"
        with connect(url) as sql, found[table].open("wb") as file:
            cursor = sql.cursor()
            with cursor.copy(f"COPY (SELECT * FROM {table}) TO STDOUT (FORMAT binary)") as out:
                for block in out:
                    file.write(block)
    return found


def copy_in(url: str, files: dict[str, Path]) -> None:
    """Store the files of :func:`copied`, by psql."""
    address = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    for table, path in files.items():
        command = f"\\copy {table} FROM '{path}' (FORMAT binary)"
        subprocess.run(["psql", "-q", address, "-c", command], check=True)
