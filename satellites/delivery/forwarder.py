"""Due messages on their way on, by the rules of the dead-letter queues where there are any."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from timeoutmgr.contracts import DeadLetters, SendResult, Timeout
from timeoutmgr.errors import InvalidMessage, TimeoutManagerError
from timeoutmgr.message.instants import Micros, to_wire
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.message.validation import Limits, check_destination
from timeoutmgr.transport.error_queue import SendAnswer
from timeoutmgr.transport.work import IsolatedSends

from .dead_letters import dead_letter_each, note_confirmed
from .message import delivered, waited
from .results import SendOutcome, classify_results
from .undeliverable import Undeliverable


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """A batch before it is sent: what goes, and what must not be passed on any more."""

    timeouts: Sequence[Timeout]
    outgoing: Sequence[Outgoing]
    stopped: Sequence[Undeliverable]


@dataclass(frozen=True, slots=True)
class Forwarder:
    """What comes before and after the sending of a batch; a message is refused *attempts* times.

    *limits* say where a message may go: a row may be older than they are, or a stranger's.
    """

    attempts: int
    limits: Limits
    dead_letters: DeadLetters | None = None

    def prepare(self, timeouts: Sequence[Timeout], at: Micros) -> PreparedBatch:
        """Return *timeouts* as they are to be sent at the instant *at*."""
        stamp = to_wire(at)
        prepared: list[Timeout] = []
        outgoing: list[Outgoing] = []
        stopped: list[Undeliverable] = []
        for one in timeouts:
            message, why = delivered(one, stamp), self._refusal(one)
            if why is not None:
                stopped.append(Undeliverable(one, message, why))
                continue
            prepared.append(one)
            outgoing.append(Outgoing(one.destination, self._passed_on(message)))
        return PreparedBatch(prepared, outgoing, stopped)

    def _refusal(self, timeout: Timeout) -> TimeoutManagerError | None:
        """Return why *timeout* must not be passed on any more; None if it may."""
        try:
            check_destination(timeout.destination, self.limits)
        except InvalidMessage as error:
            return error
        if self.dead_letters is None:
            return None
        return self.dead_letters.refusal(timeout.message, waited(timeout.attempts))

    def classify(
        self, prepared: PreparedBatch, results: Sequence[SendAnswer], work: IsolatedSends
    ) -> SendOutcome:
        """Return what became of a batch by the *results* of its sending.

        What arrived is noted, and what leaves a dead letter is buried; ``failed`` is then what
        belongs into the error queue.
        """
        found = classify_results(prepared.timeouts, prepared.outgoing, results, self.attempts)
        failed = [*prepared.stopped, *found.failed]
        if self.dead_letters is None:
            return replace(found, failed=failed)
        confirmed = [
            sent
            for sent, result in zip(prepared.outgoing, results, strict=True)
            if result is SendResult.CONFIRMED
        ]
        note_confirmed(self.dead_letters, confirmed, work)
        buried = dead_letter_each(self.dead_letters, failed, work)
        return replace(found, failed=buried.others, dead=buried.dead, later=buried.later)

    def _passed_on(self, message: Message) -> Message:
        return message if self.dead_letters is None else self.dead_letters.passed_on(message)
