"""Due messages before and after their sends, by the endpoint's forwarding policy."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from timeoutmgr.contracts import Timeout
from timeoutmgr.errors import InvalidMessage, TimeoutManagerError
from timeoutmgr.message.instants import Micros, to_wire
from timeoutmgr.message.message import Outgoing
from timeoutmgr.message.validation import Limits, check_destination
from timeoutmgr.transport.delivery_policy import (
    PLAIN_FORWARDING,
    ForwardingPolicy,
    Undeliverable,
)
from timeoutmgr.transport.error_queue import SendAnswer
from timeoutmgr.transport.work import IsolatedSends

from .message import delivered, waited
from .results import SendOutcome, classify_results


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """A batch before its sends; *stopped* messages must not be passed on."""

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
            message, error = delivered(one, stamp), self._refusal(one)
            if error is not None:
                stopped.append(Undeliverable(one, message, error))
                continue
            prepared.append(one)
            outgoing.append(Outgoing(one.destination, self.policy.forwarded(message)))
        return PreparedBatch(prepared, outgoing, stopped)

    def _refusal(self, timeout: Timeout) -> TimeoutManagerError | None:
        """Return why *timeout* must not be passed on any more; None if it may."""
        try:
            check_destination(timeout.destination, self.limits)
        except InvalidMessage as error:
            return error
        return self.policy.refusal(timeout.message, waited(timeout.attempts))

    def classify(
        self, prepared: PreparedBatch, results: Sequence[SendAnswer], work: IsolatedSends
    ) -> SendOutcome:
        """Return a batch by the *results* of its sends.

        The policy notes the results, and settles undeliverable messages where it can; ``failed``
        messages then belong into the error queue.
        """
        found = classify_results(prepared.timeouts, prepared.outgoing, results, self.attempts)
        self.policy.sent(prepared.outgoing, results, work)
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
