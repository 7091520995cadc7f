"""Preparation of this machine for Spark: small jobs run, and a class archive is created."""

import time
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from timeoutmgr.clock import SystemClock
from timeoutmgr.pipeline.jobs.lateness import lateness
from timeoutmgr.pipeline.jobs.reconcile import reconcile
from timeoutmgr.pipeline.jobs.run_context import Progress, silent
from timeoutmgr.pipeline.jobs.schedule import schedule
from timeoutmgr.pipeline.options import LatenessOptions, ReconcileOptions, ScheduleOptions
from timeoutmgr.pipeline.registration import register
from timeoutmgr.pipeline.spark.class_archive import class_archive
from timeoutmgr.pipeline.spark.java import find_java
from timeoutmgr.pipeline.spark.session import SessionOptions, bare_session, require_spark
from timeoutmgr.pipeline.stores import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS: Final = 'endpoint = "prepared"\npersistence = "sqlite:///{folder}/prepared.sqlite3"\n'
_ROWS: Final = "key,destination,due,body\n1,prepared,2099-01-01T00:00:00Z,{}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """A created class archive: its file, its size, and the seconds that a start of Spark takes."""

    archive: Path
    bytes: int
    start_before: float
    start_after: float

    def document(self) -> dict[str, Any]:
        """Return the result for JSON."""
        return {**asdict(self), "archive": str(self.archive)}


def prepare(java_home: Path | None = None, *, progress: Progress = silent) -> Preparation:
    """Create the class archive for the Java in *java_home*, or for the Java that jobs find.

    Start Spark three times: as before, with small jobs whose classes are kept, with the archive.

    Raises PipelineUnavailable if Java or Spark is missing, or the archive cannot be made.
    """
    require_spark()
    options = SessionOptions(java_home=java_home, is_short=True)
    archive = class_archive(find_java(java_home))
    progress("starting Spark as it is")
    before = _start(options)
    archive.begin()
    progress("running small jobs, whose classes are kept when they end")
    with TemporaryDirectory() as folder, bare_session(options, recorded=archive) as spark:
        register(spark)
        _run_jobs(spark, Path(folder))
    archive.end()
    progress("starting Spark with the class archive")
    after = _start(options)
    size = archive.file.stat().st_size
    return Preparation(archive=archive.file, bytes=size, start_before=before, start_after=after)


def _start(options: SessionOptions) -> float:
    """Return how many seconds a start of Spark and its first answer take."""
    begin = time.monotonic()
    with bare_session(options) as spark:
        spark.range(1_000).selectExpr("id % 7 AS part").groupBy("part").count().collect()
        return time.monotonic() - begin


def _run_jobs(spark: "SparkSession", folder: Path) -> None:
    """Run the jobs once, on a store of one message."""
    settings, rows = folder / "prepared.toml", folder / "rows.csv"
    settings.write_text(_SETTINGS.format(folder=folder))
    rows.write_text(_ROWS)
    name, clock = str(settings), SystemClock()
    with closing(open_store(name).persistence) as persistence:
        persistence.install()
    given = ScheduleOptions(
        store=name,
        paths=(str(rows),),
        format="csv",
        dataset="prepared",
        endpoint="prepared",
        message_type="Prepared",
    )
    schedule(spark, given, clock=clock)
    reconcile(spark, ReconcileOptions(stores=(name,)), clock=clock)
    lateness(spark, LatenessOptions(stores=(name,)), clock=clock)
