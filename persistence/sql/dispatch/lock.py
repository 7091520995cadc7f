"""Lock timeouts for dispatch: by row locks, or by fencing a claim on databases without them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import uuid4

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Row,
    Table,
    bindparam,
    case,
    exists,
    func,
    select,
    update,
)

from timeoutmgr.contracts import Key, LockedTimeouts, Outcome, OutcomeKind, Timeout, Transaction
from timeoutmgr.crashpoints import reach
from timeoutmgr.database import as_connection
from timeoutmgr.database.commits import after_commit
from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.message.instants import Micros, duration_micros
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.persistence.sql.claim.rows import NewClaim, add_claims, claims_of, flag_maybe_sent
from timeoutmgr.persistence.sql.context import StoreContext
from timeoutmgr.persistence.sql.pauses import Parking, parked_at
from timeoutmgr.persistence.sql.rows import COLUMNS, PLACED, OnKeys, from_placed

from .outcomes import OutcomeWriter

logger = logging.getLogger(__name__)

# --- rows of timeouts, with limited bytes of bodies in memory -------------------------------------
# A hundred bodies of the largest size would take gigabytes, several times over while they are sent.
# A process that dies of this would take them again, and nothing after them would ever be sent. So
# the first answer leaves large bodies out; a second statement reads as many as fit.

ALONG: Final = 64 * 1024
"""Maximum bytes of a body that is read with its row."""
TOGETHER: Final = 8 * 1024 * 1024
"""Maximum bytes of bodies in memory together, if there are large bodies."""

_BODY: Final = COLUMNS.index("body")
_PARKED_AT: Final[int] = -3
_CLAIMED: Final[int] = -2
_NOW: Final[int] = -1
"""Positions of the last columns of a locked row: positions are faster than names."""

Rows = Mapping[Key, Row[Any]]


def columns_with_size(table: Table, names: Iterable[str]) -> Sequence[ColumnElement[Any]]:
    """Return the columns *names*, where a large body is None, and the ``size`` of the body."""
    size = func.length(table.c.body)
    along = case((size <= ALONG, table.c.body)).label("body")
    return *(along if name == "body" else table.c[name] for name in names), size.label("size")


def fitting(rows: Sequence[Row[Any]]) -> Sequence[Row[Any]]:
    """Return as many of the first *rows* as fit, but at least one."""
    if all(row.body is not None for row in rows):
        return rows
    total = 0
    for number, row in enumerate(rows):
        total += row.size
        if number and total > TOGETHER:
            return rows[:number]
    return rows


class Bodies:
    """Reads the large bodies of one endpoint's timeouts."""

    def __init__(self, context: StoreContext) -> None:
        timeouts = context.tables.timeouts
        self._large = OnKeys(context, select(timeouts.c.due, timeouts.c.id, timeouts.c.body).where)

    def first_of(self, connection: Connection, rows: Rows) -> tuple[Rows, Mapping[Key, bytes]]:
        """Return as many of the first *rows* as fit, and their large bodies.

        The rows are locked, or from one snapshot, so the bodies still exist.
        """
        if all(row[_BODY] is not None for row in rows.values()):
            return rows, {}
        count = len(fitting(list(rows.values())))
        fit = dict(list(rows.items())[:count])
        large = [key for key, row in fit.items() if row[_BODY] is None]
        if not large:
            return fit, {}
        found = connection.execute(*self._large.of(large))
        return fit, {Key(due, id_): body for due, id_, body in found}


def timeout_of(key: Key, row: Row[Any], bodies: Mapping[Key, bytes]) -> Timeout:
    """Return the timeout of *row*; a large body is in *bodies*."""
    values = row[: len(PLACED)]
    if row[_BODY] is None:
        values = (*values[:_BODY], bodies[key], *values[_BODY + 1 :])
    return from_placed(values)


