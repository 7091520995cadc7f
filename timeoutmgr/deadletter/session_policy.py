"""Dead letters around the sends of a program: copies are kept before, arrivals are noted after."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from timeoutmgr.contracts import DeadLetters, SendResult, Transaction, TransportSession
from timeoutmgr.contracts.dead_letters import DeliveryOptions
from timeoutmgr.crashpoints import reach
from timeoutmgr.errors import StorageUnavailable, TransportUnavailable
from timeoutmgr.message.message import Outgoing
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.transport.delivery_policy import SendingPolicy

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeepingSession:
    """A wrapper of the sends of a transport session."""

    session: TransportSession
    dead_letters: DeadLetters

    def send(
        self, outgoing: Sequence[Outgoing], *, transaction: Transaction | None = None
    ) -> list[SendResult]:
        """Keep copies, send, and note the arrivals; raise as a session does."""
        # The copy comes first: a crash in between leaves a copy that expires in time, and not a
        # message without a copy.
        self.dead_letters.before_sending(outgoing, transaction)
        reach("sending.source_keeps")
        results = self.session.send(outgoing, transaction=transaction)
        reach("sending.sent")
        arrived = confirmed(outgoing, results)
        try:
            acknowledgements = self.dead_letters.after_sending(arrived, transaction)
            reach("sending.arrivals_noted")
            self.session.send(acknowledgements, transaction=transaction)
        except (StorageUnavailable, TransportUnavailable) as error:
            if transaction is not None:
                raise
            # The messages are sent: do not raise, or the caller would send twice.
            logger.warning(
                "sender could not record the arrival of %d messages: %s",
                len(arrived),
                on_one_line(error),
                extra={"event": "arrivals_not_noted"},
            )
        return results


@dataclass(frozen=True, slots=True)
class DeadLetterSending(SendingPolicy):
    """The sending policy of an endpoint with dead-letter queues."""

    dead_letters: DeadLetters
    sends_at_once: ClassVar[bool] = False

    def queue_of(self, destination: str) -> str:
        """Return the queue of *destination*, which may be a format name."""
        return self.dead_letters.queue_of(destination)

    def delivery_headers(
        self, options: DeliveryOptions | None, headers: Mapping[str, str], destination: str
    ) -> Mapping[str, str]:
        """Return the delivery headers of a new message with *headers*."""
        return self.dead_letters.delivery_headers(options, headers, destination)

    def before_storing(self, outgoing: Sequence[Outgoing], transaction: Transaction | None) -> None:
        """Keep copies of transactional messages."""
        self.dead_letters.before_sending(outgoing, transaction)

    def wrap(self, session: TransportSession) -> KeepingSession:
        """Return *session* with copies kept and arrivals noted."""
        return KeepingSession(session, self.dead_letters)


def confirmed(outgoing: Sequence[Outgoing], results: Sequence[object]) -> list[Outgoing]:
    """Return the messages that their queues have."""
    both = zip(outgoing, results, strict=True)
    return [sent for sent, result in both if result is SendResult.CONFIRMED]
