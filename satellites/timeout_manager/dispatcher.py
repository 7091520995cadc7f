"""The ``<endpoint>.TimeoutsDispatcher`` satellite: looks up, publishes and removes timeouts."""

import logging
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, exc

from timeoutmgr.contracts import (
    Clock,
    HasStoreClock,
    Key,
    LeavesKeys,
    LockedTimeouts,
    Outcome,
    OutcomeKind,
    SendResult,
    Timeout,
    TimeoutStore,
    Transaction,
)
from timeoutmgr.crashpoints import reach
from timeoutmgr.database.failures import Failure, classify
from timeoutmgr.database.row_moves import Move
from timeoutmgr.errors import DeliveryFailed, TimeoutManagerError
from timeoutmgr.message.instants import Micros, to_wire
from timeoutmgr.message.message import Received
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.message.validation import Limits
from timeoutmgr.satellites.control import ChunkOrder, read_control
from timeoutmgr.satellites.delivery.dispatch import (
    BatchDispatch,
    BatchResult,
    ClosedElsewhere,
    DispatchMeter,
    DispatchSteps,
    OverlappedDispatch,
    RetryLater,
    StepPoints,
    fields_of,
    finish,
    sent_of,
)
from timeoutmgr.satellites.delivery.forwarder import Forwarder, back_off, delivered
from timeoutmgr.telemetry import Telemetry
from timeoutmgr.transport.delivery_policy import PLAIN_FORWARDING, ForwardingPolicy, Undeliverable
from timeoutmgr.transport.work import OUTAGES, Work

logger = logging.getLogger(__name__)

ORDERS: Final = 8
"""Chunks that are received together, so that the next chunk can be locked during a dispatch."""
ORDERS_OF_ROWS: Final = 2
"""Orders that are received together if the database moves the rows: such orders are larger, and all
messages of a transaction reach their queues only at its end."""
ATTEMPTS: Final = 5
"""Attempts at a message before it goes to the error queue, if the last is refused."""
_MOST_ALONE: Final = 10_000
"""Maximum keys remembered to be dispatched alone. Another process may execute the next order."""