@dataclass(frozen=True, slots=True)
class DispatchRows:
    """The rows of some keys."""

    rows: Rows = field(default_factory=dict)
    bodies: Mapping[Key, bytes] = field(default_factory=dict)
    """Bodies that were not read with their rows."""
    left: Sequence[Key] = ()
    """Keys of free rows whose bodies do not fit into memory with the others. They are unlocked once
    the rows are closed."""
    passed_by: Collection[Key] = frozenset()
    """Asked keys without a free row, which other transactions may have locked."""
    parked: Collection[Key] = frozenset()
    """Asked keys whose timeouts this transaction has parked."""


class LockedRows:
    """Timeouts that are locked for a dispatch; ``close`` is the given function, once."""

    def __init__(
        self, context: StoreContext, found: DispatchRows, close: Callable[[Sequence[Outcome]], None]
    ) -> None:
        self._clock = context.clock
        self._read_at = context.clock.now()
        if context.has_database_clock and found.rows:
            # The latest time: each row is read at its own moment.
            self._read_at = max(row[_NOW] for row in found.rows.values())
        # Read the monotonic clock after the database clock: the error makes us late, never early.
        self._seen = context.clock.monotonic()
        self.timeouts: Final[Sequence[Timeout]] = [
            timeout_of(key, row, found.bodies) for key, row in found.rows.items()
        ]
        self.left: Final = found.left
        self._close = close
        self.ended = False
        self.recorded = False

    def now(self) -> Micros:
        """Return the time that due times are compared with, based on the time read with the rows.

        It advances with the monotonic clock, even if the host's clock is set.
        """
        return self._read_at + round((self._clock.monotonic() - self._seen) * 1_000_000)

    def close(self, outcomes: Sequence[Outcome]) -> None:
        """Record *outcomes* and commit."""
        if self.ended:
            raise RuntimeError("these timeouts were closed already")
        self.ended = True
        self._close(outcomes)
        self.recorded = True


