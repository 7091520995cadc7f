"""The ``<endpoint>.TimeoutsDispatcher`` satellite: look up, publish, confirm, remove."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from timeoutmgr import headers
from timeoutmgr.contracts import (
    Clock,
    Key,
    Outcome,
    OutcomeKind,
    SendResult,
    Taken,
    Timeout,
    TimeoutStore,
)
from timeoutmgr.crashpoints import reach
from timeoutmgr.errors import DeliveryFailed, Unroutable
from timeoutmgr.instants import Micros, to_wire
from timeoutmgr.message import Message, Outgoing, Received
from timeoutmgr.resilience.error_copy import error_copy, minimal_error_copy
from timeoutmgr.telemetry import Telemetry
from timeoutmgr.transport.work import Work

from .control import SingleOrder, read_control

logger = logging.getLogger(__name__)

ATTEMPTS: Final = 5
"""Attempts at one message, the last of them refused, before it goes to the error queue."""
_FIRST_BACK_OFF: Final = 1_000_000
_LONGEST_BACK_OFF: Final = 60_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchTimeouts:
    """The step: what a control message names is sent on, then removed.

    Sent and confirmed first, removed and committed second: a crash between the two repeats under
    the same message id, and loses nothing. In ``transaction_scope`` all of it is one transaction.
    """

    store: TimeoutStore
    error_queue: str
    clock: Clock
    telemetry: Telemetry

    def __call__(self, batch: Sequence[Received], work: Work) -> None:
        """Carry out the orders of *batch*; raises MessageRejected for what is no order."""
        for received in batch:
            order = read_control(received.message)
            if isinstance(order, SingleOrder):
                key = self.store.key_of(order.timeout_id)
                if key is None:
                    self.telemetry.count("timeouts_gone")
                else:
                    self.dispatch("", [key], work)
            else:
                self.dispatch(order.token, order.keys, work)

    def dispatch_now(self, keys: Sequence[Key], work: Work) -> None:
        """Dispatch what was stored in this very transaction."""
        self.dispatch("", keys, work)

    def dispatch(self, token: str, keys: Sequence[Key], work: Work) -> None:
        """Send those of *keys* that are still to be sent, and record how each ended."""
        with self.store.take_many(token, keys, transaction=work.scope) as taken:
            # Cancelled, rescheduled, or sent by another dispatcher: nothing is left to do.
            self.telemetry.count("timeouts_gone", len(keys) - len(taken.timeouts))
            self._send_and_close(taken, work)

    def _send_and_close(self, taken: Taken, work: Work) -> None:
        at = self.clock.now()
        timeouts = taken.timeouts
        reach("dispatch.taken")
        outgoing = [Outgoing(timeout.destination, delivered(timeout, at)) for timeout in timeouts]
        results = work.send_isolated(outgoing)
        reach("dispatch.confirmed")
        outcomes: list[Outcome] = []
        failed: list[tuple[Timeout, Message, DeliveryFailed]] = []
        for timeout, sent, result in zip(timeouts, outgoing, results, strict=True):
            if result is SendResult.CONFIRMED:
                outcomes.append(Outcome(key=timeout.key, kind=OutcomeKind.DISPATCHED, at=at))
            elif result is SendResult.UNROUTABLE:
                failed.append((timeout, sent.message, Unroutable(timeout.destination)))
            elif result is SendResult.REFUSED and timeout.attempts + 1 >= ATTEMPTS:
                error = DeliveryFailed(
                    f"queue {timeout.destination!r} did not take the message in {ATTEMPTS} "
                    "attempts, and refused the last; is it full?"
                )
                failed.append((timeout, sent.message, error))
            else:
                unknown = result is SendResult.UNKNOWN
                outcomes.append(_again(timeout, at, result, maybe_sent=unknown))
        outcomes += self._to_error_queue(failed, at, work)
        taken.close(outcomes)
        reach("dispatch.closed")
        self._count(timeouts, outcomes, at)

    def _to_error_queue(
        self,
        failed: Sequence[tuple[Timeout, Message, DeliveryFailed]],
        at: Micros,
        work: Work,
    ) -> list[Outcome]:
        """Copy each whole message first; only what the error queue has taken may be removed.

        The copy's FailedQ is the destination, so that retrying sends the message there.
        """
        copies = [
            Outgoing(
                self.error_queue,
                error_copy(
                    message,
                    error,
                    queue=timeout.destination,
                    endpoint=self.store.endpoint,
                    at=at,
                ),
            )
            for timeout, message, error in failed
        ]
        outcomes: list[Outcome] = []
        results = work.send_isolated(copies)
        for place, (timeout, message, error) in enumerate(failed):
            if results[place] is SendResult.REFUSED:
                small = minimal_error_copy(message, queue=timeout.destination, reason=str(error))
                [results[place]] = work.send_isolated([Outgoing(self.error_queue, small)])
        for (timeout, _message, error), result in zip(failed, results, strict=True):
            if result is SendResult.CONFIRMED:
                reach("dispatch.error_copy_confirmed")
                logger.error("timeout %s goes to the error queue: %s", timeout.id, error)
                outcomes.append(
                    Outcome(
                        key=timeout.key, kind=OutcomeKind.FAILED, at=at, reason=str(error)[:200]
                    )
                )
            else:
                logger.error(
                    "timeout %s stays: %s, and the error queue %r did not take it (%s)",
                    timeout.id,
                    error,
                    self.error_queue,
                    result.value,
                )
                outcomes.append(_again(timeout, at, result))
        return outcomes

    def _count(self, timeouts: Sequence[Timeout], outcomes: Sequence[Outcome], at: Micros) -> None:
        for kind in OutcomeKind:
            amount = sum(outcome.kind is kind for outcome in outcomes)
            if amount:
                self.telemetry.count(f"timeouts_{kind.value}", amount)
        if timeouts:
            lateness = at - min(timeout.due for timeout in timeouts)
            self.telemetry.value("lateness_seconds", lateness / 1_000_000)


def delivered(timeout: Timeout, at: Micros) -> Message:
    """Return the message as its destination gets it: its own id, TimeSent and body kept."""
    return replace(
        timeout.message,
        headers={
            **timeout.message.headers,
            headers.RELATED_TO_TIMEOUT: timeout.id,
            headers.DISPATCHED_AT: to_wire(at),
        },
    )


def back_off(attempts: int) -> Micros:
    """Return how long a message waits after *attempts* failures: 1, 2, 4 … 60 seconds."""
    return min(_FIRST_BACK_OFF << min(attempts, 10), _LONGEST_BACK_OFF)


def _again(
    timeout: Timeout, at: Micros, result: SendResult, *, maybe_sent: bool = False
) -> Outcome:
    return Outcome(
        key=timeout.key,
        kind=OutcomeKind.RETRY,
        at=at,
        next_try=at + back_off(timeout.attempts),
        reason=result.value,
        maybe_sent=maybe_sent,
    )
