"""Taking timeouts in hand for dispatch: by row locks, or where there are none by a fence."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import uuid4

from sqlalchemy import BigInteger, ColumnElement, Connection, bindparam, exists, select, update

from timeoutmgr.contracts import Key, Outcome, OutcomeKind, Taken, Timeout, Transaction
from timeoutmgr.crashpoints import reach
from timeoutmgr.database.commits import after_commit
from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.instants import Micros, duration_micros
from timeoutmgr.redaction import on_one_line

from .bodies import Bodies, Rows, columns_with_size, timeout_of
from .claims import NewClaim, add_claims, claims_of
from .closing import Closing
from .conditions import OnKeys
from .context import StoreContext
from .marking import mark
from .rows import PLACED

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """What there is of some keys."""

    rows: Rows = field(default_factory=dict)
    bodies: Mapping[Key, bytes] = field(default_factory=dict)
    """Those that did not come along with their rows."""
    left: Sequence[Key] = ()
    """Keys that can be had, and whose bodies would be too much together with the others'. Nobody
    holds them once the others are closed."""
    passed_by: Collection[Key] = frozenset()
    """Keys that cannot be had, asked for where others may hold them by row locks."""


class TakenRows:
    """Timeouts in hand; ``close`` is the given function, once."""

    def __init__(
        self, context: StoreContext, found: Found, close: Callable[[Sequence[Outcome]], None]
    ) -> None:
        self._clock = context.clock
        self._told = context.clock.now()
        if context.has_database_clock and found.rows:
            # The latest: each row is asked for at a moment of its own.
            self._told = max(row[-1] for row in found.rows.values())
        # Behind it: what passes between the two makes late; the other way round, early.
        self._seen = context.clock.monotonic()
        self.timeouts: Final[Sequence[Timeout]] = [
            timeout_of(key, row, found.bodies) for key, row in found.rows.items()
        ]
        self.left: Final = found.left
        self._close = close
        self.ended = False
        self.recorded = False

    def now(self) -> Micros:
        """Return the time that due times are compared with, as it was read with the rows.

        It goes on by what has passed since, whatever becomes of the host's clock.
        """
        return self._told + round((self._clock.monotonic() - self._seen) * 1_000_000)

    def close(self, outcomes: Sequence[Outcome]) -> None:
        """Record *outcomes* and commit."""
        if self.ended:
            raise RuntimeError("these timeouts were closed already")
        self.ended = True
        self._close(outcomes)
        self.recorded = True


class Taking:
    """Takes timeouts of one endpoint in hand."""

    def __init__(self, context: StoreContext, expect: Callable[[Micros], None]) -> None:
        self._context = context
        self._expect = expect
        self._closing = Closing(context)
        timeouts = context.tables.timeouts
        claims = context.tables.claims
        is_claimed = exists().where(claims.c.token == bindparam("token"))
        self._bodies = Bodies(context)
        rows = select(
            *columns_with_size(timeouts, PLACED),
            *(timeouts.c.run_id, is_claimed.label("claimed"), context.now_column),
        )
        locked = rows.order_by(timeouts.c.due, timeouts.c.id).with_for_update(
            skip_locked=True, of=timeouts
        )
        until = context.now_column.element + bindparam("ahead", type_=BigInteger)
        free = is_free(context, until)
        # The keys first: SQLite searches up to the first bound that it is given.
        self._lock = OnKeys(context, lambda keyed: locked.where(keyed, *free))

    def take_many(
        self, token: str, keys: Sequence[Key], ahead: Micros, transaction: Transaction | None
    ) -> AbstractContextManager[Taken]:
        """Take those of *keys* in hand, until the context ends, that are due *ahead* from now."""
        if transaction is not None:
            return self._in_transaction(token, keys, ahead, transaction)
        if self._context.database.dialect.row_locks:
            return self._by_row_locks(token, keys, ahead)
        return self._by_fence(token, keys, ahead)

    @contextmanager
    def _in_transaction(
        self, token: str, keys: Sequence[Key], ahead: Micros, transaction: Transaction
    ) -> Iterator[Taken]:
        found = self._rows(transaction, keys, token, ahead)

        def close(outcomes: Sequence[Outcome]) -> None:
            self._closing.record(transaction, token, found.rows, outcomes, found.passed_by)
            after_commit(transaction, lambda: self._expect_again(outcomes))

        yield TakenRows(self._context, found, close)

    @contextmanager
    def _by_row_locks(self, token: str, keys: Sequence[Key], ahead: Micros) -> Iterator[Taken]:
        held = self._context.database.begin()
        connection = held.__enter__()
        taken: TakenRows | None = None

        def close(outcomes: Sequence[Outcome]) -> None:
            with _ending(held):  # commits, or rolls back and translates what went wrong
                self._closing.record(connection, token, found.rows, outcomes, passed_by)
            self._expect_again(outcomes)

        try:
            with _rolling_back(held):
                found = self._rows(connection, keys, token, ahead)
                passed_by = found.passed_by
                asked_token, token = token, self._claim_before_publish(token, found.rows)
                if token != asked_token:
                    passed_by = ()  # the new claim is on our rows alone
            taken = TakenRows(self._context, found, close)
            yield taken
        finally:
            if taken is not None and not taken.ended:
                held.__exit__(_NotClosed, _NotClosed(), None)
            if taken is not None:
                self._give_back(token, found.rows, taken, passed_by)

    @contextmanager
    def _by_fence(self, token: str, keys: Sequence[Key], ahead: Micros) -> Iterator[Taken]:
        database = self._context.database
        fenced, found = database.run(lambda connection: self._fence(connection, token, keys, ahead))

        def close(outcomes: Sequence[Outcome]) -> None:
            database.run(
                lambda connection: self._closing.record(connection, fenced, found.rows, outcomes)
            )
            self._expect_again(outcomes)

        taken = TakenRows(self._context, found, close)
        try:
            yield taken
        finally:
            self._give_back(fenced, found.rows, taken)

    def _expect_again(self, outcomes: Sequence[Outcome]) -> None:
        """Have the next claims look where timeouts were put that are to be tried again."""
        tries = [one.next_try for one in outcomes if one.kind is OutcomeKind.RETRY]
        if tries:
            self._expect(min(tries))

    def _rows(
        self, connection: Connection, keys: Sequence[Key], token: str, ahead: Micros
    ) -> Found:
        """Return what there is of *keys* due *ahead* from now; locked, where the database can."""
        if not keys:
            return Found()
        asked = set(keys)
        others: dict[str, Any] = {"token": token}
        if self._context.has_database_clock:
            others["ahead"] = ahead
        else:
            others["now"] = self._context.clock.now() + ahead
        answer = connection.execute(*self._lock.of(keys, **others)).all()
        at = [Key(row[0], row[1]) for row in answer]
        there = {key: row for key, row in zip(at, answer, strict=True) if key in asked}
        rows, bodies = self._bodies.first_of(connection, there)
        left = [key for key in there if key not in rows] if len(rows) < len(there) else []
        if not self._context.database.dialect.row_locks:
            return Found(rows, bodies, left)
        return Found(rows, bodies, left, asked.difference(at))

    def _fence(
        self, connection: Connection, token: str, keys: Sequence[Key], ahead: Micros
    ) -> tuple[str, Found]:
        """Make the claim of *token* ours for good; return the token to close and what there is."""
        context = self._context
        me, now = context.lives.name_of(context.me), context.now(connection)
        if token:
            claims = context.tables.claims
            taken = connection.execute(
                update(claims)
                .where(
                    claims.c.token == token,
                    claims.c.endpoint == context.endpoint,
                    claims.c.taken_by.is_(None),
                )
                .values(
                    taken_by=me,
                    taken_at=now,
                    # From now on it is the dispatcher's life that counts, not the poller's.
                    owner=me,
                    claimed_until=now + duration_micros(context.settings.claim_time),
                )
            )
            reach("taking.fence_raised")
            if not taken.rowcount:
                return "", Found()
            # What an order names beyond its claim (a forged one) may be in other hands.
            [claim] = [one for one in claims_of(connection, context) if one.token == token]
            covered = [key for key in keys if claim.interval.covers(key)]
            return token, self._rows(connection, covered, token, ahead)
        claims_there = claims_of(connection, context)
        free = [k for k in keys if not any(claim.interval.covers(k) for claim in claims_there)]
        found = replace(self._rows(connection, free[:1], token, ahead), left=free[1:])
        if found.rows:
            token = uuid4().hex
            add_claims(connection, context, [NewClaim(token, free[:1])], me, now, taken_by=me)
        return token, found

    def _claim_before_publish(self, token: str, rows: Rows) -> str:
        """Return *token*, or where no claim goes by it that of a new one on all *rows*.

        A crash after the publish must leave a committed claim behind, or a later cancel could
        not know that the timeout may have been sent. Where others' claims overlap with it is of
        no matter: the row lock decides.
        """
        context = self._context
        if context.atomic or not rows or all(row.claimed for row in rows.values()):
            return token
        new, keys = uuid4().hex, list(rows)
        me = context.lives.name_of(context.me)

        def work(connection: Connection) -> None:
            add_claims(connection, context, [NewClaim(new, keys)], me, context.now(connection))

        context.database.run(work)
        reach("taking.claim_added")
        return new

    def _give_back(
        self, token: str, rows: Rows, taken: TakenRows, passed_by: Collection[Key] = ()
    ) -> None:
        """End the claim of what was taken and not closed; it may have been sent."""
        if taken.recorded or not token:
            return

        def work(connection: Connection) -> None:
            if not (self._context.atomic and self._context.database.dialect.row_locks):
                mark(connection, self._context, list(rows))
            reach("taking.marked")
            self._closing.end_claim(connection, token, passed_by)

        try:
            self._context.database.run(work)
        except StorageUnavailable as error:
            # The caller's own error is on its way up; the claim ends by itself, a little later.
            logger.warning(
                "claim %s could not be given back and must lapse: %s", token, on_one_line(error)
            )


def is_free(
    context: StoreContext, until: ColumnElement[int] | None = None
) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions that a row may be dispatched now, or at *until* by the database.

    Where the host's clock counts it is the parameter ``now``. What is not due is not locked for
    nothing: a cancel would be told that it is on its way.
    """
    timeouts = context.tables.timeouts
    latest: ColumnElement[int] = bindparam("now")
    if context.has_database_clock:
        latest = context.now_column if until is None else until
    return timeouts.c.hidden_by.is_(None), timeouts.c.due <= latest


class _NotClosed(Exception):
    """Rolls a transaction back whose timeouts were not closed."""


@contextmanager
def _ending(held: AbstractContextManager[Connection]) -> Iterator[None]:
    """End the open transaction *held* with the body: commit, or roll back on any error."""
    try:
        yield
    except BaseException as error:
        held.__exit__(type(error), error, error.__traceback__)
        raise
    held.__exit__(None, None, None)


@contextmanager
def _rolling_back(held: AbstractContextManager[Connection]) -> Iterator[None]:
    """Roll the open transaction *held* back on an error of the body."""
    try:
        yield
    except BaseException as error:
        held.__exit__(type(error), error, error.__traceback__)
        raise
