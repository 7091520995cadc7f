"""Forwarding: preparation and results of the sends of due messages, by the endpoint's policy."""

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

# --- A due message as its destination gets it, and the waits between attempts. Pure -----------

_FIRST_BACK_OFF: Final = 1_000_000
_LONGEST_BACK_OFF: Final = 60_000_000


def delivered(timeout: Timeout, at: str) -> Message:
    """Return the message as its destination gets it, with unchanged id, TimeSent and body.

    *at* is the instant of the dispatch in the form of a header.
    """
    added = {headers.RELATED_TO_TIMEOUT: timeout.id, headers.DISPATCHED_AT: at}
    given = {**timeout.message.headers, **added}
    if headers.LABELS in given:
        # These headers end here, because a delayed retry is another timeout.
        del given[headers.LABELS]
    return with_headers(timeout.message, given)


def back_off(attempts: int) -> Micros:
    """Return the wait of a message after *attempts* failures: 1, 2, 4 … 60 seconds."""
    return min(_FIRST_BACK_OFF << min(attempts, 10), _LONGEST_BACK_OFF)


# --- the results of a sent batch: confirmed, undeliverable, or to be tried again --------------


@dataclass(frozen=True, slots=True)
class SendOutcome:
    """The messages of a batch by the results of their sends, in order.

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

    A message is undeliverable at once if its destination does not exist or no transport can carry
    it. A refused message is undeliverable after the last of *attempts*. A message without an answer
    may have arrived, and is always tried again.
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
    """A batch before its sends, at the instant *at*; *stopped* messages must not be forwarded."""

    at: Micros
    timeouts: Sequence[Timeout]
    outgoing: Sequence[Outgoing]
    stopped: Sequence[Undeliverable]


@dataclass(frozen=True, slots=True)
class Forwarder:
    """Work before and after the sends of a batch; a message may be refused *attempts* times.

    *limits* restrict destinations: a row may be older than the limits, or from a stranger.
    """

    attempts: int
    limits: Limits
    policy: ForwardingPolicy = PLAIN_FORWARDING

    def prepare(self, timeouts: Sequence[Timeout], at: Micros) -> PreparedBatch:
        """Return *timeouts*, prepared to be sent at the instant *at*."""
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
        """Let the policy record a batch that could not be sent, because the broker is down."""
        if work.scope is None:  # otherwise the transaction is undone, and the record with it
            self.policy.tried(prepared.timeouts, prepared.at, work)

    def _refusal(self, timeout: Timeout, at: Micros) -> TimeoutManagerError | None:
        """Return why *timeout* must no longer be forwarded; None if it may be."""
        try:
            check_destination(timeout.destination, self.limits, message=timeout.message)
        except InvalidMessage as error:
            return error
        return self.policy.refusal(timeout, at)

    def classify(
        self, prepared: PreparedBatch, results: Sequence[SendAnswer], work: IsolatedSends
    ) -> SendOutcome:
        """Return the messages of a batch by the *results* of their sends.

        The policy records the results, and settles undeliverable messages if it can; ``failed``
        messages then belong in the error queue.
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
