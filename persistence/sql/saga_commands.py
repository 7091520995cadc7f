"""Cancelling the timeouts of a saga, five hundred by the statements that one takes."""

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
    select,
    update,
)

from timeoutmgr.contracts import Key, TimeoutState, Transaction
from timeoutmgr.crashpoints import reach
from timeoutmgr.database import as_connection
from timeoutmgr.database.arrays import TextArray
from timeoutmgr.database.engine import execute_many
from timeoutmgr.message.instants import Micros

from .claim.rows import Claim, claims_of, may_have_sent
from .context import StoreContext
from .locks import lock_endpoint
from .rows import due_of, entry, record

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
