"""Time to be received in an unread queue: removal of the messages that expire there."""

import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from timeoutmgr.contracts import Clock, SendResult, Transaction, Transport, TransportSession
from timeoutmgr.contracts.dead_letters import DeadLetterResult
from timeoutmgr.contracts.transports import ExpiresMessages
from timeoutmgr.crashpoints import reach
from timeoutmgr.deadletter.service import DeadLetterService
from timeoutmgr.errors import DeliveryFailed, InvalidMessage, MessageRejected, ReceivedTooLate
from timeoutmgr.message.message import Outgoing, Received
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.telemetry import Telemetry
from timeoutmgr.transport.error_queue import ErrorQueue, FailedMessage, SendAnswer, message_fields

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpirySweep:
    """The sweep's step over the queues: it settles expired messages.

    A message that requests a dead letter becomes a dead letter of the node whose sweep finds it,
    or of its source if it is transactional; any other message is discarded, as by a receiver. A
    message for whose dead letter there is no place goes to the error queue.
    """

    transport: Transport
    queues: ExpiresMessages
    dead_letters: DeadLetterService
    error_queue: str
    clock: Clock
    telemetry: Telemetry

    def __call__(self, limit: int) -> int:
        """Settle up to *limit* messages; return how many, 0 if no message is left.

        Raises TransportUnavailable, and StorageUnavailable; then the messages stay queued.
        """
        reports: list[tuple[str, Received]] = []
        with closing(self.transport.session()) as session:

            def settle(batch: Sequence[Received], transaction: Transaction) -> None:
                reports.clear()  # of a transaction that met a conflict
                for received in batch:
                    report = self._settle(received, session, transaction)
                    reports.extend([(report, received)] if report else [])
                    reach("expiry.settled_one")

            count = self.queues.remove_expired(limit, settle)
        self.telemetry.count("expired_in_queue", count)
        for report, received in reports:
            fields = message_fields("dead_letter", received.message, received.queue)
            logger.error("%s", report, extra=fields)
        return count

    def _settle(
        self, received: Received, session: TransportSession, transaction: Transaction
    ) -> str:
        """Settle a message; return the log line to write after the commit."""
        message = received.message
        if not self.dead_letters.wants_dead_letter(message):
            return ""
        late = ReceivedTooLate(
            f"message {message.id!r:.80} was in queue {received.queue!r:.80} when its time to be "
            "received was over"
        )
        placed = self._place(received, late, session, transaction)
        if placed is None:
            self._move_to_error_queue(received, late, session, transaction)
        return "" if placed is None else placed.report

    def _place(
        self,
        received: Received,
        late: ReceivedTooLate,
        session: TransportSession,
        transaction: Transaction,
    ) -> DeadLetterResult | None:
        """Make the message a dead letter, here or at its source; None if neither has a place."""
        try:
            placed = self.dead_letters.dead_letter(
                received.message,
                late,
                queue=received.queue,
                attempts=received.delivery_count,
                transaction=transaction,
            )
        except (MessageRejected, InvalidMessage) as refusal:
            logger.warning(
                "sweeper keeps no dead letter of message %.80r: %s",
                received.message.id,
                on_one_line(refusal),
                extra=message_fields("dead_letter_rejected", received.message, received.queue),
            )
            return None
        if placed is None:
            return None
        reach("expiry.placed")
        needed = session.send(placed.needed, transaction=transaction)
        if set(needed) - {SendResult.CONFIRMED}:
            return None
        reach("expiry.source_told")
        # A missing admin queue is the sender's own fault.
        session.send(placed.notifications, transaction=transaction)
        return placed

    def _move_to_error_queue(
        self,
        received: Received,
        late: ReceivedTooLate,
        session: TransportSession,
        transaction: Transaction,
    ) -> None:
        def send(copies: Sequence[Outgoing]) -> list[SendAnswer]:
            return list(session.send(copies, transaction=transaction))

        queue = ErrorQueue(self.error_queue, self.dead_letters.endpoint, self.clock.now())
        [answer] = queue.move([FailedMessage(received.message, late, received.queue)], send)
        if answer is not SendResult.CONFIRMED:
            raise DeliveryFailed(
                f"message {received.message.id!r:.80} expired in queue {received.queue!r:.80}, and "
                f"error queue {self.error_queue!r} did not take it ({answer}); the message stays"
            )
