"""Checks of the pipeline's requirements: versions, Java, a start of Spark, and a worker."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from timeoutmgr.contracts.reports import Finding, Level
from timeoutmgr.errors import TimeoutManagerError
from timeoutmgr.pipeline.errors import PipelineUnavailable
from timeoutmgr.pipeline.frames import read_timeouts
from timeoutmgr.pipeline.jobs.run_context import worker_errors
from timeoutmgr.pipeline.registration import spark_session
from timeoutmgr.pipeline.spark.class_archive import kept_archive
from timeoutmgr.pipeline.spark.conditions import conditions_of, raised_by_worker
from timeoutmgr.pipeline.spark.java import REMEDY, Java, find_java
from timeoutmgr.pipeline.spark.session import SessionOptions
from timeoutmgr.pipeline.stores import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PACKAGES: Final = ("pyarrow", "adbc-driver-postgresql")
_CLIENT: Final = "pyspark-client"
"""The package that connects to a Spark Connect server without pyspark."""
_ROOM: Final = 10 * 1024**3
_SHOWN: Final = 300
_SMALL_WORK: Final = (
    "each job waits as long: below about 2,000,000 rows store_many, SQL or DuckDB is faster, and "
    "`pipeline run` has several jobs share one start"
)
_ARCHIVES: Final = "`timeoutmgr pipeline prepare`, once, halves the start of Spark"
_NO_HISTORY: Final = (
    'reconcile cannot name a lost timeout without history = "full" in [persistence_options]'
)
_WELL: Final = (Level.OK, "")
_SAME_PYTHON: Final = (
    "workers need this Python's minor version and timeoutmgr[spark]; where it lies elsewhere on "
    "them, give --conf spark.pyspark.python=PATH"
)


def examine(options: SessionOptions, store: str | None) -> Iterator[Finding]:
    """Yield findings on the pipeline on this machine: ok, warnings and failures."""
    is_thin = options.remote is not None and not _is_there("pyspark")
    yield from map(_package, (_CLIENT if is_thin else "pyspark", *_PACKAGES))
    yield _room(options)
    if options.remote is None:
        try:
            java = find_java(options.java_home)
        except PipelineUnavailable as error:
            yield Finding(level=Level.FAIL, check="java", text=str(error), remedy=REMEDY)
            return
        text = f"Java {java.version} in {java.home} ({java.how})"
        yield Finding(level=Level.OK, check="java", text=text)
        if options.is_local:
            yield _classes(java)
    begin = time.monotonic()
    try:
        with spark_session(options) as spark:
            text = f"{spark.version} at {options.runs_at} after {_since(begin)}; {_SMALL_WORK}"
            yield Finding(level=Level.OK, check="spark", text=text)
            yield _worker_answer(spark)
            if store is not None:
                yield _store(spark, store)
    except PipelineUnavailable as error:
        yield Finding(level=Level.FAIL, check="spark", text=str(error))


def _package(name: str) -> Finding:
    if _is_there(name):
        return Finding(level=Level.OK, check=name, text=version(name))
    extra = "spark-client" if name == _CLIENT else "spark"
    remedy = f"pip install 'timeoutmgr[{extra}]'"
    return Finding(level=Level.FAIL, check=name, text="not installed", remedy=remedy)


def _is_there(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def _room(options: SessionOptions) -> Finding:
    folder = options.local_dir or Path(tempfile.gettempdir())
    free = shutil.disk_usage(folder).free
    text = f"{free / 1024**3:.0f} GiB free in {folder}, where shuffles are written"
    level, remedy = (Level.WARN, "give --local-dir on a larger disk") if free < _ROOM else _WELL
    return Finding(level=level, check="room", text=text, remedy=remedy)


def _classes(java: Java) -> Finding:
    archive = kept_archive(java)
    found, remedy = "no class archive is kept", _ARCHIVES
    if archive is not None:
        found, remedy = f"class archive {archive.file}", ""
    return Finding(level=Level.OK, check="classes", text=found, remedy=remedy)


def _worker_answer(spark: "SparkSession") -> Finding:
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    begin = time.monotonic()
    same = f.udf(lambda number: number, t.LongType(), useArrow=False)
    try:
        found = spark.range(3).select(f.sum(same("id"))).first()
    except Exception as error:  # pyspark has separate error trees for local and Connect
        return _failed("workers", error, remedy=_SAME_PYTHON)
    if found is None or found[0] != 3:
        return Finding(level=Level.FAIL, check="workers", text=f"answered {found}, expected 3")
    text = f"a Python worker answers after {_since(begin)}"
    return Finding(level=Level.OK, check="workers", text=text)


def _store(spark: "SparkSession", name: str) -> Finding:
    begin = time.monotonic()
    try:
        store = open_store(name)
        store.require_tables()
        with worker_errors():
            count = read_timeouts(spark, name, columns=["id"]).limit(1_000).count()
    except TimeoutManagerError as error:
        return Finding(level=Level.FAIL, check="store", text=str(error))
    except Exception as error:  # Spark's, see above, or a driver's
        return _failed("store", error)
    text = (
        f"{store.database.describe()}, history {store.tables.history_kept}; {count} timeouts read "
        f"(at most 1000) after {_since(begin)}"
    )
    level, remedy = _WELL if store.tables.history_kept == "full" else (Level.WARN, _NO_HISTORY)
    return Finding(level=level, check="store", text=text, remedy=remedy)


def _failed(check: str, error: Exception, *, remedy: str = "") -> Finding:
    name, sentence = raised_by_worker(error)
    if not name:
        name, causes = type(error).__name__, conditions_of(error)
        sentence = causes[-1].text if causes else sentence
    first = sentence.partition("\n")[0]
    text = f"{name.rpartition('.')[2]}: {first}"
    return Finding(level=Level.FAIL, check=check, text=text[:_SHOWN], remedy=remedy)


def _since(begin: float) -> str:
    return f"{time.monotonic() - begin:.1f} s"
