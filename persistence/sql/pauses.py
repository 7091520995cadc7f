"""Pauses of dispatch: locking parks due timeouts, and a resume returns them.

The statement that locks rows for dispatch also checks for a pause, so that a pause applies from its
commit on, in every process. Like a row that waits for a retry, a parked row has a later place, the
``parked`` of its pause: the end of the pause, or so far away that no claim reaches it.

A dispatcher that parks rows shares a lock on the row of the pause with other dispatchers, and a
resume waits for that lock: no row is parked for a pause that has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, case, delete, func, insert, select, update

from timeoutmgr.contracts import Count, Key
from timeoutmgr.contracts.audit import AuditEntry, ChangedBy
from timeoutmgr.contracts.pauses import Pause, Unparked
from timeoutmgr.contracts.reports import COUNTED
from timeoutmgr.crashpoints import reach
from timeoutmgr.database.commits import after_commit
from timeoutmgr.message.instants import Micros
from timeoutmgr.resilience.after_fork import cached_property

from .audit import Audit, actor_of
from .context import StoreContext
from .row_changes import PlaceMove, RowChanges
from .rows import due_of

AT_ONCE: Final = 500
"""Parked timeouts that one transaction returns."""
FAR: Final[Micros] = 1_000 * 365 * 86_400_000_000
"""Microseconds from the start of an endless pause to the place of its parked rows."""
_ALL: Final = ""
"""The destination that stands for the whole endpoint."""


def parked_at(context: StoreContext) -> ColumnElement[Micros | None]:
    """Return the place at which a pause parks a row of ``timeouts``; NULL if no pause holds it.

    If the endpoint has no pause, one read of the table answers for all rows of the statement. If
    the host's clock counts, the parameter ``now`` is the time.
    """
    timeouts, pauses = context.tables.timeouts, context.tables.pauses
    mine = pauses.c.endpoint == context.endpoint
    holds = (
        select(func.max(pauses.c.parked))
        .where(
            mine,
            pauses.c.is_ending == 0,
            pauses.c.parked > context.now_or_parameter,
            pauses.c.destination.in_([_ALL, timeouts.c.destination]),
        )
        .correlate(timeouts)
        .scalar_subquery()
    )
    return case((select(pauses.c.parked).where(mine).limit(1).exists(), holds)).label("parked_at")


class Parking:
    """Parks the rows of a dispatch that a pause holds."""

    _changes = cached_property(lambda s: RowChanges(s._context))

    def __init__(self, context: StoreContext, notify_stored: Callable[[Micros], None]) -> None:
        self._context = context
        self._notify_stored = notify_stored
        pauses = context.tables.pauses
        mine = (pauses.c.endpoint == context.endpoint, pauses.c.is_ending == 0)
        self._pauses = (
            select(pauses.c.destination, pauses.c.parked)
            .where(*mine)
            .order_by(pauses.c.destination, pauses.c.parked)
            .with_for_update(read=True)
        )

    def park(self, connection: Connection, rows: Mapping[Key, Row[Any]]) -> Mapping[Key, Row[Any]]:
        """Park those locked *rows* that a pause holds; return the other rows.

        A row may be locked before it is due: a pause that ends before then does not hold it.
        """
        now, places = self._context.now(connection), dict[str, Micros]()
        for destination, parked in connection.execute(self._pauses):
            places[destination] = max(parked, places.get(destination, parked))
        moves = []
        for key, row in rows.items():
            place = max(places.get(name, now) for name in (_ALL, row.destination))
            if place > max(now, key.due):
                moves.append(PlaceMove(key, place, due_of(row), row.headers))
        if moves:
            self._changes.find_by_keys(connection)
            self._changes.move(connection, moves, changes=False)
            reach("pausing.parked")
            earliest = min(one.to for one in moves)
            after_commit(connection, lambda: self._notify_stored(earliest))
        parked_keys = {one.key for one in moves}
        return {key: row for key, row in rows.items() if key not in parked_keys}


class Pauses:
    """Begins, ends and lists the pauses of one endpoint."""

    def __init__(self, context: StoreContext, audit: Audit, changes: RowChanges) -> None:
        self._context = context
        self._audit = audit
        self._changes = changes
        self._table = context.tables.pauses
        self._mine = self._table.c.endpoint == context.endpoint
        self._ending = (
            select(self._table)
            .where(self._mine)
            .order_by(self._table.c.destination, self._table.c.parked)
        )

    def pause(self, destination: str | None, until: Micros | None, by: ChangedBy) -> bool:
        """Pause *destination* (None: all) until an instant; return whether it was not paused."""
        return self._context.database.run(
            lambda connection: self._pause(connection, destination, until, by)
        )

    def resume(self, destination: str | None, by: ChangedBy) -> bool:
        """Begin to end the pause of *destination*; return whether there was a pause."""

        def work(connection: Connection) -> bool:
            ended = self._end_active(connection, destination)
            self._audit_change(connection, "resume", destination, by, ended, {})
            return ended > 0

        return self._context.database.run(work)

    def unpark(self) -> Unparked:
        """Return parked timeouts of a pause that is ending or over to their original place."""
        with self._context.database.read() as connection:
            rows = connection.execute(self._ending).all()
            now = self._context.now(connection) if rows else 0
        if not any(row.is_ending or row.parked <= now for row in rows):
            return Unparked(0, now, is_last=True)
        return self._context.database.run(self._unpark)

    def pauses(self) -> Sequence[Pause]:
        """Return the pauses in force."""
        with self._context.reading() as connection:
            now = self._context.now(connection)
            rows = connection.execute(self._ending).all()
            return [self._view(connection, row) for row in rows if row.parked > now]

    def _pause(
        self, connection: Connection, destination: str | None, until: Micros | None, by: ChangedBy
    ) -> bool:
        now = self._context.now(connection)
        was_paused = self._end_active(connection, destination) > 0
        reach("pausing.former_ended")
        place = now + FAR if until is None else until
        row = {
            "endpoint": self._context.endpoint,
            "destination": destination or _ALL,
            "parked": place,
        }
        same = [self._table.c[name] == value for name, value in row.items()]
        values = {
            "since": now,
            "until": until,
            "actor": actor_of(self._context, by.actor),
            "reason": by.reason,
            "is_ending": 0,
        }
        if not connection.execute(update(self._table).where(*same).values(**values)).rowcount:
            connection.execute(insert(self._table), row | values)
        reach("pausing.written")
        self._audit_change(connection, "pause", destination, by, None, {"until": until})
        return not was_paused

    def _end_active(self, connection: Connection, destination: str | None) -> int:
        """Stop the pauses of *destination* from parking; wait for dispatchers that park now."""
        active = (
            self._mine,
            self._table.c.destination == (destination or _ALL),
            self._table.c.is_ending == 0,
        )
        return connection.execute(update(self._table).where(*active).values(is_ending=1)).rowcount

    def _audit_change(
        self,
        connection: Connection,
        action: str,
        destination: str | None,
        by: ChangedBy,
        changed: int | None,
        more: Mapping[str, Any],
    ) -> None:
        selection = {"destination": destination, **more}
        entry = AuditEntry(action=action, by=by, selection=selection, changed=changed)
        self._audit.write(connection, entry)

    def _unpark(self, connection: Connection) -> Unparked:
        now = self._context.now(connection)
        for pause in connection.execute(self._ending).all():
            if not pause.is_ending and pause.parked > now:
                continue
            keys = [] if pause.parked <= now else self._parked(connection, pause, AT_ONCE)
            free = self._changes.free(connection, keys)
            moves = [
                PlaceMove(key, now, row.original_due, row.labelled)
                for key, (row, _) in free.items()
            ]
            self._changes.move(connection, moves, changes=False)
            reach("pausing.returned")
            if moves:
                return Unparked(len(moves), now, is_last=False)
            if not keys:
                self._forget(connection, pause)
                reach("pausing.forgotten")
        return Unparked(0, now, is_last=True)

    def _forget(self, connection: Connection, pause: Row[Any]) -> None:
        columns = self._table.c
        one = (columns.destination == pause.destination, columns.parked == pause.parked)
        # A new pause with the same end may have begun meanwhile.
        same = (self._table.c.is_ending == pause.is_ending, *one)
        connection.execute(delete(self._table).where(self._mine, *same))

    def _parked(self, connection: Connection, pause: Row[Any], limit: int) -> list[Key]:
        timeouts, columns = self._context.tables.timeouts, self._table.c
        at_place = [
            timeouts.c.endpoint == self._context.endpoint,
            timeouts.c.due == pause.parked,
            timeouts.c.original_due.is_not(None),
        ]
        if pause.destination != _ALL:
            at_place.append(timeouts.c.destination == pause.destination)
        if pause.is_ending:  # another pause with the same end may hold them at the same place
            held = (self._mine, columns.is_ending == 0, columns.parked == pause.parked)
            of_it = columns.destination.in_([_ALL, timeouts.c.destination])
            at_place.append(~select(columns.parked).where(*held, of_it).exists())
        statement = select(timeouts.c.due, timeouts.c.id).where(*at_place).limit(limit)
        return [Key(*row) for row in connection.execute(statement)]

    def _view(self, connection: Connection, row: Row[Any]) -> Pause:
        some = self._parked(connection, row, COUNTED + 1)
        return Pause(
            destination=row.destination or None,
            since=row.since,
            until=row.until,
            actor=row.actor,
            reason=row.reason,
            parked=Count(min(len(some), COUNTED), exact=len(some) <= COUNTED),
            place=row.parked,
            is_ending=bool(row.is_ending),
        )
