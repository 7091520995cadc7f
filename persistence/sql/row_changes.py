"""Changes of many timeouts at once, beside dispatchers: rows in other hands are left out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from sqlalchemy import BigInteger, Connection, Row, bindparam, delete, func, select, update

from timeoutmgr.contracts import Key, Rerouted, TimeoutState
from timeoutmgr.crashpoints import reach
from timeoutmgr.database.arrays import NumberArray, TextArray
from timeoutmgr.database.engine import execute_many
from timeoutmgr.message.instants import Micros

from .commands import free_rows
from .context import StoreContext, lock_endpoint
from .labels import LabelRows, headers_of_labelled
from .rows import due_of, entry, record

Free: TypeAlias = Mapping[Key, tuple[Row[Any], bool]]
"""Locked rows by their keys, each with the answer whether it may have been sent."""

_NAMES: Final = (
    *("due", "original_due", "id", "destination", "attempts", "run_id", "version"),
    *("maybe_sent", "hidden_by"),
)
_BY_PRIMARY_KEY: Final = "; ".join(
    f"SET LOCAL {name} = off" for name in ("enable_hashjoin", "enable_mergejoin", "jit")
)
"""PostgreSQL looks each key up by itself: a join of another kind would read a whole endpoint."""


@dataclass(frozen=True, slots=True)
class PlaceMove:
    """A move of the row *key* to the place *to*; *original* is when it was due, if not *to*.

    *headers* are its headers as they are stored, if it has labels: their rows move with it.
    """

    key: Key
    to: Micros
    original: Micros | None = None
    headers: str | None = None


class RowChanges:
    """Locks and changes rows of one endpoint, within the transaction of the caller."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._is_postgresql: Final = context.database.dialect.name == "postgresql"
        timeouts, keys = context.tables.timeouts, context.tables.keys
        self._one_row = (
            timeouts.c.endpoint == context.endpoint,
            timeouts.c.due == bindparam("due_"),
            timeouts.c.id == bindparam("id_"),
        )
        self._one_key = (keys.c.endpoint == context.endpoint, keys.c.id == bindparam("id_"))
        columns = [*(timeouts.c[name] for name in _NAMES), headers_of_labelled(timeouts)]
        self._labels = LabelRows(context)
        self._row = select(*columns).where(*self._one_row).with_for_update(skip_locked=True)
        ids, dues = bindparam("ids", type_=TextArray()), bindparam("dues", type_=NumberArray())
        given = func.unnest(ids, dues).table_valued("id", "due", name="given").render_derived()
        self._rows = (
            select(*columns)
            .where(
                timeouts.c.endpoint == context.endpoint,
                timeouts.c.due == given.c.due,
                timeouts.c.id == given.c.id,
            )
            .with_for_update(skip_locked=True, of=timeouts)
        )
        asked = func.unnest(ids).table_valued("id", name="asked").render_derived()
        self._keys = (
            select(keys.c.id)
            .where(keys.c.endpoint == context.endpoint, keys.c.id == asked.c.id)
            .order_by(keys.c.id)
            .with_for_update(of=keys)
        )
        self._move, self._move_key = self._moves()

    def free(self, connection: Connection, keys: Collection[Key]) -> Free:
        """Lock *keys* and their rows as a cancel does; return the rows that nobody else has."""
        ordered = sorted(set(keys))
        if not ordered:
            return {}
        if self._is_postgresql:
            connection.exec_driver_sql(_BY_PRIMARY_KEY)
            ids, dues = [key.id for key in ordered], [key.due for key in ordered]
            connection.execute(self._keys, {"ids": ids}).all()
            rows = list(connection.execute(self._rows, {"ids": ids, "dues": dues}))
        else:
            # SQLite has one writer, and MySQL and SQL Server lock a row before its key.
            lock_endpoint(connection, self._context)
            found = (
                connection.execute(self._row, {"due_": due, "id_": id_}).first()
                for due, id_ in ordered
            )
            rows = [row for row in found if row is not None]
        return free_rows(connection, self._context, rows)

    def move(self, connection: Connection, moves: Sequence[PlaceMove], *, changes: bool) -> None:
        """Move locked rows and their keys to other places.

        If it *changes* the timeouts, and does not only park them, their versions count it.
        """
        ordered = sorted(moves, key=lambda one: one.key.id)
        bump = int(changes)
        self._labels.move(connection, [((one.key, one.headers), one.to) for one in ordered])
        if self._is_postgresql and ordered:
            given = {
                "ids": [one.key.id for one in ordered],
                "dues": [one.key.due for one in ordered],
                "tos": [one.to for one in ordered],
                "originals": ["NULL" if one.original is None else one.original for one in ordered],
                "bump": bump,
            }
            connection.exec_driver_sql(_BY_PRIMARY_KEY)
            connection.execute(self._move, given)
            reach("bulk.rows_moved")
            connection.execute(self._move_key, given)
            return
        rows: list[dict[str, Any]] = [
            {
                "due_": one.key.due,
                "id_": one.key.id,
                "to_": one.to,
                "original_": one.original,
                "bump": bump,
            }
            for one in ordered
        ]
        execute_many(connection, self._move, rows)
        reach("bulk.rows_moved")
        execute_many(connection, self._move_key, rows)

    def cancel(
        self, connection: Connection, free: Free, run_id: str | None, channel: str | None
    ) -> None:
        """Cancel the locked rows *free*."""
        keys, timeouts = self._context.tables.keys, self._context.tables.timeouts
        at, ordered = self._context.now(connection), sorted(free, key=lambda key: key.id)
        close = (
            update(keys)
            .where(*self._one_key)
            .values(state=TimeoutState.CANCELLED.value, closed_at=at, maybe_sent=bindparam("sent_"))
        )
        execute_many(
            connection, close, [{"id_": key.id, "sent_": int(free[key][1])} for key in ordered]
        )
        reach("bulk.keys_cancelled")
        rows: list[dict[str, Any]] = [{"due_": key.due, "id_": key.id} for key in ordered]
        execute_many(connection, delete(timeouts).where(*self._one_row), rows)
        self._labels.remove(connection, [(key, free[key][0].labelled) for key in ordered])
        reach("bulk.rows_cancelled")
        self.record(connection, "cancelled", free, run_id, channel)

    def reroute(
        self,
        connection: Connection,
        free: Free,
        to: str,
        run_id: str | None,
        channel: str | None,
    ) -> None:
        """Send the locked rows *free* to *to* when they are due."""
        timeouts = self._context.tables.timeouts
        change = (
            update(timeouts)
            .where(*self._one_row)
            .values(destination=bindparam("to_"), version=timeouts.c.version + 1)
        )
        execute_many(
            connection, change, [{"due_": k.due, "id_": k.id, "to_": to} for k in sorted(free)]
        )
        reach("changing.rerouted")
        self.record(connection, "rerouted", free, run_id, channel, destination=to)

    def reroute_keys(
        self, connection: Connection, keys: Sequence[Key], to: str, channel: str | None
    ) -> Rerouted:
        """Send the timeouts of *keys* that are free to *to*; return these keys."""
        free = self.free(connection, keys)
        self.reroute(connection, free, to, None, channel)
        chosen = sorted(free)
        return Rerouted(chosen, [key for key in chosen if free[key][1]])

    def record(
        self,
        connection: Connection,
        event: str,
        free: Free,
        run_id: str | None,
        channel: str | None,
        *,
        destination: str | None = None,
        dues: Mapping[Key, Micros] | None = None,
    ) -> None:
        """Write the history of a change; *dues* has new due times, *destination* is a new one."""
        at = self._context.now(connection)
        entries = [
            entry(
                Key(due_of(row) if dues is None else dues[key], key.id),
                at,
                destination or row.destination,
                row.attempts,
                run_id or row.run_id,
            )
            for key, (row, _) in sorted(free.items())
        ]
        record(connection, self._context, event, entries, channel)

    def _moves(self) -> tuple[Any, Any]:
        timeouts, keys = self._context.tables.timeouts, self._context.tables.keys
        bump: Any = bindparam("bump", type_=BigInteger)
        if not self._is_postgresql:
            row = update(timeouts).where(*self._one_row)
            key = update(keys).where(*self._one_key, keys.c.due == bindparam("due_"))
            return (
                row.values(
                    due=bindparam("to_"),
                    original_due=bindparam("original_"),
                    version=timeouts.c.version + bump,
                ),
                key.values(due=bindparam("to_"), version=keys.c.version + bump),
            )
        names = ("ids", "dues", "tos", "originals")
        arrays = [
            bindparam(name, type_=TextArray() if name == "ids" else NumberArray()) for name in names
        ]
        unnested = func.unnest(*arrays).table_valued("id", "due", "to", "original", name="given")
        given = unnested.render_derived()
        row = update(timeouts).where(
            timeouts.c.endpoint == self._context.endpoint,
            timeouts.c.due == given.c.due,
            timeouts.c.id == given.c.id,
        )
        key = update(keys).where(
            keys.c.endpoint == self._context.endpoint,
            keys.c.id == given.c.id,
            keys.c.due == given.c.due,
        )
        return (
            row.values(
                due=given.c.to,
                original_due=given.c.original,
                version=timeouts.c.version + bump,
            ),
            key.values(due=given.c.to, version=keys.c.version + bump),
        )
