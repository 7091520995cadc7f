"""Writes archived events back into a store's history, with tombstones for ended ids."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from sqlalchemy import Column, Connection, MetaData, insert, select, text

from timeoutmgr.contracts import TimeoutState
from timeoutmgr.pipeline.stores import Store
from timeoutmgr.pipeline.views import HISTORY, in_numbers
from timeoutmgr.pipeline.writers.store_writer import pages

Row = Mapping[str, Any]

_CONTENT: Final = tuple(name for name in HISTORY.names if name != "sequence")
ENDS: Final[Mapping[str, TimeoutState]] = {
    "dispatched": TimeoutState.DISPATCHED,
    "cancelled": TimeoutState.CANCELLED,
    "failed": TimeoutState.FAILED,
    "dead_lettered": TimeoutState.FAILED,
    "migrated": TimeoutState.MIGRATED,
    "erased": TimeoutState.ERASED,
}
"""Events after which an id is used up, and the state of its tombstone."""

_NEXT_SEQUENCE: Final = text(
    "SELECT setval(pg_get_serial_sequence(:table, 'sequence'), greatest(:last, "
    "nextval(pg_get_serial_sequence(:table, 'sequence'))))"
)


class HistoryRestore:
    """Inserts events and tombstones that *store* lacks, each call in one transaction.

    An event keeps its sequence, by which a history table identifies it. If another event of the
    store has that sequence meanwhile, the event gets a new one. Rows with an ``xid`` also keep
    their transaction: a history table that has them does not get them again.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._history, self._keys = store.tables.history, store.tables.keys

    def reserve(self, last: int) -> None:
        """Make PostgreSQL use sequences after *last* for new events, as other databases do."""
        if not self._store.is_postgresql:
            return
        names = self._store.database.engine.dialect.identifier_preparer
        given = {"table": names.format_table(self._history), "last": last}
        self._store.database.run(lambda connection: connection.execute(_NEXT_SEQUENCE, given))

    def missing(self, connection: Connection, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """Return the *rows* (from ``plain``) that the history lacks."""
        known = self._by_sequence(connection, [row["sequence"] for row in rows])
        free, others = list[Row](), list[Row]()
        for row in rows:
            sequence = row["sequence"]
            if sequence not in known:
                known[sequence] = _content(row)  # *rows* may have another event of that sequence
                free.append(row)
            elif known[sequence] != _content(row):
                others.append(row)
        stored = self._contents(connection, others)
        moved = {_content(row): row for row in others if _content(row) not in stored}
        return [
            *map(dict, free),
            *({name: row[name] for name in row if name != "sequence"} for row in moved.values()),
        ]

    def put(self, connection: Connection, rows: Sequence[Row]) -> int:
        """Insert the missing *rows*; return their number."""
        new, table = self.missing(connection, rows), self._history
        if new and "xid" in new[0]:
            table = table.to_metadata(MetaData())
            # Without a type: PostgreSQL converts a text to a transaction id, but not a number.
            table.append_column(Column("xid"))
            new = [row | {"xid": str(row["xid"])} for row in new]
        for is_kept in (True, False):
            some = [row for row in new if ("sequence" in row) is is_kept]
            if some:
                connection.execute(insert(table), some)
        return len(new)

    def unused(self, connection: Connection, ends: Sequence[Row]) -> list[Row]:
        """Return the *ends* whose id the store does not know."""
        keys, known = self._keys, set[tuple[str, str]]()
        for some in pages(ends):
            ids = [row["id"] for row in some]
            wanted = select(keys.c.endpoint, keys.c.id).where(keys.c.id.in_(ids))
            wanted = wanted.where(keys.c.endpoint.in_({row["endpoint"] for row in some}))
            known |= {(row[0], row[1]) for row in connection.execute(wanted)}
        return [row for row in ends if (row["endpoint"], row["id"]) not in known]

    def close(self, connection: Connection, ends: Sequence[Row]) -> int:
        """Insert missing tombstones for *ends*, the last events of ids; return their number."""
        rows = [
            {
                **{"endpoint": row["endpoint"], "id": row["id"], "due": row["due"]},
                **{"state": ENDS[row["event"]].value, "closed_at": row["at"]},
                **{"version": 0, "maybe_sent": 0},
            }
            for row in self.unused(connection, ends)
        ]
        if rows:
            connection.execute(insert(self._keys), rows)
        return len(rows)

    def _by_sequence(
        self, connection: Connection, sequences: Sequence[int]
    ) -> dict[int, tuple[Any, ...]]:
        history = self._history
        wanted = select(history.c.sequence, *(history.c[name] for name in _CONTENT))
        return {
            row[0]: tuple(row[1:])
            for some in pages(sequences)
            for row in connection.execute(wanted.where(history.c.sequence.in_(some)))
        }

    def _contents(self, connection: Connection, rows: Sequence[Row]) -> set[tuple[Any, ...]]:
        """Return the stored events with the endpoints and times of *rows*, found by an index."""
        history = self._history
        wanted = select(*(history.c[name] for name in _CONTENT))
        return {
            tuple(found)
            for some in pages(rows)
            for found in connection.execute(
                wanted.where(
                    history.c.endpoint.in_({row["endpoint"] for row in some}),
                    history.c.at.in_({row["at"] for row in some}),
                )
            )
        }


def plain(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return *rows* in the form of the tables."""
    found: list[dict[str, Any]] = rows.cast(in_numbers(rows.schema)).to_pylist()
    return found


def _content(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in _CONTENT)
