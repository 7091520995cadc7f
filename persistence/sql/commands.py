"""Cancel and reschedule while dispatchers are at work: one side wins, and both know which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Delete,
    Row,
    Select,
    Update,
    any_,
    bindparam,
    delete,
    insert,
    select,
    update,
)

from timeoutmgr.contracts import (
    CancelResult,
    ChangeResult,
    Key,
    RepeatKind,
    Timeout,
    TimeoutState,
    Transaction,
)
from timeoutmgr.contracts.audit import AuditEntry, ChangedBy
from timeoutmgr.contracts.sagas import SagaClear
from timeoutmgr.crashpoints import reach
from timeoutmgr.database import as_connection
from timeoutmgr.database.arrays import TextArray
from timeoutmgr.database.engine import execute_many
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.routes import API
from timeoutmgr.persistence.remembered import AWAITED, Remembered, unpack

from .audit import Audit
from .batch_writes import insert_missing
from .claim.rows import Claim, claims_of, may_have_sent
from .context import StoreContext, lock_endpoint
from .labels import Headers, LabelRows, headers_of_labelled
from .rows import at_place, entry, entry_of, record
from .sagas import ClearedSagas, unpacked

# --- cancelling the timeouts of a saga, five hundred with as many statements as one ---------------

AT_ONCE: Final = 500
"""Timeouts that one transaction cancels, unless it is a caller's transaction."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The *cancelled* ids of a transaction; *last* is the last id that it examined."""

    cancelled: Sequence[str]
    last: str
    is_last: bool


def _reaches(order: SagaClear, row: Any) -> bool:
    return order.reaches(row.id, row.created, unpacked(row.place))


