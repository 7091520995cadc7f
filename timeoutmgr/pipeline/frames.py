"""Stored timeouts as data frames, and data frames into the store."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from timeoutmgr.instants import duration_micros
from timeoutmgr.pipeline.errors import WrongColumns
from timeoutmgr.pipeline.loading import checked_on_conflict
from timeoutmgr.pipeline.parts import PARTITIONS, as_option
from timeoutmgr.pipeline.session import in_utc
from timeoutmgr.pipeline.statements import Part
from timeoutmgr.pipeline.stores import Store
from timeoutmgr.pipeline.views import TO_STORE, Selection, ddl, projected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from timeoutmgr.pipeline.source import NamedStore

FORMAT: Final = "timeouts"
EVERYTHING: Final = Selection()
_TASKS_OF_A_CORE: Final = 2


def register(spark: "SparkSession") -> None:
    """Make ``spark.read.format("timeouts")`` and its likes known to *spark*; twice is fine.

    Raises ConfigurationError where the time zone of *spark* is not UTC.
    """
    from timeoutmgr.pipeline.source import TimeoutsDataSource

    in_utc(spark).dataSource.register(TimeoutsDataSource)


def read_timeouts(
    spark: "SparkSession",
    store: str | Store,
    *,
    view: str = "pending",
    columns: Sequence[str] | None = None,
    which: Selection = EVERYTHING,
    snapshot: str | None = None,
    partitions: int | None = None,
    parts: Sequence[Part] | None = None,
) -> "DataFrame":
    """Return *columns* of *view*: only those leave the database.

    With *snapshot*, the name of one that is held (see ``timeoutmgr.pipeline.snapshot``), it is
    read by a task for each of *parts*, or by *partitions* tasks; without, by one task in one
    transaction, since several would each see another moment.
    """
    from timeoutmgr.pipeline.source import NamedStore

    named = NamedStore.of(store)
    if snapshot is not None and parts is not None and is_inside(spark):
        found = _by_tasks(spark, named, view, projected(view, columns), which, parts, snapshot)
        if found is not None:
            return found
    reader = spark.read.format(FORMAT).schema(ddl(projected(view, columns)))
    wanted = options_of(named, view, which, snapshot, partitions, parts)
    return reader.options(**wanted).load()


def options_of(
    store: "NamedStore",
    view: str,
    which: Selection,
    snapshot: str | None = None,
    partitions: int | None = None,
    parts: Sequence[Part] | None = None,
) -> dict[str, str]:
    """Return the options that say to the data source what is to be read."""
    options: dict[str, object | None] = {
        "store": store.name,
        "schema": store.schema,
        "prefix": store.prefix,
        "view": view,
        "snapshot": snapshot,
        "partitions": partitions,
        "parts": None if parts is None else as_option(parts),
        **{name: getattr(which, name) for name in _SELECTING},
        "bucket_seconds": duration_micros(which.bucket) // 1_000_000,
    }
    return {name: str(value) for name, value in options.items() if value is not None}


def _by_tasks(
    spark: "SparkSession",
    store: "NamedStore",
    view: str,
    columns: pa.Schema,
    which: Selection,
    parts: Sequence[Part],
    snapshot: str,
) -> "DataFrame | None":
    from timeoutmgr.pipeline.tasks import PartsReader, frame_of

    reader = PartsReader(
        store=store,
        view=view,
        columns=columns,
        which=which,
        parts=tuple(parts),
        snapshot=snapshot,
    )
    return frame_of(spark, reader)


def is_inside(spark: "SparkSession") -> bool:
    """Whether *spark* runs in this process; one of Spark Connect shows nothing of its inside."""
    from pyspark.sql import SparkSession

    return isinstance(spark, SparkSession)


def tasks_on(spark: "SparkSession") -> int:
    """Return how many tasks of *spark* are to read a table: each has to begin, by a connection."""
    if not is_inside(spark):
        return PARTITIONS
    return min(PARTITIONS, _TASKS_OF_A_CORE * spark.sparkContext.defaultParallelism)


_SELECTING: Final = (
    *("endpoint", "destination", "due_from", "due_before", "at_from", "at_before"),
)


def write_timeouts(
    frame: "DataFrame", store: str, *, run_id: str, on_conflict: str = "ignore"
) -> None:
    """Store the rows of *frame*, which has the columns of ``views.TO_STORE``.

    Each row is stored once in its id's life, however often this is run. *on_conflict* says what
    an id that is known already means: ``ignore`` (it is stored, all is well), ``verify`` (raise
    ContentDiffers where a pending one is another) or ``error`` (raise it, but for what this run has
    stored itself and is the same).
    """
    checked_on_conflict(on_conflict)
    missing = [name for name in TO_STORE.names if name not in frame.columns]
    if missing:
        raise WrongColumns("the rows to store", [f"have no column {name!r}" for name in missing])
    options = {"store": store, "run_id": run_id, "on_conflict": on_conflict}
    writer = frame.select(*TO_STORE.names).write.format(FORMAT).mode("append")
    writer.options(**options).save()