_POINTS: Final = StepPoints(
    locked="dispatch.taken",
    confirmed="dispatch.confirmed",
    error_copied="dispatch.error_copy_confirmed",
    closed="dispatch.closed",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchTimeouts:
    """The step: sends the timeouts that a control message names, then removes them.

    Messages are sent and confirmed first, and removed and committed second: a crash in between
    repeats them under the same id, and loses none. In ``transaction_scope`` all is one transaction.

    While a broker confirms a chunk, the rows of the next chunk are locked. They are sent after the
    chunk before them is closed, so that a crash repeats at most one chunk.

    The poller's order comes a moment before the due time. The rows are locked in advance, and are
    sent when they are due by the store's own clock (ADR 16).

    A bad message must not make its neighbours fail. After an error that is not an answer of broker
    or storage, the chunk comes back, from its queue or by another claim, and each of its messages
    is sent alone. An attempt that fails is counted, and the other messages are sent.
    """

    store: TimeoutStore
    error_queue: str
    limits: Limits
    clock: Clock
    telemetry: Telemetry
    policy: ForwardingPolicy = PLAIN_FORWARDING
    move_many: Move | None = None
    """Moves messages inside the database, without this process, in ``transaction_scope``."""
    ahead: Micros = 0
    """Microseconds before its due time at which a timeout may be locked. Not in
    ``transaction_scope``, where the commit sends it and must not wait."""
    rest: Callable[[float], None] = field(default=time.sleep)
    """Waits for at least so many seconds."""
    _meter: DispatchMeter = field(init=False)
    _alone: set[Key] = field(init=False, repr=False, compare=False, default_factory=set)
    """Keys of chunks that failed, until they are dispatched alone."""

    def __post_init__(self) -> None:
        """Ask the telemetry once what it observes."""
        object.__setattr__(self, "_meter", DispatchMeter(self.telemetry, "timeouts"))

    def __call__(self, batch: Sequence[Received], work: Work) -> None:
        """Execute the orders in *batch*; raise MessageRejected for other messages."""
        orders = [read_control(received.message) for received in batch]
        with OverlappedDispatch(overlaps=work.scope is None) as line:
            for order in orders:
                if isinstance(order, ChunkOrder):
                    line.add(self._steps(order.token, order.keys, work))
                elif (key := self.store.key_of(order.timeout_id)) is not None:
                    line.add(self._steps("", [key], work))
                else:
                    self.telemetry.count("timeouts_gone")

    def dispatch_now(self, keys: Sequence[Key], work: Work) -> None:
        """Dispatch timeouts that were stored in this transaction."""
        self.dispatch("", keys, work)

    def dispatch(self, token: str, keys: Sequence[Key], work: Work) -> None:
        """Send the timeouts of *keys* that are still pending, and record their outcomes."""
        finish(self._steps(token, keys, work))

    def _steps(self, token: str, keys: Sequence[Key], work: Work) -> DispatchSteps:
        try:
            moved = self._moved(token, keys, work)
            if moved and not (keys := [key for key in keys if key not in moved]):
                return
            left = yield from self._sub_batch(token, keys, work)
            # Outside of a shared transaction the claim has ended with the sends, and the poller
            # claims the rest again: while this chunk kept the next chunk waiting, the rows of both
            # would stay locked.
            while left and work.scope is not None:
                left = yield from self._sub_batch("", left, work)
        except Exception as error:
            if _is_unexplained(error):
                self._remember(keys, error, work)
            raise

    def _remember(self, keys: Sequence[Key], error: Exception, work: Work) -> None:
        """Remember to dispatch *keys* alone, if the send of a single message can be undone."""
        if work.scope is not None and not isinstance(work.scope, Connection):
            return
        logger.warning(
            "dispatcher could not send a chunk and will send each message alone: %s",
            on_one_line(error),
            extra={"event": "chunk_failed", "endpoint": self.store.endpoint},
        )
        if len(self._alone) > _MOST_ALONE:
            self._alone.clear()
        self._alone.update(keys)

    def _sub_batch(
        self, token: str, keys: Sequence[Key], work: Work
    ) -> Generator[None, None, Sequence[Key]]:
        """Dispatch the timeouts of *keys* that fit into memory together; return the other keys."""
        ahead = self.ahead if work.scope is None else 0
        with self.store.lock_for_dispatch(
            token, keys, ahead=ahead, transaction=work.scope
        ) as locked:
            left = locked.left if isinstance(locked, LeavesKeys) else ()
            # Cancelled, rescheduled, parked, or sent by another dispatcher: nothing remains to do.
            self.telemetry.count("timeouts_gone", len(keys) - len(locked.timeouts) - len(left))
            yield
            self._wait_until_due(locked)
            yield from self._send_and_close(locked, work)
        return left

    def _moved(self, token: str, keys: Sequence[Key], work: Work) -> Collection[Key]:
        """Move timeouts of *keys* that the database can send by itself; return their keys."""
        if self.move_many is None or work.scope is None or not self._alone.isdisjoint(keys):
            return ()
        at, moved = self.move_many(token, keys, self.clock.now(), work.scope)
        reach("dispatch.moved")
        if moved:
            work.after_commit(lambda: self._count_moved(at, moved))
        return moved

    def _count_moved(self, at: Micros, moved: Mapping[Key, str]) -> None:
        self._meter.add("dispatched", len(moved))
        self._meter.late(at, [(to, key.due) for key, to in moved.items()])

    def _send_and_close(self, locked: LockedTimeouts, work: Work) -> DispatchSteps:
        rows = _LockedBatch(locked, self, work.scope)
        if self._alone.isdisjoint(timeout.key for timeout in rows.timeouts):
            result = yield from self._dispatch(rows, work)
        else:
            yield
            result = self._each_alone(rows, work)
        if work.scope is None:
            self._count(result)
        else:
            work.after_commit(lambda: self._count(result))

    def _count(self, result: BatchResult) -> None:
        self._meter.count(result)
        self._meter.add("retry", len(result.retries))
        self._meter.late(result.at, sent_of(result.dispatched))

    def _each_alone(self, rows: "_LockedBatch", work: Work) -> BatchResult:
        """Send each message of *rows* alone, and close all of them together."""
        at = rows.now()
        # Each row is closed later, with the other rows.
        results = [self._one_alone(ClosedElsewhere([one], at), work) for one in rows.timeouts]
        result = BatchResult(
            at=at,
            dispatched=[one for each in results for one in each.dispatched],
            failed=[one for each in results for one in each.failed],
            retries=[one for each in results for one in each.retries],
        )
        rows.close(result)
        reach(_POINTS.closed)
        self._alone.difference_update(timeout.key for timeout in rows.timeouts)
        return result

    def _one_alone(self, row: ClosedElsewhere, work: Work) -> BatchResult:
        """Send the message of *row*; after an error, count the attempt, or give the message up."""
        [timeout] = row.timeouts
        try:
            with _savepoint(work):
                return finish(self._dispatch(row, work))
        except Exception as error:
            if not _is_unexplained(error):
                raise
            logger.warning(
                "dispatcher could not send timeout %.80r: %s",
                timeout.id,
                on_one_line(error),
                extra=fields_of("dispatch_failed", timeout),
            )
            if timeout.attempts + 1 < ATTEMPTS:
                return BatchResult(retries=[_failed_alone(timeout, error, work)])
            return self._give_up(row, error, work)

    def _give_up(self, row: ClosedElsewhere, error: Exception, work: Work) -> BatchResult:
        """Copy the message of *row* into the error queue; if that fails, the message stays."""
        [timeout] = row.timeouts
        wrapped = error if isinstance(error, TimeoutManagerError) else DeliveryFailed(repr(error))
        undeliverable = Undeliverable(timeout, delivered(timeout, to_wire(row.at)), wrapped)
        try:
            with _savepoint(work):
                moved, kept = self._dispatch.move_to_error_queue([undeliverable], row.at, work)
        except Exception as failure:
            if not _is_unexplained(failure):
                raise
            logger.error(
                "dispatcher leaves timeout %.80r stored: %s",
                timeout.id,
                on_one_line(failure),
                extra=fields_of("error_copy_not_taken", timeout),
            )
            return BatchResult(retries=[_failed_alone(timeout, error, work)])
        return BatchResult(failed=moved, retries=kept)

    @property
    def _dispatch(self) -> BatchDispatch:
        return BatchDispatch(
            endpoint=self.store.endpoint,
            error_queue=self.error_queue,
            forwarder=Forwarder(ATTEMPTS, self.limits, self.policy),
            points=_POINTS,
            during=self._meter.during,
        )

    def _wait_until_due(self, locked: LockedTimeouts) -> None:
        """Wait until all timeouts of *locked* are due."""
        now = _now_of(locked)
        if now is not None and locked.timeouts:
            early = max(timeout.key.due for timeout in locked.timeouts) - now
            if early > 0:
                # No longer than requested, in case the clock was set back in the meantime.
                self.rest(min(early, self.ahead) / 1_000_000)


class _LockedBatch:
    """Locked rows as a batch; its close makes the store record an outcome for each."""

    def __init__(
        self, locked: LockedTimeouts, step: DispatchTimeouts, scope: Transaction | None
    ) -> None:
        self._locked = locked
        self._store = step.store
        self._scope = scope
        self._stored_now = _now_of(locked)
        self._at = step.clock.now() if self._stored_now is None else self._stored_now

    @property
    def timeouts(self) -> Sequence[Timeout]:
        return self._locked.timeouts

    def now(self) -> Micros:
        return self._at

    def close(self, result: BatchResult) -> None:
        at = result.at
        sent = OutcomeKind.DISPATCHED
        outcomes = [Outcome(key=one.key, kind=sent, at=at) for one in result.dispatched]
        outcomes += [_failed(one, at) for one in result.failed]
        if result.retries:
            tried = self._retry_clock()
            outcomes += [_retry(one, tried) for one in result.retries]
        self._locked.close(outcomes)

    def _retry_clock(self) -> Micros:
        """Return the store's time, because the store compares a wait with its own clock.

        A host whose clock is behind would end the wait at once.
        """
        if self._stored_now is not None:
            return self._stored_now
        return self._store.now(transaction=self._scope)


def _is_unexplained(error: Exception) -> bool:
    """Return whether *error* may be a message's fault: it is no outage and no lost transaction.

    In a shared transaction its owner classifies errors of the database. If the server has undone
    the whole transaction, the end of a savepoint fails: going on would record undone sends.
    """
    if isinstance(error, exc.SQLAlchemyError):
        return classify(error) is Failure.STATEMENT
    return not isinstance(error, OUTAGES)


def _savepoint(work: Work) -> AbstractContextManager[Any]:
    """Return a savepoint in the transaction of *work*, which undoes a failed send.

    PostgreSQL refuses all further statements in a transaction after a failed statement.
    """
    scope = work.scope
    return scope.begin_nested() if isinstance(scope, Connection) else nullcontext()


def _failed_alone(timeout: Timeout, error: Exception, work: Work) -> RetryLater:
    # Outside of a shared transaction nothing can undo a send before the error.
    answer = SendResult.UNKNOWN if work.scope is None else SendResult.REFUSED
    return RetryLater(timeout=timeout, error=error, answer=answer)


def _now_of(locked: LockedTimeouts) -> Micros | None:
    """Return the time of the store's clock if *locked* has it."""
    return int(locked.now()) if isinstance(locked, HasStoreClock) else None


def _failed(one: Undeliverable, at: Micros) -> Outcome:
    return Outcome(key=one.timeout.key, kind=OutcomeKind.FAILED, at=at, reason=str(one.error)[:200])


def _retry(one: RetryLater, at: Micros) -> Outcome:
    answer, timeout = one.answer, one.timeout
    return Outcome(
        key=timeout.key,
        kind=OutcomeKind.RETRY,
        at=at,
        next_try=at + back_off(timeout.attempts),
        reason=answer.value if isinstance(answer, SendResult) else str(answer)[:200],
        # Also if a copy in the error queue is uncertain: a retry from there sends the message.
        maybe_sent=answer is SendResult.UNKNOWN,
    )
