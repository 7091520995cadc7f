"""Cancel all timeouts of a label or saga, whether stored or still in the manager's queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy import ColumnElement, Connection, select
from sqlalchemy.sql import FromClause

from timeoutmgr.contracts import Cancelled, CancelResult, Key, Timeout, TimeoutFilter, TimeoutState
from timeoutmgr.contracts.audit import AuditEntry, ChangedBy
from timeoutmgr.contracts.sagas import memory_of
from timeoutmgr.crashpoints import reach
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.routes import API

from .audit import Audit
from .commands import AT_ONCE, among_ids
from .context import StoreContext, lock_endpoint
from .labels import of_label
from .row_changes import RowChanges
from .rows import PLACED, after, from_placed
from .sagas import ClearedSagas

_BODY: Final = PLACED.index("body")


@dataclass(frozen=True, slots=True)
class _Order:
    """A cancel: the *conditions* for its rows of ``timeouts``, which are ordered by *at*."""

    which: TimeoutFilter
    memory: str
    conditions: Sequence[ColumnElement[bool]]
    at: FromClause
    sent_until: Micros
    channel: str | None


@dataclass(slots=True)
class _Part:
    """The timeouts of one transaction; *moved* says that a timeout has a new due time now."""

    found: Sequence[Timeout]
    met: dict[str, Cancelled] = field(default_factory=dict)
    has_moved: bool = False


class MassCancel:
    """Cancels timeouts of one endpoint; for the order of locks see ``context``."""

    def __init__(
        self, context: StoreContext, cleared: ClearedSagas, audit: Audit, changes: RowChanges
    ) -> None:
        self._context = context
        self._cleared = cleared
        self._audit = audit
        self._changes = changes
        keys = context.tables.keys
        self._keys = select(keys.c.id, keys.c.due, keys.c.state).where(
            keys.c.endpoint == context.endpoint, among_ids(context, keys.c.id)
        )

    def cancel(
        self, which: TimeoutFilter, sent_until: Micros, channel: str | None
    ) -> list[Cancelled]:
        """Cancel the timeouts that *which* selects; see FindsByLabels."""
        order = self._order(which, sent_until, channel)
        met: dict[str, Cancelled] = {}
        while True:
            behind, has_moved, known = None, False, len(met)
            while True:
                part = self._run(order, behind, audits=not met)
                met |= part.met
                has_moved = has_moved or part.has_moved
                if len(part.found) < AT_ONCE:
                    break
                behind = part.found[-1].key
            # Between two transactions, a timeout may move to an earlier due time.
            if not has_moved and (behind is None or len(met) == known):
                return list(met.values())

    def _order(self, which: TimeoutFilter, sent_until: Micros, channel: str | None) -> _Order:
        memory, timeouts = memory_of(which), self._context.tables.timeouts
        conditions: list[ColumnElement[bool]] = [timeouts.c.endpoint == self._context.endpoint]
        at: FromClause = timeouts
        if which.labels:
            at = self._context.tables.labels
            conditions += of_label(self._context, which.labels[0])
        else:
            conditions.append(timeouts.c.saga_id == which.saga_id)
        return _Order(which, memory, conditions, at, sent_until, channel)

    def _run(self, order: _Order, behind: Key | None, *, audits: bool) -> _Part:
        return self._context.database.run(
            lambda connection: self._part(connection, order, behind, audits)
        )

    def _part(
        self, connection: Connection, order: _Order, behind: Key | None, audits: bool
    ) -> _Part:
        """Cancel the first timeouts after the key *behind*, and remember the cancel."""
        self._cleared.lock(connection, alone=True)
        part = _Part(self._found(connection, order, behind))
        if part.found:
            self._cancel(connection, order, part)
        if part.found or audits:
            self._audit.write(connection, _audited(order, part))
        self._cleared.remember_cancel(connection, order.memory, order.sent_until, order.channel)
        reach("changing.cancel_remembered")
        return part

    def _found(self, connection: Connection, order: _Order, behind: Key | None) -> list[Timeout]:
        timeouts, at = self._context.tables.timeouts, order.at
        columns = (timeouts.c[name] for name in PLACED if name != "body")
        statement = select(*columns).where(*order.conditions).order_by(at.c.due, at.c.id)
        if behind is not None:
            statement = statement.where(after(self._context, at.c.due, at.c.id, behind))
        rows = connection.execute(statement.limit(AT_ONCE)).all()
        return [from_placed((*row[:_BODY], b"", *row[_BODY:])) for row in rows]

    def _cancel(self, connection: Connection, order: _Order, part: _Part) -> None:
        by_key = {timeout.key: timeout for timeout in part.found}
        free = self._changes.free(connection, by_key)
        if len(free) < len(by_key) and not self._context.locks_what_it_reads:
            # A claim also locks rows for a moment, to flag them: see ``TimeoutCommands``.
            lock_endpoint(connection, self._context)
            free = self._changes.free(connection, by_key)
        given = {"ids": sorted(key.id for key in by_key)}
        known = {id_: (state, due) for id_, due, state in connection.execute(self._keys, given)}
        if free:
            self._changes.cancel(connection, free, None, order.channel)
        for key, timeout in by_key.items():
            state, due = known.get(key.id, (TimeoutState.CANCELLED.value, key.due))
            if key in free:
                result = CancelResult.MAYBE_SENT if free[key][1] else CancelResult.CANCELLED
            elif state == TimeoutState.CANCELLED.value:
                continue
            elif due != key.due and state == TimeoutState.PENDING.value:
                part.has_moved = True
                continue
            else:
                result = CancelResult.TOO_LATE
            part.met[key.id] = Cancelled(timeout, result)


def _audited(order: _Order, part: _Part) -> AuditEntry:
    which = order.which
    selection = {"labels": list(which.labels)} if which.labels else {"saga_id": which.saga_id}
    cancelled = [one for one in part.met.values() if one.result is not CancelResult.TOO_LATE]
    return AuditEntry(
        action="cancel-where" if which.labels else "cancel-saga",
        by=ChangedBy(channel=order.channel or API),
        selection=selection,
        changed=len(cancelled),
    )
