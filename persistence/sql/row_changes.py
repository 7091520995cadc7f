"""Changes of many timeouts at once, while dispatchers work: locked rows are left out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Executable,
    Row,
    bindparam,
    delete,
    func,
    select,
    update,
)

from timeoutmgr.contracts import Key, Rerouted, TimeoutState
from timeoutmgr.crashpoints import reach
from timeoutmgr.database.arrays import NumberArray, TextArray
from timeoutmgr.database.engine import execute_many
from timeoutmgr.message.instants import Micros

from .commands import free_rows
from .context import StoreContext, lock_endpoint
from .labels import LabelRows, headers_of_labelled
from .rows import at_place, due_of, entry, is_wanted, record

Free: TypeAlias = Mapping[Key, tuple[Row[Any], bool]]
"""Locked rows by their keys, each with whether it may have been sent."""

_NAMES: Final = (
    *("due", "original_due", "id", "destination", "attempts", "run_id", "version"),
    *("maybe_sent", "hidden_by"),
)
BY_PRIMARY_KEY: Final = "; ".join(
    f"SET LOCAL {name} = off" for name in ("enable_hashjoin", "enable_mergejoin", "jit")
)
"""Makes PostgreSQL look up each key: other kinds of join would read a whole endpoint."""


class PlaceMove(NamedTuple):
    """A move of the row *key* to the place *to*; *original* is its due time, if not *to*.

    *headers* are its stored headers if it has labels, whose rows move with it.
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

        columns = [*(timeouts.c[name] for name in _NAMES), headers_of_labelled(timeouts)]
        self._labels = LabelRows(context)
        self._row = select(*columns).where(*at_place(context)).with_for_update(skip_locked=True)
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
        locked = (
            select(keys.c.id)
            .where(keys.c.endpoint == context.endpoint, keys.c.id == asked.c.id)
            .order_by(keys.c.id)
            .with_for_update(of=keys)
        )
        # Only the locks are needed: returning a thousand ids would be a waste.
        self._keys = select(func.count()).select_from(locked.subquery())
        self._move, self._move_key = self._moves()
        self._close_key, self._remove, self._reroute = self._ends()

    def free(self, connection: Connection, keys: Collection[Key]) -> Free:
        """Lock *keys* and their rows as a cancel does; return the rows that could be locked."""
        ordered = sorted(set(keys))
        if not ordered:
            return {}
        if self._is_postgresql:
            ids, dues = [key.id for key in ordered], [key.due for key in ordered]
            self.lock_keys(connection, ids)
            rows = connection.execute(self._rows, {"ids": ids, "dues": dues}).all()
        else:
            # SQLite has one writer; MySQL and SQL Server lock a row before its key.
            lock_endpoint(connection, self._context)
            found = (
                connection.execute(self._row, {"due_": due, "id_": id_}).first()
                for due, id_ in ordered
            )
            rows = [row for row in found if row is not None]
        return free_rows(connection, self._context, rows)

    def lock_keys(self, connection: Connection, ids: Sequence[str]) -> None:
        """Lock the keys of *ids* in the order of ids, on PostgreSQL: nowhere else a change waits.

        Transactions that locked them in different orders would deadlock.
        """
        if self._is_postgresql:
            self.find_by_keys(connection)
            connection.execute(self._keys, {"ids": ids}).scalar_one()

    def find_by_keys(self, connection: Connection) -> None:
        """Make the transaction find each row by its key; ``free`` includes this."""
        if self._is_postgresql:
            connection.exec_driver_sql(BY_PRIMARY_KEY)

    def move(self, connection: Connection, moves: Sequence[PlaceMove], *, changes: bool) -> None:
        """Move locked rows and their keys to other places.

        If the move *changes* the timeouts and does not only park them, their versions increase. A
        timeout that is not due yet moves to its due time: a dispatcher closes it at the later of
        due time and place, and would otherwise find no row there.
        """
        ordered = sorted(
            (
                one if one.original is None else one._replace(to=max(one.to, one.original))
                for one in moves
            ),
            key=lambda one: one.key.id,
        )
        labelled = [one for one in ordered if one.headers is not None]
        self._labels.move(connection, [((one.key, one.headers), one.to) for one in labelled])
        columns: dict[str, list[Any]] = {
            "id_": [one.key.id for one in ordered],
            "due_": [one.key.due for one in ordered],
            "to_": [one.to for one in ordered],
            "original_": [one.original for one in ordered],
        }
        self._move.execute(connection, columns, bump=int(changes))
        reach("bulk.rows_moved")
        self._move_key.execute(connection, columns, bump=int(changes))

    def cancel(
        self, connection: Connection, free: Free, run_id: str | None, channel: str | None
    ) -> None:
        """Cancel the locked rows *free*."""
        at, ordered = self._context.now(connection), sorted(free, key=lambda key: key.id)
        columns = _columns(ordered)
        sent = [int(free[key][1]) for key in ordered]
        self._close_key.execute(connection, {**columns, "sent_": sent}, at_=at)
        reach("bulk.keys_cancelled")
        self._remove.execute(connection, columns)
        self._labels.remove(connection, [(key, free[key][0].labelled) for key in ordered])
        reach("bulk.rows_cancelled")
        self.record(connection, "cancelled", free, run_id, channel)

    def reroute(
        self, connection: Connection, free: Free, to: str, run_id: str | None, channel: str | None
    ) -> list[PlaceMove]:
        """Change the destination of the locked rows *free* to *to*.

        Rows that a pause has parked are due: they move to the present, and are returned. The end of
        the pause would no longer find them, since its destination is another.
        """
        self._reroute.execute(connection, _columns(sorted(free)), to_=to)
        reach("changing.rerouted")
        self.record(connection, "rerouted", free, run_id, channel, destination=to)
        moves = self._unparking(connection, free)
        if moves:
            self.move(connection, moves, changes=False)
        return moves

    def _unparking(self, connection: Connection, free: Free) -> list[PlaceMove]:
        """Return the moves of the parked rows of *free* to the present."""
        waiting = [key for key, (row, _) in free.items() if row.original_due is not None]
        if not waiting:
            return []
        pauses = self._context.tables.pauses
        of_pauses = select(pauses.c.parked).where(pauses.c.endpoint == self._context.endpoint)
        places = set(connection.execute(of_pauses).scalars())
        now = self._context.now(connection)
        parked = [key for key in waiting if key.due in places]
        return [
            PlaceMove(key, now, free[key][0].original_due, free[key][0].labelled) for key in parked
        ]

    def reroute_keys(
        self, connection: Connection, keys: Sequence[Key], to: str, channel: str | None
    ) -> Rerouted:
        """Change the destination of free timeouts of *keys* to *to*; return their keys."""
        free = self.free(connection, keys)
        unparked = self.reroute(connection, free, to, None, channel)
        chosen = sorted(free)
        maybe_sent = [key for key in chosen if free[key][1]]
        return Rerouted(chosen, maybe_sent, next((one.to for one in unparked), None))

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
        """Write the history of a change to new due times (*dues*) or to a new *destination*."""
        if not is_wanted(self._context, event):
            return
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

    def _moves(self) -> tuple[_OfEach, _OfEach]:
        timeouts, keys = self._context.tables.timeouts, self._context.tables.keys
        bump: Any = bindparam("bump", type_=BigInteger)

        def of_row(given: _Given) -> Executable:
            return (
                update(timeouts)
                .where(*at_place(self._context, given))
                .values(
                    due=given("to_"),
                    original_due=given("original_"),
                    version=timeouts.c.version + bump,
                )
            )

        def of_key(given: _Given) -> Executable:
            return (
                update(keys)
                .where(*self._key_of(given), keys.c.due == given("due_"))
                .values(due=given("to_"), version=keys.c.version + bump)
            )

        names = ("id_", "due_", "to_", "original_")
        return _OfEach(self._context, of_row, names), _OfEach(self._context, of_key, names[:3])

    def _ends(self) -> tuple[_OfEach, _OfEach, _OfEach]:
        timeouts, keys = self._context.tables.timeouts, self._context.tables.keys

        def close(given: _Given) -> Executable:
            values = {
                "state": TimeoutState.CANCELLED.value,
                "closed_at": bindparam("at_", type_=BigInteger),
                "maybe_sent": given("sent_"),
            }
            return update(keys).where(*self._key_of(given)).values(values)

        def remove(given: _Given) -> Executable:
            return delete(timeouts).where(*at_place(self._context, given))

        def reroute(given: _Given) -> Executable:
            row = update(timeouts).where(*at_place(self._context, given))
            return row.values(destination=bindparam("to_"), version=timeouts.c.version + 1)

        return (
            _OfEach(self._context, close, ("id_", "sent_")),
            _OfEach(self._context, remove, ("id_", "due_")),
            _OfEach(self._context, reroute, ("id_", "due_")),
        )

    def _key_of(self, given: _Given) -> tuple[ColumnElement[bool], ...]:
        keys = self._context.tables.keys
        return keys.c.endpoint == self._context.endpoint, keys.c.id == given("id_")


