"""Following the history of a store in PostgreSQL: every event once, however late it is committed.

The sequence of a row tells when it was written, not when it can be seen: one with a lower sequence
may be committed after a higher one was read, and a reader that goes on from the highest would never
see it. So the offset is a transaction id: that of the oldest transaction that is still open. Below
it nothing can appear any more; a long transaction delays, and loses nothing.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from sqlalchemy import ColumnElement, text
from sqlalchemy.sql.elements import literal_column

from timeoutmgr.errors import CombinationRefused
from timeoutmgr.pipeline.errors import RunInTheWay
from timeoutmgr.pipeline.fetching import fetch
from timeoutmgr.pipeline.stores import Store
from timeoutmgr.pipeline.views import Selection

if TYPE_CHECKING:
    from collections.abc import Mapping

    from timeoutmgr.pipeline.source import NamedStore

BATCH_EVENTS: Final = 500_000
"""Events of one micro-batch at most, or those of one transaction, if they are more."""

_HORIZON: Final = text(
    "SELECT CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS bigint), "
    "(SELECT system_identifier FROM pg_control_system())"
)


class Between(InputPartition):
    """The events of transactions from *begin* to before *end*."""

    def __init__(self, begin: int, end: int) -> None:
        super().__init__((begin, end))
        self.begin = begin
        self.end = end


class HistoryStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the history of a store as it grows."""

    def __init__(
        self, store: "NamedStore", columns: pa.Schema, options: "Mapping[str, str]"
    ) -> None:
        self._store = store
        self._columns = columns
        self._most = int(options.get("batch_events", BATCH_EVENTS))
        self._last: int | None = None

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return how much a micro-batch reads."""
        return ReadMaxRows(self._most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Note what is there now: what comes later is not read before the end."""
        self._last = horizon(self._store.open())[0]

    def initialOffset(self) -> dict[str, int]:
        """Return the begin of all history."""
        return {"xid": 0, "system": horizon(self._store.open())[1]}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Return up to where a micro-batch that begins at *start* can read.

        Raises RunInTheWay where *start* is of another database: its ids mean nothing here.
        """
        store = self._store.open()
        end, system = horizon(store)
        if system != start["system"]:
            raise RunInTheWay(
                f"the checkpoint is of database system {start['system']}, this is {system}; a "
                "restored or cloned database counts its transactions anew: begin with another "
                "checkpoint and folder"
            )
        end = end if self._last is None else min(end, self._last)
        if not isinstance(limit, ReadAllAvailable):
            most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._most
            end = _no_more_than(store, start["xid"], end, most)
        return {"xid": max(end, start["xid"]), "system": system}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Return what the tasks of a micro-batch read."""
        if start["xid"] == end["xid"]:
            return []
        return [Between(start["xid"], end["xid"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of *partition*."""
        assert isinstance(partition, Between)
        yield from fetch(
            self._store.open(),
            "history",
            self._columns,
            Selection(),
            where=_between(partition.begin, partition.end),
        )

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing: what was read stays in the store."""

    def stop(self) -> None:
        """Do nothing: nothing is held between two micro-batches."""


def horizon(store: Store) -> tuple[int, int]:
    """Return the id of the oldest open transaction, and which database system counts it.

    Raises CombinationRefused where the database has nothing of the kind.
    """
    if not store.is_postgresql:
        raise CombinationRefused(
            f"following {store.database.dialect.name}",
            "it does not tell which transactions are still open, so that what is committed late "
            "would be missed for ever",
            "Use `pipeline archive` there, which reads everything once it is old.",
        )
    store.require_tables()
    with store.database.read() as connection:
        row = connection.execute(_HORIZON).one()
    return int(row[0]), int(row[1])


def index_transactions(store: Store) -> None:
    """Create the index that finds the events of a range of transactions, if it is missing."""
    history = store.tables.history
    quoted = store.database.engine.dialect.identifier_preparer
    name = quoted.quote(f"{history.name}_xid")
    statement = (
        f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON {quoted.format_table(history)} (xid)"
    )
    with store.database.apart.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT").execute(text(statement))


def _between(begin: int, end: int) -> list[ColumnElement[bool]]:
    return [
        literal_column(f"xid >= CAST('{begin:d}' AS xid8)"),
        literal_column(f"xid < CAST('{end:d}' AS xid8)"),
    ]


def _no_more_than(store: Store, begin: int, end: int, most: int) -> int:
    """Return the end of about *most* events from *begin* on; whole transactions only."""
    history = store.database.engine.dialect.identifier_preparer.format_table(store.tables.history)
    found = text(
        f"SELECT CAST(CAST(xid AS text) AS bigint) FROM {history} "
        f"WHERE xid >= CAST('{begin:d}' AS xid8) AND xid < CAST('{end:d}' AS xid8) "
        f"ORDER BY xid OFFSET {most:d} LIMIT 1"
    )
    with store.database.read() as connection:
        next_: Any = connection.execute(found).scalar()
    # At least the first transaction, however large it is: else there would be no going on.
    return end if next_ is None else max(int(next_), begin + 1)
