"""The data pipeline beside Spark's own JDBC, COPY, two joins and DuckDB.

Every job is run in turn with what it is compared with, in one warm session. The bars are ratios of
processor time: JVM, Python workers and PostgreSQL together. JDBC needs --jdbc, the driver's jar
(Debian: libpostgresql-jdbc-java); DuckDB is left out where it is not installed.
"""

import argparse
import importlib.util
import random
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

from harness import machine, pending
from harness.bare import in_a_process
from harness.figures import (
    Sample,
    Samples,
    apart,
    cpu_ratios,
    interleave,
    ratio,
    ratios,
    say,
)
from harness.levels import WINDOW, emptied, levels, published
from harness.messages import DAY, create_queues, micros
from harness.private import Measured, private_postgres
from harness.report import Report, options, parsed
from harness.servers import connect, servers
from harness.spark import Cost, jvm_high_water_mb
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from sqlalchemy import make_url

from timeoutmgr.clock import SystemClock
from timeoutmgr.migration.places import Place
from timeoutmgr.migration.starting import move_all
from timeoutmgr.pipeline import SessionOptions, snapshot, spark_session, write_timeouts
from timeoutmgr.pipeline.jobs.archive import ArchiveOptions, archive
from timeoutmgr.pipeline.jobs.migrate import MigrateOptions, migrate
from timeoutmgr.pipeline.jobs.stream import StreamOptions, stream
from timeoutmgr.pipeline.moving import Ends, opened
from timeoutmgr.pipeline.stores import Store, open_store
from timeoutmgr.pipeline.transforms.prints import about, tallied
from timeoutmgr.pipeline.transforms.reconciling import (
    Bounds,
    of_history,
    of_pending,
    together,
    verdicts,
    verdicts_by_print,
)
from timeoutmgr.pipeline.views import PENDING, TO_STORE

DRIVER = "org.postgresql.Driver"
TABLES = ("timeoutmgr_timeouts", "timeoutmgr_timeout_keys", "timeoutmgr_timeout_history")


class Bench:
    """One server, one session, one folder."""

    def __init__(self, server: Measured, spark: SparkSession, given: argparse.Namespace) -> None:
        self.server, self.spark, self.given = server, spark, given
        self.folder = Path(tempfile.mkdtemp(prefix="tmbench-spark-"))
        self.cost = Cost(server.pid)
        self.has_jdbc = given.jdbc is not None

    def store(self, name: str) -> Store:
        """Return an empty installed store in a database of its own."""
        url = self.server.create(name)
        path = self.folder / f"{name}.toml"
        path.write_text(f'endpoint = "bench"\ntransport = "{url}"\npersistence = "{url}"\n')
        store = open_store(str(path))
        store.persistence.install()
        return store

    def jdbc(self, store: Store) -> dict[str, str]:
        """Return the options by which JDBC gets to *store*."""
        url = make_url(str(store.database.url))
        address = f"jdbc:postgresql://{url.host}:{url.port}/{url.database}"
        return {"url": address, "user": str(url.username), "driver": DRIVER}

    def by_ctid(self, store: Store, table: str, columns: str, parts: int = 4) -> DataFrame:
        """Return *table* as the best JDBC reads it: by ranges of blocks, many rows a fetch."""
        with connect(str(store.database.url)) as sql:
            row = sql.execute(
                "SELECT sum(pg_relation_size(relid)) / 8192 FROM pg_partition_tree(%s::regclass)",
                [table],
            ).fetchone()
            if row is None or not row[0]:
                row = sql.execute("SELECT pg_relation_size(%s) / 8192", [table]).fetchone()
        assert row is not None
        step = int(row[0]) // parts + 1
        predicates = [
            f"ctid >= '({step * at},0)'::tid AND ctid < '({step * (at + 1)},0)'::tid"
            for at in range(parts)
        ]
        options_ = self.jdbc(store)
        return self.spark.read.jdbc(
            options_["url"],
            f"(SELECT {columns}, ctid FROM {table}) AS t",
            predicates=predicates,
            properties={**options_, "fetchsize": "10000"},
        ).drop("ctid")


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--jdbc", type=Path, help="PostgreSQL's JDBC jar")
    parser.add_argument("--only", choices=sorted(PARTS), help="one part of it")
    parser.add_argument("--rows", type=int, help="rows of the memory part (10,000,000)")
    given = parsed(parser, count=1_000_000, quick=50_000)
    report = Report("The data pipeline", {"rows": given.count, **machine.described()})
    jars = {} if given.jdbc is None else {"spark.jars": str(given.jdbc)}
    with (
        private_postgres() as server,
        spark_session(SessionOptions(configuration=jars)) as spark,
    ):
        bench = Bench(server, spark, given)
        try:
            for name, part in PARTS.items():
                if given.only in (None, name):
                    part(bench, report)
        finally:
            shutil.rmtree(bench.folder, ignore_errors=True)
    if not bench.has_jdbc:
        report.notes.append("Without --jdbc nothing was compared with Spark's JDBC.")
    report.give(given)