_Given: TypeAlias = Callable[[str], ColumnElement[Any]]
"""Returns the value of a name in a row of the statement."""


class _OfEach:
    """A statement on several rows, each with values for *names*; ``id_`` is a text.

    *make* builds it from these values. PostgreSQL gets one statement with an array per name.
    """

    def __init__(
        self, context: StoreContext, make: Callable[[_Given], Executable], names: Sequence[str]
    ) -> None:
        self._names = names
        self._is_postgresql: Final = context.database.dialect.name == "postgresql"
        self._statement = make(_unnested(names) if self._is_postgresql else bindparam)

    def execute(
        self, connection: Connection, columns: Mapping[str, Sequence[Any]], **fixed: Any
    ) -> None:
        """Execute it for the rows of *columns*, with the same *fixed* values for all."""
        used = {name: columns[name] for name in self._names}
        if not self._is_postgresql:
            rows = zip(*used.values(), strict=True)
            values = [dict(zip(used, row, strict=True)) | fixed for row in rows]
            execute_many(connection, self._statement, values)
        elif used["id_"]:
            connection.execute(self._statement, {**used, **fixed})


def _columns(keys: Sequence[Key]) -> dict[str, list[Any]]:
    return {"id_": [key.id for key in keys], "due_": [key.due for key in keys]}


def _unnested(names: Sequence[str]) -> _Given:
    arrays = [
        bindparam(name, type_=TextArray() if name == "id_" else NumberArray()) for name in names
    ]
    given = func.unnest(*arrays).table_valued(*names, name="given").render_derived()
    return lambda name: given.c[name]