class SagaCommands:
    """Cancels the timeouts of sagas; for the order of locks see ``context``."""

    def __init__(self, context: StoreContext, cleared: ClearedSagas, audit: Audit) -> None:
        self._context = context
        self._cleared = cleared
        self._audit = audit
        timeouts, keys = context.tables.timeouts, context.tables.keys
        of_saga = (timeouts.c.endpoint == context.endpoint, timeouts.c.saga_id == bindparam("saga"))
        key = keys.c.endpoint == context.endpoint
        self._some = (
            select(timeouts.c.id, timeouts.c.created, timeouts.c.place)
            .where(*of_saga, timeouts.c.id > bindparam("after"))
            .order_by(timeouts.c.id)
            .limit(AT_ONCE)
        )
        self._keys = (
            select(keys.c.id)
            .where(key, self._among(keys.c.id))
            .order_by(keys.c.id)
            .with_for_update()
        )
        names = ("due", "original_due", "id", "destination", "attempts", "run_id", "maybe_sent")
        columns: list[ColumnElement[Any]] = [
            timeouts.c[name] for name in (*names, "hidden_by", "created", "place")
        ]
        self._labels = LabelRows(context)
        self._rows: Final[Select[Any]] = (
            select(*columns, headers_of_labelled(timeouts))
            .where(*of_saga, self._among(timeouts.c.id))
            .with_for_update(skip_locked=True)
        )
        one_by_one = context.locks_what_it_reads
        id_ = keys.c.id == bindparam("id_") if one_by_one else self._among(keys.c.id)
        tombstone = {"state": TimeoutState.CANCELLED.value, "closed_at": bindparam("at_")}
        tombstone["maybe_sent"] = bindparam("sent_")
        self._close: Final[Update] = update(keys).where(key, id_).values(**tombstone)
        removed = at_place(context) if one_by_one else (*of_saga, self._among(timeouts.c.id))
        self._remove: Final[Delete] = delete(timeouts).where(*removed)

    def cancel(
        self, order: SagaClear, transaction: Transaction | None, *, remember: bool = False
    ) -> list[str]:
        """Cancel the free timeouts that *order* affects; return their ids.

        With *remember*, the order is recorded, and has no effect a second time.
        """
        after, cancelled = "", list[str]()
        while True:

            def work(connection: Connection, after: str = after) -> _Part | None:
                return self._cancel(connection, order, after, remember)

            if transaction is None:
                part = self._context.database.run(work)
            else:
                part = work(as_connection(transaction))
            if part is None:
                return cancelled
            cancelled += part.cancelled
            if part.is_last:
                return cancelled
            after = part.last

    def _cancel(
        self, connection: Connection, order: SagaClear, after: str, remember: bool
    ) -> _Part | None:
        """Cancel the first timeouts after the id *after*; None if *order* was carried out."""
        if remember:
            self._cleared.lock(connection, alone=True)
            known = self._cleared.read(connection, [order.saga_id]).get(order.saga_id)
            if known is not None and known.order_id == order.order_id:
                return None
        given = {"saga": order.saga_id}
        rows = connection.execute(self._some, {**given, "after": after}).all()
        wanted = [row.id for row in rows if _reaches(order, row)]
        locked = self._lock(connection, given, wanted) if wanted else ()
        # Another message may have replaced a timeout before its row was locked.
        free = free_rows(connection, self._context, [row for row in locked if _reaches(order, row)])
        if free:
            self._end(connection, given, free, order.channel)
        if free or not remember:
            self._audit.write(connection, _entry_of_clear(order, len(free)))
        part = _Part([key.id for key in free], rows[-1].id if rows else after, len(rows) < AT_ONCE)
        if remember:
            self._cleared.remember(connection, order, is_complete=part.is_last)
            reach("changing.clear_remembered")
        return part

    def _lock(
        self, connection: Connection, given: dict[str, Any], ids: Sequence[str]
    ) -> Sequence[Row[Any]]:
        """Lock keys and rows; return the rows that could be locked."""
        if self._context.locks_what_it_reads:
            lock_endpoint(connection, self._context)
            return connection.execute(self._rows, {**given, "ids": ids}).all()
        connection.execute(self._keys, {"ids": ids})
        rows = connection.execute(self._rows, {**given, "ids": ids}).all()
        missing = set(ids).difference(row.id for row in rows)
        if not missing or not self._context.database.dialect.row_locks:
            return rows
        # A claim also locks rows for a moment, to flag them: see ``TimeoutCommands``.
        lock_endpoint(connection, self._context)
        more = connection.execute(self._rows, {**given, "ids": sorted(missing)}).all()
        return [*rows, *more]

    def _end(
        self,
        connection: Connection,
        given: dict[str, Any],
        free: dict[Key, Any],
        channel: str | None,
    ) -> None:
        at = self._context.now(connection)
        for sent in (False, True):
            ids = sorted(key.id for key, (_, maybe_sent) in free.items() if maybe_sent is sent)
            self._each(connection, self._close, ids, {"at_": at, "sent_": int(sent)})
            reach("changing.key_cancelled")
        if self._context.locks_what_it_reads:
            keys = [{"due_": key.due, "id_": key.id} for key in sorted(free)]
            execute_many(connection, self._remove, keys)
        else:
            connection.execute(self._remove, {**given, "ids": [key.id for key in free]})
        labelled = [(key, row.labelled) for key, (row, _) in free.items()]
        self._labels.remove(connection, labelled)
        reach("changing.row_cancelled")
        entries = [entry_of(row, at) for row, _ in free.values()]
        record(connection, self._context, "cancelled", entries, channel)
        reach("changing.cancelled")

    def _each(
        self, connection: Connection, statement: Update, ids: Sequence[str], values: dict[str, Any]
    ) -> None:
        if self._context.locks_what_it_reads:
            execute_many(connection, statement, [{**values, "id_": one} for one in ids])
        elif ids:
            connection.execute(statement, {**values, "ids": ids})

    def _among(self, id_: ColumnElement[Any]) -> ColumnElement[bool]:
        return among_ids(self._context, id_)


def _through(channel: str | None) -> ChangedBy:
    return ChangedBy(channel=channel or API)


def _entry_of_clear(order: SagaClear, cancelled: int) -> AuditEntry:
    by, selection = _through(order.channel), {"saga_id": order.saga_id}
    return AuditEntry(action="cancel-saga", by=by, selection=selection, changed=cancelled)


