"""Removing what is past its retention, a bounded number at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Delete,
    Select,
    Table,
    any_,
    bindparam,
    delete,
    func,
    select,
)

from timeoutmgr.crashpoints import reach
from timeoutmgr.database.arrays import NumberArray, TextArray
from timeoutmgr.database.engine import execute_many
from timeoutmgr.instants import Micros, duration_micros

from .context import StoreContext

AT_ONCE: Final = 500
"""Rows of a table that one transaction removes: it is short enough for others to wait for."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """Rows of one table, which are old by the column *age* after *retention* microseconds."""

    find: Select[Any]
    remove: Delete
    oldest: Select[Any]
    retention: Micros


class Purging:
    """Removes old tombstones, history and silent processes of one endpoint.

    Several processes may do so at once: a row that one of them has locked the others pass by.
    """

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        tables, settings = context.tables, context.settings
        tombstones = duration_micros(settings.tombstone_retention)
        history = duration_micros(settings.history_retention)
        self._kinds: Final = (
            self._kind(tables.keys, "id", "closed_at", tombstones),
            self._kind(tables.history, "sequence", "at", history),
            self._kind(tables.processes, "owner", "heartbeat", tombstones),
        )

        self._oldest: Final = select(*(kind.oldest.scalar_subquery() for kind in self._kinds))

    def purge(self) -> int:
        """Remove a bounded number of rows past retention; return how many."""
        return self._context.database.run(self._purge)

    def lag(self) -> Micros:
        """Return for how long the oldest row that is still there should have been removed."""
        with self._context.database.read() as connection:
            now = self._context.now(connection)
            found = connection.execute(self._oldest).one()
        return max(
            0,
            *(
                0 if oldest is None else now - kind.retention - oldest
                for kind, oldest in zip(self._kinds, found, strict=True)
            ),
        )

    def _purge(self, connection: Connection) -> int:
        now, removed = self._context.now(connection), 0
        for kind in self._kinds:
            before = now - kind.retention
            names = connection.execute(kind.find, {"before": before}).scalars().all()
            if names:
                self._remove(connection, kind, names)
            reach("purging.rows_removed")
            removed += len(names)
        return removed

    def _remove(self, connection: Connection, kind: _Kind, names: Sequence[Any]) -> None:
        if self._context.locks_what_it_reads:
            execute_many(connection, kind.remove, [{"names": name} for name in names])
        else:
            connection.execute(kind.remove, {"names": names})

    def _kind(self, table: Table, name: str, age: str, retention: Micros) -> _Kind:
        column, since = table.c[name], table.c[age]
        mine = table.c.endpoint == self._context.endpoint
        old = select(column).where(mine, since.is_not(None), since < bindparam("before"))
        return _Kind(
            find=old.order_by(since).limit(AT_ONCE).with_for_update(skip_locked=True),
            remove=delete(table).where(mine, self._among(column)),
            oldest=select(func.min(since)).where(mine, since.is_not(None)),
            retention=retention,
        )

    def _among(self, column: ColumnElement[Any]) -> ColumnElement[bool]:
        if self._context.locks_what_it_reads:
            return column == bindparam("names")  # each by its whole primary key
        if self._context.database.is_sqlite:
            return column.in_(bindparam("names", expanding=True))
        array: Any = NumberArray() if column.type.python_type is int else TextArray()
        return column == any_(bindparam("names", type_=array))