def measured(bench: Bench, report: Report, cases: dict[str, Callable[[], Sample]]) -> Samples:
    """Run *cases* in turn, and add them to the report."""
    samples = interleave(cases, bench.given.rounds)
    report.runs(samples)
    return samples


def noop(frame: DataFrame) -> None:
    """Read all of *frame*, and throw it away."""
    frame.write.format("noop").mode("overwrite").save()


def reading(bench: Bench, report: Report) -> None:
    """Read all that is pending: whole rows, and two columns of them."""
    store, count = bench.store("reading"), bench.given.count
    pending.load(str(store.database.url), pending.far_future("bench", count))
    every = ", ".join(PENDING.names)

    def ours(columns: list[str] | None) -> Sample:
        with snapshot(store) as moment:
            return bench.cost.of(
                count, lambda: noop(moment.read(bench.spark, "pending", columns=columns))
            )

    def theirs(columns: str) -> Sample:
        return bench.cost.of(count, lambda: noop(bench.by_ctid(store, TABLES[0], columns)))

    cases: dict[str, Callable[[], Sample]] = {
        "read, all columns": lambda: ours(None),
        "read, two columns": lambda: ours(["due", "destination"]),
    }
    if bench.has_jdbc:
        cases |= {
            "JDBC by ctid, all columns": lambda: theirs(every),
            "JDBC by ctid, two columns": lambda: theirs("due, destination"),
        }
    found = measured(bench, report, cases)
    if bench.has_jdbc:
        all_ours, two_ours, all_theirs, two_theirs = found.values()
        report.cheaper("read ÷ JDBC by ctid, CPU", all_ours, all_theirs, 0.85)
        report.cheaper("read two columns ÷ JDBC pruned, CPU", two_ours, two_theirs, 1.05)


def scheduling(bench: Bench, report: Report) -> None:
    """Store rows from Parquet: keys and timeouts, with their indexes."""
    source, store, count = bench.store("source"), bench.store("target"), bench.given.count
    url = str(store.database.url)
    pending.load(str(source.database.url), pending.far_future("bench", count))
    rows = bench.folder / "rows"
    with snapshot(source) as moment:
        frame = moment.read(bench.spark, "pending", columns=TO_STORE.names)
        frame.repartition(2).write.parquet(str(rows))
    frame = bench.spark.read.parquet(str(rows))
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
        for part, table in ((keys, TABLES[1]), (rows_, TABLES[0])):
            address = bench.jdbc(store) | {"dbtable": table, "batchsize": "10000"}
            address["url"] += "?reWriteBatchedInserts=true&stringtype=unspecified"
            part.write.format("jdbc").options(**address).mode("append").save()

    def theirs() -> Sample:
        clean()
        return bench.cost.of(count, jdbc)

    def copy() -> Sample:
        clean()
        return bench.cost.of(count, lambda: copy_in(url, files))

    cases = {"schedule": ours, "schedule again": again, "COPY, one stream": copy}
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
    for table in (TABLES[1], TABLES[0]):
        found[table] = bench.folder / f"{table}.copy"
        with connect(url) as sql, found[table].open("wb") as file:
            cursor = sql.cursor()
            with cursor.copy(f"COPY (SELECT * FROM {table}) TO STDOUT (FORMAT binary)") as out:
                for block in out:
                    file.write(block)
    return found