class DispatchLock:
    """Locks timeouts of one endpoint for their dispatch."""

    def __init__(self, context: StoreContext, notify_stored: Callable[[Micros], None]) -> None:
        self._context = context
        self._notify_stored = notify_stored
        self._closing = OutcomeWriter(context)
        timeouts = context.tables.timeouts
        claims = context.tables.claims
        is_claimed = exists().where(claims.c.token == bindparam("token"))
        self._bodies = Bodies(context)
        self._parking = Parking(context, notify_stored)
        rows = select(
            *columns_with_size(timeouts, PLACED),
            *(timeouts.c.run_id, parked_at(context)),
            *(is_claimed.label("claimed"), context.now_column),
        )
        locked = rows.order_by(timeouts.c.due, timeouts.c.id).with_for_update(
            skip_locked=True, of=timeouts
        )
        free = is_free(context, bindparam("ahead", type_=BigInteger))
        # The keys first: SQLite's search uses the first bound that it gets.
        self._lock = OnKeys(context, lambda keyed: locked.where(keyed, *free))

    def lock_for_dispatch(
        self, token: str, keys: Sequence[Key], ahead: Micros, transaction: Transaction | None
    ) -> AbstractContextManager[LockedTimeouts]:
        """Lock the rows of *keys* that are due by *ahead* from now, until the context ends."""
        if transaction is not None:
            return self._in_transaction(token, keys, ahead, transaction)
        if self._context.database.dialect.row_locks:
            return self._by_row_locks(token, keys, ahead)
        return self._by_fencing(token, keys, ahead)

    @contextmanager
    def _in_transaction(
        self, token: str, keys: Sequence[Key], ahead: Micros, transaction: Transaction
    ) -> Iterator[LockedTimeouts]:
        connection = as_connection(transaction)
        found = self._rows(connection, keys, token, ahead)

        def close(outcomes: Sequence[Outcome]) -> None:
            self._closing.record(connection, token, found.rows, outcomes, found.passed_by)
            after_commit(connection, lambda: self._notify_retries(outcomes))

        yield LockedRows(self._context, found, close)

    @contextmanager
    def _by_row_locks(
        self, token: str, keys: Sequence[Key], ahead: Micros
    ) -> Iterator[LockedTimeouts]:
        locked: LockedRows | None = None

        def close(outcomes: Sequence[Outcome]) -> None:
            with _ending(held):  # commits, or rolls back and translates the error
                self._closing.record(connection, token, found.rows, outcomes, passed_by)
            self._notify_retries(outcomes)

        held, connection, found = self._locked(keys, token, ahead)
        try:
            with _rolling_back(held):
                passed_by = found.passed_by
                asked_token, token = token, self._claim_before_publish(token, found.rows)
                if token != asked_token:
                    passed_by = ()  # the new claim covers only our rows
            locked = LockedRows(self._context, found, close)
            yield locked
        finally:
            if locked is not None and not locked.ended:
                held.__exit__(_NotClosed, _NotClosed(), None)
            if locked is not None:
                self._give_back(token, found.rows, locked, passed_by)

    def _locked(
        self, keys: Sequence[Key], token: str, ahead: Micros
    ) -> tuple[AbstractContextManager[Connection], Connection, DispatchRows]:
        """Begin a transaction, and return it with its locked rows of *keys*.

        It locks no key: timeouts that it has parked, with their keys, are committed before.
        """
        while True:
            held = self._context.database.begin()
            connection = held.__enter__()
            with _rolling_back(held):
                found = self._rows(connection, keys, token, ahead)
            if not found.parked:
                return held, connection, found
            held.__exit__(None, None, None)
            keys = [key for key in keys if key not in found.parked]

    @contextmanager
    def _by_fencing(
        self, token: str, keys: Sequence[Key], ahead: Micros
    ) -> Iterator[LockedTimeouts]:
        database = self._context.database
        fenced, found = database.run(
            lambda connection: self._lock_claim(connection, token, keys, ahead)
        )

        def close(outcomes: Sequence[Outcome]) -> None:
            database.run(
                lambda connection: self._closing.record(connection, fenced, found.rows, outcomes)
            )
            self._notify_retries(outcomes)

        locked = LockedRows(self._context, found, close)
        try:
            yield locked
        finally:
            self._give_back(fenced, found.rows, locked)

    def _notify_retries(self, outcomes: Sequence[Outcome]) -> None:
        """Have the next claims look where timeouts were moved for a retry."""
        tries = [one.next_try for one in outcomes if one.kind is OutcomeKind.RETRY]
        if tries:
            self._notify_stored(min(tries))

    def _rows(
        self, connection: Connection, keys: Sequence[Key], token: str, ahead: Micros
    ) -> DispatchRows:
        """Return the rows of *keys* due by *ahead* from now; locked if the database can."""
        if not keys:
            return DispatchRows()
        asked = set(keys)
        others: dict[str, Any] = {"token": token, "ahead": ahead}
        if not self._context.has_database_clock:
            others["now"] = self._context.clock.now()
        answer = connection.execute(*self._lock.of(keys, **others)).all()
        at = [Key(row[0], row[1]) for row in answer]
        there: Rows = {key: row for key, row in zip(at, answer, strict=True) if key in asked}
        parked: Collection[Key] = ()
        if any([row[_PARKED_AT] is not None for row in answer]):
            found, there = there, self._parking.park(connection, there)
            parked = found.keys() - there.keys()
        rows, bodies = self._bodies.first_of(connection, there)
        left = [key for key in there if key not in rows] if len(rows) < len(there) else []
        if not self._context.database.dialect.row_locks:
            return DispatchRows(rows, bodies, left)
        return DispatchRows(rows, bodies, left, asked.difference(at), parked)

    def _lock_claim(
        self, connection: Connection, token: str, keys: Sequence[Key], ahead: Micros
    ) -> tuple[str, DispatchRows]:
        """Take over the claim of *token*; return the token to close, and the rows."""
        context = self._context
        me, now = context.liveness.name_of(context.me), context.now(connection)
        if token:
            claims = context.tables.claims
            locked = connection.execute(
                update(claims)
                .where(
                    claims.c.token == token,
                    claims.c.endpoint == context.endpoint,
                    claims.c.taken_by.is_(None),
                )
                .values(
                    taken_by=me,
                    taken_at=now,
                    # From now on the dispatcher's session lock counts, not the poller's.
                    owner=me,
                    claimed_until=now + duration_micros(context.settings.claim_time),
                )
            )
            reach("taking.fence_raised")
            if not locked.rowcount:
                return "", DispatchRows()
            # A forged order may have keys beyond its claim, which may belong to another claim.
            [claim] = [one for one in claims_of(connection, context) if one.token == token]
            covered = [key for key in keys if claim.interval.covers(key)]
            return token, self._rows(connection, covered, token, ahead)
        claims_there = claims_of(connection, context)
        free = [k for k in keys if not any(claim.interval.covers(k) for claim in claims_there)]
        found = replace(self._rows(connection, free[:1], token, ahead), left=free[1:])
        if found.rows:
            token = uuid4().hex
            add_claims(connection, context, [NewClaim(token, free[:1])], me, now, locked_by=me)
        return token, found

    def _claim_before_publish(self, token: str, rows: Rows) -> str:
        """Return *token*; if there is no such claim, the token of a new claim on all *rows*.

        A crash after the publish must leave a committed claim: otherwise a later cancel could not
        know that the timeout may have been sent. Overlapping claims of other owners do no harm,
        since the row lock decides.
        """
        context = self._context
        if context.atomic or not rows or all(row[_CLAIMED] for row in rows.values()):
            return token
        new, keys = uuid4().hex, list(rows)
        me = context.liveness.name_of(context.me)

        def work(connection: Connection) -> None:
            add_claims(connection, context, [NewClaim(new, keys)], me, context.now(connection))

        context.database.run(work)
        reach("taking.claim_added")
        return new

    def _give_back(
        self, token: str, rows: Rows, locked: LockedRows, passed_by: Collection[Key] = ()
    ) -> None:
        """End the claim of rows that were locked but not closed; they may have been sent."""
        if locked.recorded or not token:
            return

        def work(connection: Connection) -> None:
            if not (self._context.atomic and self._context.database.dialect.row_locks):
                flag_maybe_sent(connection, self._context, list(rows))
            reach("taking.marked")
            self._closing.end_claim(connection, token, passed_by)

        try:
            self._context.database.run(work)
        except StorageUnavailable as error:
            # The caller's own error propagates; the claim ends by itself a little later.
            logger.warning(
                "dispatcher could not release claim %s, which expires by itself: %s",
                token,
                on_one_line(error),
                extra={"event": "claim_not_released", "endpoint": self._context.endpoint},
            )


def is_free(
    context: StoreContext, ahead: ColumnElement[int] | None = None
) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions that a row may be dispatched now or by *ahead* from now.

    If the host's clock counts, now is the parameter ``now``. A row before its due time is not
    locked: a cancel would take the lock for a running dispatch.
    """
    timeouts = context.tables.timeouts
    now = context.now_or_parameter
    latest = now if ahead is None else now + ahead
    return timeouts.c.hidden_by.is_(None), timeouts.c.due <= latest


class _NotClosed(Exception):
    """Rolls back a transaction whose timeouts were not closed."""


@contextmanager
def _ending(held: AbstractContextManager[Connection]) -> Iterator[None]:
    """End the open transaction *held* with the block: commit, or roll back on any error."""
    with _rolling_back(held):
        yield
    held.__exit__(None, None, None)


@contextmanager
def _rolling_back(held: AbstractContextManager[Connection]) -> Iterator[None]:
    """Roll back the open transaction *held* if the block raises."""
    try:
        yield
    except BaseException as error:
        held.__exit__(type(error), error, error.__traceback__)
        raise
