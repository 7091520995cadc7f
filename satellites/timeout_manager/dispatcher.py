"""The ``<endpoint>.TimeoutsDispatcher`` satellite: look up, publish, confirm, remove."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, field
from typing import Final

from timeoutmgr.contracts import (
    Clock,
    DeadLetters,
    Key,
    LockedTimeouts,
    Outcome,
    OutcomeKind,
    SendResult,
    Timeout,
    TimeoutStore,
)
from timeoutmgr.crashpoints import reach
from timeoutmgr.database.row_moves import Move
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Received
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.message.validation import Limits
from timeoutmgr.satellites.control import ChunkOrder, read_control
from timeoutmgr.satellites.delivery.forwarder import Forwarder
from timeoutmgr.satellites.delivery.message import back_off
from timeoutmgr.satellites.delivery.overlap import DispatchSteps, OverlappedDispatch, finish
from timeoutmgr.satellites.delivery.undeliverable import (
    Undeliverable,
    move_to_error_queue,
    start_each,
)
from timeoutmgr.telemetry import Telemetry
from timeoutmgr.transport.error_queue import ErrorQueue, SendAnswer
from timeoutmgr.transport.work import Work

logger = logging.getLogger(__name__)

ORDERS: Final = 8
"""Chunks that are taken from the queue together, so that there is a next one to be looked up."""
ATTEMPTS: Final = 5
"""Attempts at one message, the last of them refused, before it goes to the error queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchTimeouts:
    """The step: what a control message names is sent on, then removed.

    Sent and confirmed first, removed and committed second: a crash between the two repeats under
    the same message id, and loses nothing. In ``transaction_scope`` all of it is one transaction.

    While a broker takes its time to confirm a chunk, the rows of the next are looked up. They are
    sent once the chunk before them is closed, so that a crash repeats no more than one.

    The poller's order comes a moment before its time. The rows are in hand by then, and are sent
    when the store's own clock says that they are due (ADR 16).
    """

    store: TimeoutStore
    error_queue: str
    limits: Limits
    clock: Clock
    telemetry: Telemetry
    dead_letters: DeadLetters | None = None
    move_many: Move | None = None
    """What dispatches without a visit to this process, in ``transaction_scope``."""
    ahead: Micros = 0
    """How much before its due time a timeout may be taken in hand. Not in ``transaction_scope``:
    there the commit sends it, and nobody is to be kept waiting for that."""
    rest: Callable[[float], None] = field(default=time.sleep)
    """Lets at least so many seconds pass."""

    def __call__(self, batch: Sequence[Received], work: Work) -> None:
        """Carry out the orders of *batch*; raises MessageRejected for what is no order."""
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
        """Dispatch what was stored in this very transaction."""
        self.dispatch("", keys, work)

    def dispatch(self, token: str, keys: Sequence[Key], work: Work) -> None:
        """Send those of *keys* that are still to be sent, and record how each ended."""
        finish(self._steps(token, keys, work))

    def _steps(self, token: str, keys: Sequence[Key], work: Work) -> DispatchSteps:
        moved = self._moved(token, keys, work)
        if moved and not (keys := [key for key in keys if key not in moved]):
            return
        left = yield from self._sub_batch(token, keys, work)
        # Outside of one transaction the claim has ended with what was sent. The rest is the
        # poller's again: a chunk that keeps the next one waiting keeps its rows locked as well.
        while left and work.scope is not None:
            left = yield from self._sub_batch("", left, work)

    def _sub_batch(
        self, token: str, keys: Sequence[Key], work: Work
    ) -> Generator[None, None, Sequence[Key]]:
        """Dispatch those of *keys* that may be in hand together; return what is left."""
        ahead = self.ahead if work.scope is None else 0
        with self.store.lock_for_dispatch(
            token, keys, ahead=ahead, transaction=work.scope
        ) as taken:
            left: Sequence[Key] = getattr(taken, "left", ())
            # Cancelled, rescheduled, or sent by another dispatcher: nothing is left to do.
            self.telemetry.count("timeouts_gone", len(keys) - len(taken.timeouts) - len(left))
            yield
            self._wait_until_due(taken)
            yield from self._send_and_close(taken, work)
        return left

    def _moved(self, token: str, keys: Sequence[Key], work: Work) -> Collection[Key]:
        """Move those of *keys* for which no more is needed; return them."""
        if self.move_many is None or work.scope is None:
            return ()
        at = self.clock.now()
        moved = self.move_many(token, keys, at, work.scope)
        reach("dispatch.moved")
        if moved:
            self._told(OutcomeKind.DISPATCHED, len(moved))
            self._late(at - min(key.due for key in moved))
        return set(moved)

    def _send_and_close(self, taken: LockedTimeouts, work: Work) -> DispatchSteps:
        told = _now_of(taken)
        at = self.clock.now() if told is None else told
        forwarder = Forwarder(ATTEMPTS, self.limits, self.dead_letters)
        prepared = forwarder.prepare(taken.timeouts, at)
        reach("dispatch.taken")
        sending = start_each(prepared.outgoing, work)
        yield
        results = sending()
        reach("dispatch.confirmed")
        ended = forwarder.classify(prepared, results, work)
        outcomes = [
            Outcome(key=timeout.key, kind=OutcomeKind.DISPATCHED, at=at) for timeout in ended.taken
        ]
        given_up, kept = self._to_error_queue(ended.failed, at, work)
        outcomes += [_ended(one, at) for one in (*ended.dead, *given_up)]
        again = [*ended.again, *((one.timeout, SendResult.REFUSED) for one in ended.later), *kept]
        if again:
            # The store compares a pause with its own clock: a host's that is behind would end it.
            tried = self.store.now(transaction=work.scope) if told is None else told
            outcomes += [_again(timeout, tried, result) for timeout, result in again]
        taken.close(outcomes)
        reach("dispatch.closed")
        self._count(taken.timeouts, outcomes, at)

    def _wait_until_due(self, taken: LockedTimeouts) -> None:
        """Let the time pass until all of *taken* is due."""
        now = _now_of(taken)
        if now is not None and taken.timeouts:
            early = max(timeout.key.due for timeout in taken.timeouts) - now
            if early > 0:
                # No longer than was asked for, should the clock have been set back meanwhile.
                self.rest(min(early, self.ahead) / 1_000_000)

    def _to_error_queue(
        self, failed: Sequence[Undeliverable], at: Micros, work: Work
    ) -> tuple[list[Undeliverable], list[tuple[Timeout, SendAnswer]]]:
        """Copy each; return those that may be removed, and those that it has not taken."""
        given_up: list[Undeliverable] = []
        kept: list[tuple[Timeout, SendAnswer]] = []
        error_queue = ErrorQueue(self.error_queue, self.store.endpoint, at)
        results = move_to_error_queue(error_queue, failed, work)
        for one, result in zip(failed, results, strict=True):
            if result is SendResult.CONFIRMED:
                reach("dispatch.error_copy_confirmed")
                logger.error(
                    "dispatcher moves timeout %.80r to the error queue: %s",
                    one.timeout.id,
                    on_one_line(one.error),
                )
                given_up.append(one)
            else:
                logger.error(
                    "timeout %.80r stays: %s, and the error queue %.80r did not take it (%s)",
                    one.timeout.id,
                    on_one_line(one.error),
                    self.error_queue,
                    result,
                )
                kept.append((one.timeout, result))
        return given_up, kept

    def _count(self, timeouts: Sequence[Timeout], outcomes: Sequence[Outcome], at: Micros) -> None:
        for kind, amount in Counter(outcome.kind for outcome in outcomes).items():
            self._told(kind, amount)
        if timeouts:
            self._late(at - min(timeout.due for timeout in timeouts))

    def _told(self, kind: OutcomeKind, amount: int) -> None:
        self.telemetry.count(f"timeouts_{kind.value}", amount)

    def _late(self, by: Micros) -> None:
        self.telemetry.value("lateness_seconds", by / 1_000_000)


def _now_of(taken: LockedTimeouts) -> Micros | None:
    """Return the time of the store's clock where *taken* tells it."""
    tell = getattr(taken, "now", None)
    return None if tell is None else int(tell())


def _ended(one: Undeliverable, at: Micros) -> Outcome:
    return Outcome(key=one.timeout.key, kind=OutcomeKind.FAILED, at=at, reason=str(one.error)[:200])


def _again(timeout: Timeout, at: Micros, result: SendAnswer) -> Outcome:
    return Outcome(
        key=timeout.key,
        kind=OutcomeKind.RETRY,
        at=at,
        next_try=at + back_off(timeout.attempts),
        reason=result.value if isinstance(result, SendResult) else str(result)[:200],
        # Also of a copy for the error queue: whoever retries that would send the message.
        maybe_sent=result is SendResult.UNKNOWN,
    )