def copy_in(url: str, files: dict[str, Path]) -> None:
    """Store what :func:`copied` wrote, by psql."""
    address = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    for table, path in files.items():
        command = f"\\copy {table} FROM '{path}' (FORMAT binary)"
        subprocess.run(["psql", "-q", address, "-c", command], check=True)


def archiving(bench: Bench, report: Report) -> None:
    """Write a month of history of four endpoints as Parquet by day."""
    store, count = bench.store("archiving"), bench.given.count
    with connect(str(store.database.url)) as sql:
        sql.execute(
            f"INSERT INTO {TABLES[2]} (id, event, at, due, endpoint, destination, attempt, node) "
            "SELECT gen_random_uuid()::text, 'dispatched', at, at - 1000, 'e' || (n %% 4), "
            "'q' || (n %% 50), 0, 'node' FROM (SELECT n, (%s - random() * 30 * 86400e6)::bigint "
            "AS at FROM generate_series(1, %s) n) s",
            [micros() - 86_400_000_000, count],
        )
        sql.execute(f"ANALYZE {TABLES[2]}")
    files: list[int] = []

    def ours() -> Sample:
        to = bench.folder / "archive"
        shutil.rmtree(to, ignore_errors=True)
        given = ArchiveOptions(
            store=store.name, to=to, older_than=timedelta(minutes=1), purge=False
        )
        sample = bench.cost.of(count, lambda: archive(bench.spark, given, clock=SystemClock()))
        files.append(len(list(to.rglob("*.parquet"))))
        return sample

    def theirs() -> Sample:
        columns = "sequence, id, event, at, due, endpoint, destination, attempt, node, run_id"

        def work() -> None:
            rows = bench.by_ctid(store, TABLES[2], columns)
            dated = rows.withColumn("event_date", f.to_date(f.timestamp_micros("at")))
            written = dated.repartition("endpoint", "event_date").write.mode("overwrite")
            target = str(bench.folder / "jdbc")
            written.partitionBy("endpoint", "event_date").parquet(target)

        return bench.cost.of(count, work)

    cases = {"archive, with its proof": ours}
    if bench.has_jdbc:
        cases["JDBC to Parquet, no proof"] = theirs
    found = measured(bench, report, cases)
    days_and_endpoints = 4 * 31
    report.bar("files per day and endpoint", max(files) / days_and_endpoints, 2, at_most=True)
    if bench.has_jdbc:
        first, second = found.values()
        wall, cpu = ratios(second, first), median(cpu_ratios(first, second))
        beside = f"spread {apart(wall):.0%}; CPU {cpu:.2f}"
        title = "archive ÷ JDBC to Parquet, wall"
        report.bar(title, median(wall), 0.90, at_most=True, beside=beside)