def free_rows(
    connection: Connection, context: StoreContext, rows: Sequence[Row[Any]]
) -> dict[Key, tuple[Row[Any], bool]]:
    """Return the locked *rows* neither hidden nor in dispatch, each with its flag."""
    if not rows:
        return {}
    claims = [one for one in claims_of(connection, context) if may_have_sent(context, one)]
    fences = [] if context.database.dialect.row_locks else _alive(connection, context, claims)
    free: dict[Key, tuple[Row[Any], bool]] = {}
    for row in rows:
        key = Key(row.due, row.id)
        if row.hidden_by is None and not _covered(key, fences):
            free[key] = row, bool(row.maybe_sent) or _covered(key, claims)
    return free


def _alive(connection: Connection, context: StoreContext, claims: Sequence[Claim]) -> list[Claim]:
    if not claims:
        return []
    now = context.now(connection)
    dead = context.liveness.dead_owners({claim.owner for claim in claims})
    return [one for one in claims if one.claimed_until > now and one.owner not in dead]


def _covered(key: Key, claims: Sequence[Claim]) -> bool:
    return any(claim.interval.covers(key) for claim in claims)


@dataclass(frozen=True, slots=True)
class _LockedTimeout:
    """A pending timeout whose key and row we have locked."""

    row: Any
    maybe_sent: bool


_NOTHING_CHANGED: Final = {
    *(CancelResult.TOO_LATE, CancelResult.UNKNOWN),
    *(ChangeResult.TOO_LATE, ChangeResult.UNKNOWN),
}


