"""Dead letters around the steps of a pump: handled messages, and messages that failed for good."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from timeoutmgr.contracts import DeadLetters, SendResult
from timeoutmgr.contracts.dead_letters import DeadLetterResult
from timeoutmgr.crashpoints import reach
from timeoutmgr.errors import InvalidMessage, MessageRejected, TimeoutManagerError
from timeoutmgr.message.message import Message, Outgoing, Received
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.telemetry import Telemetry
from timeoutmgr.transport.delivery_policy import FailurePolicy, HandlingPolicy
from timeoutmgr.transport.work import Work

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeadLetterHandling(HandlingPolicy):
    """The handling policy of an endpoint with dead-letter queues."""

    dead_letters: DeadLetters

    def traces_expired(self, message: Message) -> bool:
        """Return whether *message*, received too late, asks for a dead letter."""
        return self.dead_letters.expires_with_trace(message)

    def refusal(self, message: Message, queue: str) -> TimeoutManagerError | None:
        """Return why *message* does not fit *queue*, by the rule of the queue."""
        return self.dead_letters.misfit(message, queue)

    def send(self, outgoing: Sequence[Outgoing], work: Work) -> None:
        """Keep copies, send with the receive, note the arrivals."""
        self.dead_letters.before_sending(outgoing, work.transaction)
        reach("handler.source_keeps")
        work.send(outgoing)
        acknowledgements = self.dead_letters.after_sending(outgoing, work.transaction)
        reach("handler.arrivals_noted")
        work.notify(acknowledgements)

    def handled(self, message: Message, queue: str, work: Work) -> None:
        """Journal the handled message; send its acknowledgements."""
        reach("handler.finished")
        work.notify(self.dead_letters.received(message, queue, work.transaction))


@dataclass(frozen=True, slots=True)
class DeadLetterFailures(FailurePolicy):
    """The failure policy of an endpoint with dead-letter queues."""

    dead_letters: DeadLetters
    telemetry: Telemetry

    def divert(
        self, received: Received, error: Exception, open_work: Callable[[], Work]
    ) -> str | None:
        """Place the message in a dead-letter queue first, settle it second."""
        try:
            with open_work() as work:
                placed = self._place(received, error, work)
                if placed is None:
                    return None
                if not work.is_settled:
                    work.ack([received])
                    reach("pump.replaced")
        except (MessageRejected, InvalidMessage) as refusal:
            logger.warning(
                "pump keeps no dead letter of message %.80r: %s",
                received.message.id,
                on_one_line(refusal),
                extra=_fields("dead_letter_rejected", received),
            )
            return None
        if placed.report:
            logger.error("%s", placed.report, extra=_fields("dead_letter", received))
        self.telemetry.count("moved_to_dead_letters")
        return "a dead-letter queue"

    def _place(self, received: Received, error: Exception, work: Work) -> DeadLetterResult | None:
        placed = self.dead_letters.dead_letter(
            received.message,
            error,
            queue=received.queue,
            attempts=received.delivery_count + 1,
            transaction=work.transaction,
        )
        if placed is None:
            return None
        reach("pump.buried")
        if set(work.try_send(placed.needed)) - {SendResult.CONFIRMED}:
            return None
        reach("pump.source_told")
        work.notify(placed.notifications)
        reach("pump.told")
        return placed


def _fields(event: str, received: Received) -> dict[str, object]:
    return {
        "event": event,
        "message_id": received.message.id,
        "destination": received.queue,
        "attempt": received.delivery_count + 1,
    }
