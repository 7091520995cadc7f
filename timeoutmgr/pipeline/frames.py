"""Stored timeouts as data frames, and data frames into the store."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from timeoutmgr.message.instants import duration_micros
from timeoutmgr.pipeline.errors import WrongColumns
from timeoutmgr.pipeline.lake.table import STORED, HistoryTable, Where
from timeoutmgr.pipeline.readers.arrow_batches import fetch
from timeoutmgr.pipeline.readers.statements import PARTITIONS, Part, as_option
from timeoutmgr.pipeline.stores import NamedStore, Store
from timeoutmgr.pipeline.views import TO_STORE, Selection, ddl, projected
from timeoutmgr.pipeline.writers.conflicts import KnownIdRule

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT: Final = "timeouts"
EVERYTHING: Final = Selection()
_TASKS_OF_A_CORE: Final = 2


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
    """Return *columns* of *view*: no other column leaves the database.

    With the name of a *snapshot* that is held (see ``timeoutmgr.pipeline.snapshot``), a task for
    each of *parts* reads the view, or *partitions* tasks do. Without a snapshot one task reads it
    in one transaction, since several tasks would each see another moment.
    """
    named = NamedStore.of(store)
    if snapshot is not None and parts is not None and is_inside(spark):
        found = _by_tasks(spark, named, view, projected(view, columns), which, parts, snapshot)
        if found is not None:
            return found
    reader = spark.read.format(FORMAT).schema(ddl(projected(view, columns)))
    wanted = options_of(named, view, which, snapshot, partitions, parts)
    return reader.options(**wanted).load()


def read_table(
    spark: "SparkSession", table: HistoryTable, columns: Sequence[str], where: Where
) -> "DataFrame":
    """Return *columns* of the events of *table*, at its version, that *where* wants."""
    options: dict[str, object | None] = {
        "table": table.place,
        "version": table.version,
        "of_store": where.store,
        "before_xid": where.before_xid,
        "at_from": where.begin,
        "at_before": where.end,
        "endpoint": where.endpoint,
        "destination": where.destination,
        "partitions": tasks_on(spark),
    }
    given = {name: str(value) for name, value in options.items() if value is not None}
    schema = ddl(pa.schema([STORED.field(name) for name in columns]))
    return spark.read.format(FORMAT).schema(schema).options(**given).load()


def options_of(
    store: NamedStore,
    view: str,
    which: Selection,
    snapshot: str | None = None,
    partitions: int | None = None,
    parts: Sequence[Part] | None = None,
) -> dict[str, str]:
    """Return the options of the data source for a read."""
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
    store: NamedStore,
    view: str,
    columns: pa.Schema,
    which: Selection,
    parts: Sequence[Part],
    snapshot: str,
) -> "DataFrame | None":
    from timeoutmgr.pipeline.frames import PartsReader, frame_of

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
    """Whether *spark* runs in this process; a session of Spark Connect hides its internals."""
    from pyspark.sql import SparkSession

    return isinstance(spark, SparkSession)


def tasks_on(spark: "SparkSession") -> int:
    """Return how many tasks of *spark* are to read a table: each has to begin, by a connection."""
    if not is_inside(spark):
        return PARTITIONS
    return min(PARTITIONS, _TASKS_OF_A_CORE * spark.sparkContext.defaultParallelism)


_SELECTING: Final = (
    *("endpoint", "destination", "due_from", "due_before", "at_from", "at_before", "xid_from"),
)


def write_timeouts(
    frame: "DataFrame", store: str, *, run_id: str, on_conflict: str = "ignore"
) -> None:
    """Store the rows of *frame*, which has the columns of ``views.TO_STORE``.

    Each row is stored once in the life of its id, however often this is run. *on_conflict* is the
    name of an ``KnownIdRule``: ``ignore``, ``verify`` or ``error``.
    """
    KnownIdRule.named(on_conflict)
    missing = [name for name in TO_STORE.names if name not in frame.columns]
    if missing:
        raise WrongColumns("the rows to store", [f"have no column {name!r}" for name in missing])
    options = {"store": store, "run_id": run_id, "on_conflict": on_conflict}
    writer = frame.select(*TO_STORE.names).write.format(FORMAT).mode("append")
    writer.options(**options).save()


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsReader:
    """The function of the tasks: numbers of *parts* go in, their rows come out."""

    store: NamedStore
    view: str
    columns: pa.Schema
    which: Selection
    parts: tuple[Part, ...]
    snapshot: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of each part whose number is in *batches*."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from fetch(
                    self.store.open(),
                    self.view,
                    self.columns,
                    self.which,
                    part=self.parts[number],
                    snapshot=self.snapshot,
                )


def frame_of(spark: "SparkSession", reader: PartsReader) -> "DataFrame | None":
    """Return the rows of *reader*, read by a task for each part; None if pyspark lacks the means.

    A scan of a data source in Python is planned by a process of its own, half a second each time,
    and copies every row once more than need be. This frame has no scan and no planner.

    ``mapInArrow`` does the same, but asks for pandas without using it. So this function uses
    internals of pyspark, whose names may change in its next version.
    """
    from py4j.protocol import Py4JError

    try:
        return _mapped(spark, reader)
    except (AttributeError, ImportError, Py4JError) as error:
        logger.info(
            "pipeline reads by the data source, which is slower: %s",
            error,
            extra={"event": "spark_reads_slower"},
        )
        return None


def _mapped(spark: "SparkSession", reader: PartsReader) -> "DataFrame":
    from pyspark.sql.classic.dataframe import DataFrame
    from pyspark.sql.types import StructType
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    kind: Any = PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    read = UserDefinedFunction(reader, StructType.fromDDL(ddl(reader.columns)), evalType=kind)
    numbers = _numbers(spark, len(reader.parts))
    rows = numbers._jdf.mapInArrow(read("id")._jc, False, None)
    return DataFrame(rows, spark)


def _numbers(spark: "SparkSession", count: int) -> Any:
    """Return the numbers below *count*, a task each, as rows of which Spark knows no size.

    Spark knows that a ``range`` is small, would take the rows read from it for few too, and send a
    million rows to every process to join them.
    """
    from pyspark.sql.classic.dataframe import DataFrame

    # A table whose ranges are all detached has no part.
    known: Any = spark.range(0, count, 1, max(count, 1))
    rows, schema = known._jdf.queryExecution().toRdd(), known._jdf.schema()
    session: Any = spark
    return DataFrame(session._jsparkSession.internalCreateDataFrame(rows, schema, False), spark)
