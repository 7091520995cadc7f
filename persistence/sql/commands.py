"""Cancelling and rescheduling while dispatchers are at work: one wins, and both know."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Delete,
    Row,
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
from timeoutmgr.crashpoints import reach
from timeoutmgr.database import as_connection
from timeoutmgr.database.arrays import TextArray
from timeoutmgr.database.engine import execute_many
from timeoutmgr.message.instants import Micros
from timeoutmgr.persistence.remembered import AWAITED, Remembered, unpack

from .batch_writes import insert_missing
from .claim.rows import Claim, claims_of, may_have_sent
from .context import StoreContext, lock_endpoint
from .rows import due_of, entry, record

# --- cancelling the timeouts of a saga, five hundred by the statements that one takes ---------

AT_ONCE: Final = 500
"""Timeouts that one transaction cancels, where it is not a caller's."""


@dataclass(frozen=True, slots=True)
class _Saga:
    """Which timeouts are meant: of *saga*, sent *until* an instant, and not among *keeping*.

    *channel* is the way by which the order came.
    """

    saga: str
    until: Micros
    keeping: Collection[str]
    channel: str | None


class SagaCommands:
    """Cancels the timeouts of sagas; ``locks`` explains the order of locks."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        timeouts, keys = context.tables.timeouts, context.tables.keys
        of_saga = (
            timeouts.c.endpoint == context.endpoint,
            timeouts.c.saga_id == bindparam("saga"),
            timeouts.c.created <= bindparam("until"),
        )
        key = keys.c.endpoint == context.endpoint
        self._ids = (
            select(timeouts.c.id)
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
        names = ("due", "original_due", "id", "destination", "attempts", "run_id")
        columns = [timeouts.c[name] for name in (*names, "maybe_sent", "hidden_by")]
        self._rows = (
            select(*columns)
            .where(*of_saga, self._among(timeouts.c.id))
            .with_for_update(skip_locked=True)
        )
        one_by_one = context.locks_what_it_reads
        id_ = keys.c.id == bindparam("id_") if one_by_one else self._among(keys.c.id)
        self._close: Final[Update] = (
            update(keys)
            .where(key, id_)
            .values(
                state=TimeoutState.CANCELLED.value,
                closed_at=bindparam("at_"),
                maybe_sent=bindparam("sent_"),
            )
        )
        self._remove: Final[Delete] = delete(timeouts).where(
            *(
                (
                    timeouts.c.endpoint == context.endpoint,
                    timeouts.c.due == bindparam("due_"),
                    timeouts.c.id == bindparam("id_"),
                )
                if one_by_one
                else (*of_saga, self._among(timeouts.c.id))
            )
        )

    def cancel(
        self,
        saga_id: str,
        until: Micros,
        keeping: Collection[str],
        transaction: Transaction | None,
        channel: str | None,
    ) -> int:
        """Cancel the timeouts of a saga, sent *until* then, that are free; return how many."""
        saga, after, cancelled = _Saga(saga_id, until, keeping, channel), "", 0
        while True:

            def work(connection: Connection, after: str = after) -> tuple[Sequence[str], int]:
                return self._cancel(connection, saga, after)

            if transaction is None:
                ids, count = self._context.database.run(work)
            else:
                ids, count = work(as_connection(transaction))
            cancelled += count
            if len(ids) < AT_ONCE:
                return cancelled
            after = ids[-1]

    def _cancel(self, connection: Connection, saga: _Saga, after: str) -> tuple[Sequence[str], int]:
        given = {"saga": saga.saga, "until": saga.until}
        ids = connection.execute(self._ids, {**given, "after": after}).scalars().all()
        wanted = [each for each in ids if each not in saga.keeping]
        free = self._free(connection, self._lock(connection, given, wanted)) if wanted else {}
        if free:
            self._end(connection, given, free, saga.channel)
        return ids, len(free)

    def _lock(
        self, connection: Connection, given: dict[str, Any], ids: Sequence[str]
    ) -> Sequence[Row[Any]]:
        """Lock keys and rows; return the rows that are to be had."""
        if self._context.locks_what_it_reads:
            lock_endpoint(connection, self._context)
            return connection.execute(self._rows, {**given, "ids": ids}).all()
        connection.execute(self._keys, {"ids": ids})
        rows = connection.execute(self._rows, {**given, "ids": ids}).all()
        missing = set(ids).difference(row.id for row in rows)
        if not missing or not self._context.database.dialect.row_locks:
            return rows
        # A claim locks rows too, for a moment, to mark them: see ``TimeoutCommands``.
        lock_endpoint(connection, self._context)
        more = connection.execute(self._rows, {**given, "ids": sorted(missing)}).all()
        return [*rows, *more]

    def _free(self, connection: Connection, rows: Sequence[Row[Any]]) -> dict[Key, Any]:
        """Return the *rows* neither hidden nor in dispatch, each with its ``maybe_sent``."""
        context = self._context
        claims = [one for one in claims_of(connection, context) if may_have_sent(context, one)]
        fences = [] if context.database.dialect.row_locks else self._alive(connection, claims)
        free: dict[Key, Any] = {}
        for row in rows:
            key = Key(row.due, row.id)
            if row.hidden_by is None and not _covered(key, fences):
                free[key] = row, bool(row.maybe_sent) or _covered(key, claims)
        return free

    def _alive(self, connection: Connection, claims: Sequence[Claim]) -> list[Claim]:
        if not claims:
            return []
        now = self._context.now(connection)
        dead = self._context.liveness.dead_owners({claim.owner for claim in claims})
        return [one for one in claims if one.claimed_until > now and one.owner not in dead]

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
        reach("changing.row_cancelled")
        entries = [
            entry(Key(due_of(row), row.id), at, row.destination, row.attempts, row.run_id)
            for row, _ in free.values()
        ]
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
        if self._context.database.dialect.name == "postgresql":
            return id_ == any_(bindparam("ids", type_=TextArray()))
        return id_.in_(bindparam("ids", expanding=True))


def _covered(key: Key, claims: Sequence[Claim]) -> bool:
    return any(claim.interval.covers(key) for claim in claims)


@dataclass(frozen=True, slots=True)
class _Held:
    """A pending timeout whose key and row are locked by us."""

    row: Any
    maybe_sent: bool


class TimeoutCommands:
    """Cancels and reschedules timeouts of one endpoint."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        timeouts, keys = context.tables.timeouts, context.tables.keys
        one_key = (keys.c.endpoint == context.endpoint, keys.c.id == bindparam("id"))
        self._peek = select(keys).where(*one_key)
        self._key = select(keys).where(*one_key).with_for_update()
        one_row = (
            timeouts.c.endpoint == context.endpoint,
            timeouts.c.due == bindparam("due_"),
            timeouts.c.id == bindparam("id_"),
        )
        self._row = select(timeouts).where(*one_row).with_for_update(skip_locked=True)
        self._remove = delete(timeouts).where(*one_row)
        self._change_key = update(keys).where(
            keys.c.endpoint == context.endpoint, keys.c.id == bindparam("id_")
        )

    def cancel(self, timeout_id: str, channel: str | None) -> CancelResult:
        """Cancel a timeout, or leave a tombstone for an id that was never seen."""
        return self._context.database.run(
            lambda connection: self.cancel_in(connection, timeout_id, channel)
        )

    def reschedule(self, timeout_id: str, due: Micros) -> ChangeResult:
        """Move a timeout to *due*, with all its columns."""
        return self._context.database.run(
            lambda connection: self._reschedule(connection, timeout_id, due)
        )

    def replace(
        self, connection: Connection, timeout: Timeout, row: dict[str, Any], content: bytes
    ) -> RepeatKind | None:
        """Put *timeout*, whose row is *row*, in the place of the pending timeout of its id.

        Return None, with nothing changed, if no timeout of the id is pending, if it is being
        dispatched or moved, or if both were sent at one instant.
        """
        if self._is_in_other_hands(connection, timeout.id):
            return None
        key = connection.execute(self._key, {"id": timeout.id}).first()
        if key is None or key.state != TimeoutState.PENDING:
            return None
        held = self._lock_pending(connection, Key(key.due, timeout.id))
        if held is None or timeout.created == held.row.created:
            return None
        if timeout.created < held.row.created:
            return RepeatKind.SUPERSEDED
        remembered = unpack(key.content) or Remembered(content)
        packed = remembered.replaced_by(timeout, content).pack()
        self._change_key_of(connection, key, timeout.due, content=packed)
        self._put_in_place(connection, held, row)
        at = self._context.now(connection)
        replaced = entry(timeout.key, at, timeout.destination, 0, None)
        record(connection, self._context, "replaced", [replaced])
        return RepeatKind.REPLACED

    def cancel_in(
        self, connection: Connection, timeout_id: str, channel: str | None
    ) -> CancelResult:
        """Cancel a timeout in the transaction of *connection*."""
        if self._is_in_other_hands(connection, timeout_id):
            return CancelResult.TOO_LATE
        key = connection.execute(self._key, {"id": timeout_id}).first()
        if key is None:
            if self._bar(connection, timeout_id):
                return CancelResult.WILL_BE_CANCELLED
            # It was stored between the two statements; now it is there, and ours to lock.
            key = connection.execute(self._key, {"id": timeout_id}).one()
        if key.state == TimeoutState.CANCELLED:
            return _cancelled_before(key)
        if key.state != TimeoutState.PENDING:
            return CancelResult.TOO_LATE
        held = self._lock_pending(connection, Key(key.due, timeout_id))
        if held is None:
            return CancelResult.TOO_LATE
        at = self._context.now(connection)
        connection.execute(
            self._change_key.values(
                state=TimeoutState.CANCELLED.value, closed_at=at, maybe_sent=int(held.maybe_sent)
            ),
            {"id_": timeout_id},
        )
        reach("changing.key_cancelled")
        self._remove_row(connection, held)
        reach("changing.row_cancelled")
        key_then = Key(due_of(held.row), timeout_id)
        self._record_event(connection, "cancelled", held, key_then, at, channel)
        reach("changing.cancelled")
        return CancelResult.MAYBE_SENT if held.maybe_sent else CancelResult.CANCELLED

    def _reschedule(self, connection: Connection, timeout_id: str, due: Micros) -> ChangeResult:
        if self._is_in_other_hands(connection, timeout_id):
            return ChangeResult.TOO_LATE
        key = connection.execute(self._key, {"id": timeout_id}).first()
        if key is None or key.state == TimeoutState.CANCELLED:
            return ChangeResult.UNKNOWN
        if key.state != TimeoutState.PENDING:
            return ChangeResult.TOO_LATE
        held = self._lock_pending(connection, Key(key.due, timeout_id))
        if held is None:
            return ChangeResult.TOO_LATE
        self._change_key_of(connection, key, due)
        placed = {"due": due, "original_due": None}
        self._put_in_place(connection, held, {**held.row._mapping, **placed})
        at = self._context.now(connection)
        self._record_event(connection, "rescheduled", held, Key(due, timeout_id), at)
        return ChangeResult.MAYBE_SENT if held.maybe_sent else ChangeResult.CHANGED

    def _change_key_of(self, connection: Connection, key: Any, due: Micros, **more: Any) -> None:
        changed = self._change_key.values(due=due, version=key.version + 1, **more)
        connection.execute(changed, {"id_": key.id})
        reach("changing.key_moved")

    def _put_in_place(self, connection: Connection, held: _Held, row: dict[str, Any]) -> None:
        """Replace the *held* row by *row*; a maybe-sent timeout stays in doubt."""
        self._remove_row(connection, held)
        reach("changing.row_taken_out")
        moved = {**row, "version": held.row.version + 1, "maybe_sent": int(held.maybe_sent)}
        connection.execute(insert(self._context.tables.timeouts), moved)
        reach("changing.row_put_back")

    def _is_in_other_hands(self, connection: Connection, timeout_id: str) -> bool:
        """Lock the row of a pending timeout before its key, on MySQL; true if it is not to be had.

        There SKIP LOCKED stands in the row's line for a moment before it passes by. Held
        meanwhile, the key would close a circle with a dispatcher that closes, and it is the
        dispatcher that the server may then pick to fail, with its message sent. Behind the
        endpoint's lock there is no other change and no claim: the owner of the row lock dispatches
        it.
        """
        if not self._context.locks_what_it_reads:
            return False
        lock_endpoint(connection, self._context)
        seen = connection.execute(self._peek, {"id": timeout_id}).first()
        if seen is None or seen.state != TimeoutState.PENDING:
            return False
        if self._lock_row(connection, Key(seen.due, timeout_id)) is not None:
            return False
        # Gone, or held: the outcome of its dispatcher counts, once it is committed.
        again = connection.execute(self._peek, {"id": timeout_id}).first()
        return again is not None and again.state == TimeoutState.PENDING

    def _bar(self, connection: Connection, timeout_id: str) -> bool:
        """Leave a tombstone, so that the store message that may be on its way is dropped."""
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

    def _lock_pending(self, connection: Connection, key: Key) -> _Held | None:
        """Return the pending timeout of *key*, locked, or None while it is dispatched or moved.

        Its key is locked already, so that its row cannot go away: another transaction holds a row
        that cannot be locked.
        """
        row = self._lock_row(connection, key)
        if row is None and self._context.database.dialect.row_locks:
            # A claim locks rows too, for a moment, to flag them. Behind the endpoint's
            # lock it is done with that, and a row that is still held is a dispatcher's.
            lock_endpoint(connection, self._context)
            row = self._lock_row(connection, key)
        if row is None or row.hidden_by is not None:
            return None  # dispatched here, or on its way to another place that will dispatch it
        claims = [
            claim
            for claim in claims_of(connection, self._context)
            if claim.interval.covers(key) and may_have_sent(self._context, claim)
        ]
        if claims and not self._context.database.dialect.row_locks:
            now = self._context.now(connection)
            dead = self._context.liveness.dead_owners({claim.owner for claim in claims})
            if any(claim.claimed_until > now and claim.owner not in dead for claim in claims):
                return None
        return _Held(row, bool(row.maybe_sent or claims))

    def _lock_row(self, connection: Connection, key: Key) -> Any:
        return connection.execute(self._row, {"due_": key.due, "id_": key.id}).first()

    def _remove_row(self, connection: Connection, held: _Held) -> None:
        connection.execute(self._remove, {"due_": held.row.due, "id_": held.row.id})

    def _record_event(
        self,
        connection: Connection,
        event: str,
        held: _Held,
        key: Key,
        at: Micros,
        channel: str | None = None,
    ) -> None:
        row = held.row
        rows: Sequence[dict[str, Any]] = [entry(key, at, row.destination, row.attempts, row.run_id)]
        record(connection, self._context, event, rows, channel)


def _cancelled_before(key: Any) -> CancelResult:
    if key.content == AWAITED:
        return CancelResult.WILL_BE_CANCELLED
    return CancelResult.MAYBE_SENT if key.maybe_sent else CancelResult.CANCELLED
