"""Due messages before and after their sends, by the endpoint's forwarding policy."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from timeoutmgr.contracts import SendResult, Timeout
from timeoutmgr.errors import DeliveryFailed, InvalidMessage, TimeoutManagerError, Unroutable
from timeoutmgr.message import headers
from timeoutmgr.message.foreign import finally_to
from timeoutmgr.message.instants import Micros, to_wire
from timeoutmgr.message.message import Message, Outgoing, with_headers
from timeoutmgr.message.validation import Limits, check_destination
from timeoutmgr.transport.delivery_policy import PLAIN_FORWARDING, ForwardingPolicy, Undeliverable
from timeoutmgr.transport.error_queue import SendAnswer
from timeoutmgr.transport.foreign import moved_to
from timeoutmgr.transport.work import IsolatedSends

# --- A due message as its destination gets it, and how long it rests between attempts. Pure ---

_FIRST_BACK_OFF: Final = 1_000_000
_LONGEST_BACK_OFF: Final = 60_000_000


def delivered(timeout: Timeout, at: str) -> Message:
    """Return the message as its destination gets it: its own id, TimeSent and body kept.

    *at* is the instant of the dispatch as a header spells it.
    """
    added = {headers.RELATED_TO_TIMEOUT: timeout.id, headers.DISPATCHED_AT: at}
    given = {**timeout.message.headers, **added}
    if headers.LABELS in given:
        # They end here: a delayed retry is not the same timeout once more.
        del given[headers.LABELS]
    return with_headers(timeout.message, given)


def back_off(attempts: int) -> Micros:
    """Return how long a message waits after *attempts* failures: 1, 2, 4 … 60 seconds."""
    return min(_FIRST_BACK_OFF << min(attempts, 10), _LONGEST_BACK_OFF)


# --- the results of a sent batch: confirmed, undeliverable, or to be tried again --------------


@dataclass(frozen=True, slots=True)
class SendOutcome:
    """A batch by the results of its sends, in its order.

    *settled* messages are undeliverable and need nothing more; *postponed* messages are
    undeliverable too, and stay stored until there is a place for them.
    """

    confirmed: list[Timeout] = field(default_factory=list)
    failed: list[Undeliverable] = field(default_factory=list)
    again: list[tuple[Timeout, SendAnswer]] = field(default_factory=list)
    settled: list[Undeliverable] = field(default_factory=list)
    postponed: list[Undeliverable] = field(default_factory=list)


def classify_results(
    timeouts: Sequence[Timeout],
    outgoing: Sequence[Outgoing],
    results: Sequence[SendAnswer],
    attempts: int,
) -> SendOutcome:
    """Sort *timeouts*, sent as *outgoing*, by their *results*.

    A message without a destination, or that no transport can carry, is undeliverable at once; a
    refused message is at the last of *attempts*. A message without an answer may have arrived: it
    is tried again, however often.
    """
    found = SendOutcome()
    for timeout, sent, result in zip(timeouts, outgoing, results, strict=True):
        if result is SendResult.CONFIRMED:
            found.confirmed.append(timeout)
        elif isinstance(result, InvalidMessage):
            found.failed.append(Undeliverable(timeout, sent.message, result))
        elif result is SendResult.UNROUTABLE:
            error = Unroutable(timeout.destination)
            found.failed.append(Undeliverable(timeout, sent.message, error))
        elif result is SendResult.REFUSED and timeout.attempts + 1 >= attempts:
            refused = DeliveryFailed(
                f"queue {timeout.destination!r:.80} did not take the message in {attempts} "
                "attempts, and refused the last; is it full?"
            )
            found.failed.append(Undeliverable(timeout, sent.message, refused))
        else:
            found.again.append((timeout, result))
    return found


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """A batch before its sends, at the instant *at*; *stopped* messages must not be passed on."""

    at: Micros
    timeouts: Sequence[Timeout]
    outgoing: Sequence[Outgoing]
    stopped: Sequence[Undeliverable]


@dataclass(frozen=True, slots=True)
class Forwarder:
    """The work before and after the sends of a batch; a message is refused *attempts* times.

    *limits* say where a message may go: a row may be older than they are, or from a stranger.
    """

    attempts: int
    limits: Limits
    policy: ForwardingPolicy = PLAIN_FORWARDING

    def prepare(self, timeouts: Sequence[Timeout], at: Micros) -> PreparedBatch:
        """Return *timeouts* as they are to be sent at the instant *at*."""
        stamp = to_wire(at)
        prepared: list[Timeout] = []
        outgoing: list[Outgoing] = []
        stopped: list[Undeliverable] = []
        for one in timeouts:
            message, error = delivered(one, stamp), self._refusal(one, at)
            if error is not None:
                stopped.append(Undeliverable(one, message, error))
                continue
            prepared.append(one)
            forwarded = self.policy.forwarded(message)
            outgoing.append(
                finally_to(one.destination, moved_to(forwarded, one.destination, at))
                if headers.ROUTE in forwarded.headers
                else Outgoing(one.destination, forwarded)
            )
        return PreparedBatch(at, prepared, outgoing, stopped)

    def unsent(self, prepared: PreparedBatch, work: IsolatedSends) -> None:
        """Have the policy note a batch that could not be sent, because the broker is away."""
        if work.scope is None:  # otherwise the transaction is undone, and a note with it
            self.policy.tried(prepared.timeouts, prepared.at, work)

    def _refusal(self, timeout: Timeout, at: Micros) -> TimeoutManagerError | None:
        """Return why *timeout* must not be passed on any more; None if it may."""
        try:
            check_destination(timeout.destination, self.limits, message=timeout.message)
        except InvalidMessage as error:
            return error
        return self.policy.refusal(timeout, at)

    def classify(
        self, prepared: PreparedBatch, results: Sequence[SendAnswer], work: IsolatedSends
    ) -> SendOutcome:
        """Return a batch by the *results* of its sends.

        The policy notes the results, and settles undeliverable messages where it can; ``failed``
        messages then belong into the error queue.
        """
        found = classify_results(prepared.timeouts, prepared.outgoing, results, self.attempts)
        self.policy.sent(prepared.outgoing, results, work)
        if found.again:
            self.policy.tried([timeout for timeout, _ in found.again], prepared.at, work)
        failed = [*prepared.stopped, *found.failed]
        if not failed:
            return found
        settlement = self.policy.settle(failed, work)
        return replace(
            found,
            failed=settlement.others,
            settled=settlement.settled,
            postponed=settlement.postponed,
        )
