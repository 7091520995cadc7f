"""Resources of every part: a database server, sessions of Spark, a folder, and measurements."""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.figures import Sample, Samples, interleave
from harness.private import Measured
from harness.report import Report
from harness.servers import connect
from harness.spark import Cost
from pyspark.sql import DataFrame, SparkSession
from sqlalchemy import make_url

from timeoutmgr.pipeline import SessionOptions, spark_session
from timeoutmgr.pipeline.stores import Store, open_store

DRIVER = "org.postgresql.Driver"
TIMEOUTS = "timeoutmgr_timeouts"
KEYS = "timeoutmgr_timeout_keys"
HISTORY = "timeoutmgr_timeout_history"

Cases = dict[str, Callable[[], Sample]]


class Bench:
    """One server and one folder; a session for each part, or for each of its rounds."""

    def __init__(self, server: Measured, given: argparse.Namespace) -> None:
        self.server, self.given = server, given
        self.folder = Path(tempfile.mkdtemp(prefix="tmbench-spark-"))
        self.cost = Cost(server.pid)
        self.has_jdbc = given.jdbc is not None

    @contextmanager
    def session(self) -> Iterator[SparkSession]:
        """Yield a session in a new Java, which has not compiled any code yet."""
        jars = {"spark.jars": str(self.given.jdbc)} if self.has_jdbc else {}
        with spark_session(SessionOptions(configuration=jars)) as spark:
            yield spark

    def store(self, name: str) -> Store:
        """Return an empty installed store in a new database."""
        url = self.server.create(name)
        path = self.folder / f"{name}.toml"
        path.write_text(f'endpoint = "bench"\ntransport = "{url}"\npersistence = "{url}"\n')
        store = open_store(str(path))
        store.persistence.install()
        return store

    def jdbc(self, store: Store) -> dict[str, str]:
        """Return the options with which JDBC connects to *store*."""
        url = make_url(str(store.database.url))
        address = f"jdbc:postgresql://{url.host}:{url.port}/{url.database}"
        return {"url": address, "user": str(url.username), "driver": DRIVER}

    def by_ctid(
        self, spark: SparkSession, store: Store, table: str, columns: str, parts: int = 4
    ) -> DataFrame:
        """Return *table*, read by JDBC as fast as possible: block ranges, many rows per fetch."""
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
        return spark.read.jdbc(
            options_["url"],
            f"(SELECT {columns}, ctid FROM {table}) AS t",
            predicates=predicates,
            properties={**options_, "fetchsize": "10000"},
        ).drop("ctid")


def measured(bench: Bench, report: Report, cases: Cases) -> Samples:
    """Run *cases* in turn, and add them to the report."""
    samples = interleave(cases, bench.given.rounds)
    report.runs(samples)
    return samples


def noop(frame: DataFrame) -> None:
    """Read all rows of *frame*, and discard them."""
    frame.write.format("noop").mode("overwrite").save()


def in_a_session(
    part: Callable[[Bench, SparkSession, Report], None],
) -> Callable[[Bench, Report], None]:
    """Return *part*, changed to begin its own session."""

    def run(bench: Bench, report: Report) -> None:
        with bench.session() as spark:
            part(bench, spark, report)

    return run
