"""Read stored timeouts as data frames, store data frames, and change timeouts in bulk."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from timeoutmgr.contracts.audit import ChangedBy
from timeoutmgr.contracts.bulk_runs import BulkChange, BulkPlan
from timeoutmgr.endpoint.bulk_runs import BY_API, BulkRuns
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import duration_micros
from timeoutmgr.pipeline.errors import WrongColumns
from timeoutmgr.pipeline.lake.table import STORED, HistoryTable, Where
from timeoutmgr.pipeline.readers.statements import PARTITIONS, Part, as_option
from timeoutmgr.pipeline.spark.session import READ_BY, is_inside
from timeoutmgr.pipeline.stores import NamedStore, Store
from timeoutmgr.pipeline.views import TO_STORE, Selection, ddl, projected
from timeoutmgr.pipeline.writers.conflicts import KnownIdRule

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT: Final = "timeouts"
EVERYTHING: Final = Selection()
_TASKS_OF_A_CORE: Final = 2
_OF_TABLES: Final = {"store": "of_store", "begin": "at_from", "end": "at_before"}
"""Options of a read of a history table that have other names in ``Where``."""


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

    With the name of an open *snapshot* (see ``timeoutmgr.pipeline.snapshot``), one task for each of
    *parts*, or *partitions* tasks, read the view. Without a snapshot one task reads the view in one
    transaction, since each of several tasks would see a different moment.
    """
    reader = spark.read.format(FORMAT).schema(ddl(projected(view, columns)))
    wanted = options_of(NamedStore.of(store), view, which, snapshot, partitions, parts)
    return reader.options(**wanted).load()


def read_table(
    spark: "SparkSession", table: HistoryTable, columns: Sequence[str], where: Where
) -> "DataFrame":
    """Return *columns* of the events that *where* selects in *table*, at its version."""
    given = {_OF_TABLES.get(name, name): value for name, value in asdict(where).items()}
    given |= {"table": table.place, "version": table.version, "partitions": tasks_on(spark)}
    schema = ddl(pa.schema([STORED.field(name) for name in columns]))
    return spark.read.format(FORMAT).schema(schema).options(**_texts(given)).load()


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
        "bucket_seconds": duration_micros(which.bucket) // 1_000_000,
        **asdict(which),
    }
    del options["bucket"]  # in seconds
    return _texts(options)


def _texts(options: Mapping[str, object | None]) -> dict[str, str]:
    return {name: str(value) for name, value in options.items() if value is not None}


def tasks_on(spark: "SparkSession") -> int:
    """Return how many tasks of *spark* read a table; each task opens a connection first.

    Raises ConfigurationError if the session's setting READ_BY is not a whole number from 1.
    """
    given = str(spark.conf.get(READ_BY, ""))
    if given:
        if not (given.isdecimal() and int(given)):
            raise ConfigurationError(f"{READ_BY} is a whole number from 1, got {given!r}")
        return int(given)
    if not is_inside(spark):
        return PARTITIONS
    return min(PARTITIONS, _TASKS_OF_A_CORE * spark.sparkContext.defaultParallelism)


def write_timeouts(
    frame: "DataFrame", store: str, *, run_id: str, on_conflict: str = "ignore"
) -> None:
    """Store the rows of *frame*, which has the columns of ``views.TO_STORE``.

    Each row is stored once under its id, however often the call is repeated. *on_conflict* is the
    name of a ``KnownIdRule``: ``ignore``, ``verify`` or ``error``.
    """
    KnownIdRule.named(on_conflict)
    missing = [name for name in TO_STORE.names if name not in frame.columns]
    if missing:
        raise WrongColumns("the rows to store", [f"have no column {name!r}" for name in missing])
    options = {"store": store, "run_id": run_id, "on_conflict": on_conflict}
    writer = frame.select(*TO_STORE.names).write.format(FORMAT).mode("append")
    writer.options(**options).save()


def plan_change(
    frame: "DataFrame", bulk: BulkRuns, change: BulkChange, *, by: ChangedBy = BY_API
) -> BulkPlan:
    """Plan *change* for the pending timeouts whose ids are in the column ``id`` of *frame*.

    *bulk* is ``endpoint.timeouts.bulk``. The plan keeps the selection; apply it by
    ``bulk.apply(plan.run.id)`` or ``timeoutmgr runs apply``.
    """
    if "id" not in frame.columns:
        raise WrongColumns("the timeouts to change", ["have no column 'id'"])
    ids = frame.select("id").where("id IS NOT NULL").distinct().toArrow()["id"].to_pylist()
    return bulk.plan(change, ids=ids, by=by)