class TimeoutCommands:
    """Cancels and reschedules timeouts of one endpoint."""

    def __init__(self, context: StoreContext, audit: Audit) -> None:
        self._context = context
        self.audit = audit
        timeouts, keys = context.tables.timeouts, context.tables.keys
        one_key = (keys.c.endpoint == context.endpoint, keys.c.id == bindparam("id"))
        self._peek = select(keys).where(*one_key)
        self._key = select(keys).where(*one_key).with_for_update()
        one_row = at_place(context)
        self._row = select(timeouts).where(*one_row).with_for_update(skip_locked=True)
        self._remove = delete(timeouts).where(*one_row)
        self._labels = LabelRows(context)
        self._change_key = update(keys).where(
            keys.c.endpoint == context.endpoint, keys.c.id == bindparam("id_")
        )

    def cancel(
        self, timeout_id: str, channel: str | None, by: ChangedBy | None = None
    ) -> CancelResult:
        """Cancel a timeout, or leave a tombstone for an unknown id."""

        def work(connection: Connection) -> CancelResult:
            result = self.cancel_in(connection, timeout_id, channel)
            self._audit_change(connection, "cancel", timeout_id, result, by or _through(channel))
            return result

        return self._context.database.run(work)

    def reschedule(
        self,
        timeout_id: str,
        due: Micros,
        action: str,
        channel: str | None,
        by: ChangedBy | None = None,
    ) -> ChangeResult:
        """Move a timeout to *due*, with all its columns; *action* is its name in the audit."""

        def work(connection: Connection) -> ChangeResult:
            result = self._reschedule(connection, timeout_id, due, channel)
            by_whom = by or _through(channel)
            self._audit_change(connection, action, timeout_id, result, by_whom, due=due)
            return result

        return self._context.database.run(work)

    def _audit_change(
        self,
        connection: Connection,
        action: str,
        timeout_id: str,
        result: CancelResult | ChangeResult,
        by: ChangedBy,
        **more: Any,
    ) -> None:
        entry = AuditEntry(
            action=action,
            by=by,
            selection={"id": timeout_id, **more, "result": result.value},
            changed=int(result not in _NOTHING_CHANGED),
        )
        self.audit.write(connection, entry)

    def replace(
        self, connection: Connection, timeout: Timeout, row: dict[str, Any], content: bytes
    ) -> RepeatKind | None:
        """Replace the pending timeout of the same id by *timeout*, whose row is *row*.

        Return None, with nothing changed, if the id is not pending, if it is being dispatched or
        moved, or if both messages were sent at the same instant.
        """
        if self._is_row_locked(connection, timeout.id):
            return None
        key = connection.execute(self._key, {"id": timeout.id}).first()
        if key is None or key.state != TimeoutState.PENDING:
            return None
        locked = self._lock_pending(connection, Key(key.due, timeout.id))
        if locked is None or timeout.created == locked.row.created:
            return None
        if timeout.created < locked.row.created:
            return RepeatKind.SUPERSEDED
        remembered = unpack(key.content) or Remembered(content)
        packed = remembered.replaced_by(timeout, content).pack()
        self._change_key_of(connection, key, timeout.due, content=packed)
        self._rewrite(connection, locked, row)
        self._labels.remove(connection, [_headers(locked)])
        self._labels.insert(connection, [(timeout.key, row["headers"])])
        at = self._context.now(connection)
        replaced = entry(timeout.key, at, timeout.destination, 0, None)
        record(connection, self._context, "replaced", [replaced])
        return RepeatKind.REPLACED

    def cancel_in(
        self, connection: Connection, timeout_id: str, channel: str | None
    ) -> CancelResult:
        """Cancel a timeout in the transaction of *connection*."""
        if self._is_row_locked(connection, timeout_id):
            return CancelResult.TOO_LATE
        key = connection.execute(self._key, {"id": timeout_id}).first()
        if key is None:
            if self.bar(connection, timeout_id):
                return CancelResult.WILL_BE_CANCELLED
            # It was stored between the two statements; now it exists, and can be locked.
            key = connection.execute(self._key, {"id": timeout_id}).one()
        if key.state == TimeoutState.CANCELLED:
            return _cancelled_before(key)
        if key.state != TimeoutState.PENDING:
            return CancelResult.TOO_LATE
        locked = self._lock_pending(connection, Key(key.due, timeout_id))
        if locked is None:
            return CancelResult.TOO_LATE
        at = self._context.now(connection)
        connection.execute(
            self._change_key.values(
                state=TimeoutState.CANCELLED.value, closed_at=at, maybe_sent=int(locked.maybe_sent)
            ),
            {"id_": timeout_id},
        )
        reach("changing.key_cancelled")
        self._remove_row(connection, locked)
        self._labels.remove(connection, [_headers(locked)])
        reach("changing.row_cancelled")
        record(connection, self._context, "cancelled", [entry_of(locked.row, at)], channel)
        reach("changing.cancelled")
        return CancelResult.MAYBE_SENT if locked.maybe_sent else CancelResult.CANCELLED

    def _reschedule(
        self, connection: Connection, timeout_id: str, due: Micros, channel: str | None
    ) -> ChangeResult:
        if self._is_row_locked(connection, timeout_id):
            return ChangeResult.TOO_LATE
        key = connection.execute(self._key, {"id": timeout_id}).first()
        if key is None or key.state == TimeoutState.CANCELLED:
            return ChangeResult.UNKNOWN
        if key.state != TimeoutState.PENDING:
            return ChangeResult.TOO_LATE
        locked = self._lock_pending(connection, Key(key.due, timeout_id))
        if locked is None:
            return ChangeResult.TOO_LATE
        self._change_key_of(connection, key, due)
        placed = {"due": due, "original_due": None}
        self._rewrite(connection, locked, {**locked.row._mapping, **placed})
        self._labels.move(connection, [(_headers(locked), due)])
        at = self._context.now(connection)
        row = locked.row
        moved = entry(Key(due, timeout_id), at, row.destination, row.attempts, row.run_id)
        record(connection, self._context, "rescheduled", [moved], channel)
        return ChangeResult.MAYBE_SENT if locked.maybe_sent else ChangeResult.CHANGED

    def _change_key_of(self, connection: Connection, key: Any, due: Micros, **more: Any) -> None:
        changed = self._change_key.values(due=due, version=key.version + 1, **more)
        connection.execute(changed, {"id_": key.id})
        reach("changing.key_moved")

    def _rewrite(self, connection: Connection, locked: _LockedTimeout, row: dict[str, Any]) -> None:
        """Replace the *locked* row by *row*; a maybe-sent timeout stays maybe sent."""
        self._remove_row(connection, locked)
        reach("changing.row_taken_out")
        moved = {**row, "version": locked.row.version + 1, "maybe_sent": int(locked.maybe_sent)}
        connection.execute(insert(self._context.tables.timeouts), moved)
        reach("changing.row_put_back")

    def _is_row_locked(self, connection: Connection, timeout_id: str) -> bool:
        """On MySQL, lock a pending timeout's row before its key; true if that is impossible.

        There, SKIP LOCKED queues for the row lock for a moment before it skips the row. If the key
        were locked meanwhile, a dispatcher that closes could deadlock with us, and the server might
        choose the dispatcher, whose message is sent, as the victim. Under the endpoint's lock there
        is no other change and no claim: so the owner of a row lock is a dispatcher.
        """
        if not self._context.locks_what_it_reads:
            return False
        lock_endpoint(connection, self._context)
        seen = connection.execute(self._peek, {"id": timeout_id}).first()
        if seen is None or seen.state != TimeoutState.PENDING:
            return False
        if self._lock_row(connection, Key(seen.due, timeout_id)) is not None:
            return False
        # Gone, or locked: its dispatcher's outcome counts, once that is committed.
        again = connection.execute(self._peek, {"id": timeout_id}).first()
        return again is not None and again.state == TimeoutState.PENDING

    def bar(self, connection: Connection, timeout_id: str) -> bool:
        """Leave a tombstone, so that a store message that may be on its way is dropped."""
        tombstone = {
            "endpoint": self._context.endpoint,
            "id": timeout_id,
            "due": 0,
            "version": 0,
            "state": TimeoutState.CANCELLED.value,
            "closed_at": self._context.now(connection),
            "maybe_sent": 0,
            "content": AWAITED,
        }
        return insert_missing(connection, self._context.tables.keys, [tombstone]) == 1

    def _lock_pending(self, connection: Connection, key: Key) -> _LockedTimeout | None:
        """Lock and return the pending timeout of *key*; None while it is dispatched or moved.

        Its key is locked already, so its row cannot go away: if it cannot be locked, another
        transaction has locked it.
        """
        row = self._lock_row(connection, key)
        if row is None and self._context.database.dialect.row_locks:
            # A claim also locks rows for a moment, to flag them. Under the endpoint's lock no claim
            # does so, and a row that is still locked belongs to a dispatcher.
            lock_endpoint(connection, self._context)
            row = self._lock_row(connection, key)
        if row is None or row.hidden_by is not None:
            return None  # dispatched here, or moving to another place that will dispatch it
        claims = [
            claim
            for claim in claims_of(connection, self._context)
            if claim.interval.covers(key) and may_have_sent(self._context, claim)
        ]
        has_row_locks = self._context.database.dialect.row_locks
        if not has_row_locks and _alive(connection, self._context, claims):
            return None
        return _LockedTimeout(row, bool(row.maybe_sent or claims))

    def _lock_row(self, connection: Connection, key: Key) -> Any:
        return connection.execute(self._row, {"due_": key.due, "id_": key.id}).first()

    def _remove_row(self, connection: Connection, locked: _LockedTimeout) -> None:
        connection.execute(self._remove, {"due_": locked.row.due, "id_": locked.row.id})


def _headers(locked: _LockedTimeout) -> Headers:
    return Key(locked.row.due, locked.row.id), locked.row.headers


def _cancelled_before(key: Any) -> CancelResult:
    if key.content == AWAITED:
        return CancelResult.WILL_BE_CANCELLED
    return CancelResult.MAYBE_SENT if key.maybe_sent else CancelResult.CANCELLED


def among_ids(context: StoreContext, id_: ColumnElement[Any]) -> ColumnElement[bool]:
    """Return the condition that *id_* is in the parameter ``ids``, a few hundred ids."""
    if context.database.dialect.name == "postgresql":
        return id_ == any_(bindparam("ids", type_=TextArray()))
    return id_.in_(bindparam("ids", expanding=True))