def reconciling(bench: Bench, report: Report) -> None:
    """Judge five times the rows scheduled, of which nine in ten are dispatched."""
    count = bench.given.count * 5
    spark, folder = bench.spark, bench.folder
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

    cases = {
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


def migrating(bench: Bench, report: Report) -> None:
    """Move timeouts into delay levels, beside one process that only publishes as many."""
    store, count = bench.store("migrating"), min(bench.given.count, 100_000)
    url, queue = str(store.database.url), "bench.destination"
    with servers("rabbitmq") as running:
        broker = running["rabbitmq"]
        create_queues(broker, queue)
        levels(broker, queue).install()
        settings = bench.folder / "levels.toml"
        settings.write_text(f'endpoint = "bench"\ntransport = "{broker}"\npersistence = "{url}"\n')
        ends = Ends(settings=str(settings), target=Place(url="native"))

        def filled() -> None:
            pending.clear(url)
            pending.load(url, pending.far_future("bench", count))

        def ours() -> Sample:
            filled()
            with emptied(broker, queue):
                return bench.cost.of(count, lambda: moved(MigrateOptions(ends=ends, tasks=2)))

        def moved(given: MigrateOptions) -> None:
            [found] = migrate(bench.spark, given)
            assert (found.new, found.verified) == (count, True), found

        def plain() -> Sample:
            filled()
            with emptied(broker, queue):
                return bench.cost.of(count, lambda: move_plainly(ends))

        cases: dict[str, Callable[[], Sample]] = {
            "migrate into levels, 2 tasks": ours,
            "migrate into levels, plain Python": plain,
            f"published into levels, window of {WINDOW}": lambda: in_a_process(
                published, broker, queue, count
            ),
            "published into levels, over a year": lambda: in_a_process(
                published, broker, queue, count, 365 * DAY
            ),
        }
        first, _second, third, spread = measured(bench, report, cases).values()
    title = "migrate to RabbitMQ ÷ one process with pipelined confirms"
    report.faster(title, first, third, 0.85)
    report.fact("the same ÷ one whose messages are as far apart", ratio(first, spread))


def move_plainly(ends: Ends) -> None:
    """Move all that is pending with the runner that ``timeoutmgr migrate`` has."""
    with opened(ends) as [one]:
        assert move_all(one.parts, one.terms).verified


def streaming(bench: Bench, report: Report) -> None:
    """Follow four writers with slow transactions, stopped and started again."""
    seconds = 10 if bench.given.quick else 40
    missing = 0
    for number in range(bench.given.rounds):
        store = bench.store(f"streaming{number}")
        written = writers(str(store.database.url), seconds)
        given = StreamOptions(
            store=store.name,
            to=bench.folder / f"lake{number}",
            checkpoint=bench.folder / f"checkpoint{number}",
            every=timedelta(seconds=1),
        )
        for part in range(2):
            until = time.monotonic() + seconds / 2
            found = stream(bench.spark, given, stopped=lambda until=until: time.monotonic() > until)
            say(f"round {number + 1}, part {part + 1}: {found.events} events")
        last = StreamOptions(store=given.store, to=given.to, checkpoint=given.checkpoint, once=True)
        expected = written()
        stream(bench.spark, last)
        seen = bench.spark.read.parquet(str(given.to)).select("id")
        count, distinct = seen.count(), seen.distinct().count()
        say(f"round {number + 1}: {expected} written, {count} seen, {distinct} different")
        missing += abs(expected - distinct) + (count - distinct)
    report.bar("events lost or repeated by the stream", missing, 0, at_most=True)


def writers(url: str, seconds: float) -> Callable[[], int]:
    """Start four that write events in transactions of up to two seconds; return their count."""
    end, counts = time.monotonic() + seconds, [0] * 4

    def write(me: int) -> None:
        chance = random.Random(me)
        with connect(url) as sql:
            sql.autocommit = False
            while time.monotonic() < end:
                for _ in range(chance.randrange(1, 50)):
                    sql.execute(
                        f"INSERT INTO {TABLES[2]} (id, event, at, due, endpoint, destination, "
                        "attempt, node) VALUES (%s, 'dispatched', 1, 1, 'e', 'q', 0, 'n')",
                        [f"{me}-{counts[me]}"],
                    )
                    counts[me] += 1
                time.sleep(chance.random() * 2)
                sql.commit()

    threads = [threading.Thread(target=write, args=(me,)) for me in range(4)]
    for thread in threads:
        thread.start()

    def ended() -> int:
        for thread in threads:
            thread.join()
        return sum(counts)

    return ended


def memory(bench: Bench, report: Report) -> None:
    """Read ten million rows with the default heap."""
    store = bench.store("memory")
    rows = bench.given.rows or (200_000 if bench.given.quick else 10_000_000)
    pending.load(str(store.database.url), pending.far_future("bench", rows))
    with snapshot(store) as moment:
        sample = bench.cost.of(rows, lambda: noop(moment.read(bench.spark, "pending")))
    report.runs({f"read {rows:,} rows": [sample]})
    report.bar("JVM high water", jvm_high_water_mb(), 1_536, at_most=True, unit=" MB")


PARTS: dict[str, Callable[[Bench, Report], None]] = {
    "read": reading,
    "schedule": scheduling,
    "archive": archiving,
    "reconcile": reconciling,
    "migrate": migrating,
    "stream": streaming,
    "memory": memory,
}

if __name__ == "__main__":
    main()
