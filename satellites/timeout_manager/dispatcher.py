"""The ``<endpoint>.TimeoutsDispatcher`` satellite: look up, publish, confirm, remove."""

import time
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, field
from typing import Final

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
from timeoutmgr.database.row_moves import Move
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Received
from timeoutmgr.message.validation import Limits
from timeoutmgr.satellites.control import ChunkOrder, read_control
from timeoutmgr.satellites.delivery.dispatch import (
    BatchDispatch,
    BatchResult,
    DispatchMeter,
    DispatchSteps,
    OverlappedDispatch,
    RetryLater,
    StepPoints,
    finish,
    meter_of,
    sent_of,
)
from timeoutmgr.satellites.delivery.forwarder import Forwarder, back_off
from timeoutmgr.telemetry import Telemetry
from timeoutmgr.transport.delivery_policy import PLAIN_FORWARDING, ForwardingPolicy, Undeliverable
from timeoutmgr.transport.work import Work

ORDERS: Final = 8
"""Chunks that are received together, so that the next chunk can be locked meanwhile."""
ORDERS_OF_ROWS: Final = 2
"""Orders that are received together where the database moves the rows: an order is larger there,
and all messages of one transaction reach their queues at its end."""
ATTEMPTS: Final = 5
"""Attempts at one message, the last of them refused, before it goes to the error queue."""


_POINTS: Final = StepPoints(
    locked="dispatch.taken",
    confirmed="dispatch.confirmed",
    error_copied="dispatch.error_copy_confirmed",
    closed="dispatch.closed",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchTimeouts:
    """The step: timeouts that a control message names are sent on, then removed.

    Sent and confirmed first, removed and committed second: a crash between the two repeats under
    the same message id, and loses nothing. In ``transaction_scope`` all of it is one transaction.

    While a broker confirms a chunk, the rows of the next chunk are locked. They are sent when the
    chunk before them is closed, so that a crash repeats at most one chunk.

    The poller's order comes a moment before its time. The rows are locked by then, and are sent
    when the store's own clock says that they are due (ADR 16).
    """

    store: TimeoutStore
    error_queue: str
    limits: Limits
    clock: Clock
    telemetry: Telemetry
    policy: ForwardingPolicy = PLAIN_FORWARDING
    move_many: Move | None = None
    """Moves messages inside the database, past this process, in ``transaction_scope``."""
    ahead: Micros = 0
    """Microseconds before its due time at which a timeout may be locked. Not in
    ``transaction_scope``: there the commit sends it, and must not wait."""
    rest: Callable[[float], None] = field(default=time.sleep)
    """Lets at least so many seconds pass."""
    _meter: DispatchMeter = field(init=False)

    def __post_init__(self) -> None:
        """Ask the telemetry once what it observes."""
        object.__setattr__(self, "_meter", meter_of(self.telemetry, "timeouts"))

    def __call__(self, batch: Sequence[Received], work: Work) -> None:
        """Carry out the orders of *batch*; raises MessageRejected for other messages."""
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
        """Dispatch timeouts that were stored in this very transaction."""
        self.dispatch("", keys, work)

    def dispatch(self, token: str, keys: Sequence[Key], work: Work) -> None:
        """Send the timeouts of *keys* that are still pending, and record their outcomes."""
        finish(self._steps(token, keys, work))

    def _steps(self, token: str, keys: Sequence[Key], work: Work) -> DispatchSteps:
        moved = self._moved(token, keys, work)
        if moved and not (keys := [key for key in keys if key not in moved]):
            return
        left = yield from self._sub_batch(token, keys, work)
        # Outside of a shared transaction the claim has ended with the sends. The poller claims the
        # rest again: a chunk that keeps the next chunk waiting keeps its rows locked as well.
        while left and work.scope is not None:
            left = yield from self._sub_batch("", left, work)

    def _sub_batch(
        self, token: str, keys: Sequence[Key], work: Work
    ) -> Generator[None, None, Sequence[Key]]:
        """Dispatch the timeouts of *keys* that fit into memory together; return the other keys."""
        ahead = self.ahead if work.scope is None else 0
        with self.store.lock_for_dispatch(
            token, keys, ahead=ahead, transaction=work.scope
        ) as locked:
            left = locked.left if isinstance(locked, LeavesKeys) else ()
            # Cancelled, rescheduled, or sent by another dispatcher: nothing is left to do.
            self.telemetry.count("timeouts_gone", len(keys) - len(locked.timeouts) - len(left))
            yield
            self._wait_until_due(locked)
            yield from self._send_and_close(locked, work)
        return left

    def _moved(self, token: str, keys: Sequence[Key], work: Work) -> Collection[Key]:
        """Move timeouts of *keys* that need no visit to this process; return their keys."""
        if self.move_many is None or work.scope is None:
            return ()
        at = self.clock.now()
        moved = self.move_many(token, keys, at, work.scope)
        reach("dispatch.moved")
        if moved:
            self._meter.add("dispatched", len(moved))
            self._meter.late_by_host(at, [(to, key.due) for key, to in moved.items()])
        return moved

    def _send_and_close(self, locked: LockedTimeouts, work: Work) -> DispatchSteps:
        result = yield from self._dispatch(_LockedRows(locked, self, work.scope), work)
        self._meter.count(result)
        self._meter.add("retry", len(result.retries))
        self._meter.late(result.at, sent_of(result.dispatched))

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
        """Let the time pass until all of *locked* is due."""
        now = _now_of(locked)
        if now is not None and locked.timeouts:
            early = max(timeout.key.due for timeout in locked.timeouts) - now
            if early > 0:
                # No longer than was asked for, should the clock have been set back meanwhile.
                self.rest(min(early, self.ahead) / 1_000_000)


class _LockedRows:
    """Locked rows as a batch: the store records an outcome for each."""

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
        outcomes = [
            *(
                Outcome(key=timeout.key, kind=OutcomeKind.DISPATCHED, at=at)
                for timeout in result.dispatched
            ),
            *(_failed(one, at) for one in result.failed),
        ]
        if result.retries:
            tried = self._retry_clock()
            outcomes += [_retry(one, tried) for one in result.retries]
        self._locked.close(outcomes)

    def _retry_clock(self) -> Micros:
        """Return the store's time: the store compares a pause with its own clock.

        The clock of a host that is behind would end the pause at once.
        """
        if self._stored_now is not None:
            return self._stored_now
        return self._store.now(transaction=self._scope)


def _now_of(locked: LockedTimeouts) -> Micros | None:
    """Return the time of the store's clock if *locked* tells it."""
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
        # Also if a copy for the error queue is in doubt: a retry from there sends the message.
        maybe_sent=answer is SendResult.UNKNOWN,
    )
