"""Messages that a broker gives up: their class, and the step that collects them."""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Final

from timeoutmgr.contracts import SendResult, Transport
from timeoutmgr.contracts.dead_letters import JournalLevel, MessageClass
from timeoutmgr.contracts.transports import TellsDeadMessages
from timeoutmgr.deadletter.acknowledgements import final_acknowledgement
from timeoutmgr.deadletter.delivery_headers import read_headers
from timeoutmgr.deadletter.manager import QueueManager
from timeoutmgr.deadletter.stored_copy import DeliveryEnd, Placement
from timeoutmgr.errors import InvalidMessage, MessageRejected
from timeoutmgr.message.message import Death, Received
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.message.validation import Limits
from timeoutmgr.telemetry import Telemetry
from timeoutmgr.transport.error_queue import message_fields
from timeoutmgr.transport.work import Work

logger = logging.getLogger(__name__)

_ON_THE_WAY: Final = (".delay-level-", "nsb.delay-level-", "nsb.v2.delay-level-")


def class_of_death(death: Death) -> MessageClass:
    """Return the class of a message that RabbitMQ dead-lettered; *death* is its newest entry.

    A message that expired in a queue of the delay levels had not yet reached its own queue.
    """
    if death.reason == "expired":
        if any(part in death.queue for part in _ON_THE_WAY):
            return MessageClass.NACK_REACH_QUEUE_TIMEOUT
        return MessageClass.NACK_RECEIVE_TIMEOUT
    if death.reason == "maxlen":
        return MessageClass.NACK_Q_EXCEED_QUOTA
    return MessageClass.NACK_RECEIVE_REJECTED  # "rejected", "delivery_limit"


_KNOWN_FOR: Final = 60.0
"""Seconds for which an answer about a queue is cached: a policy may change."""


@dataclass(frozen=True, slots=True, eq=False)
class ExpiringQueues:
    """Knows for which queues the broker sends expired messages to the queue *collect_from*.

    In any other queue, an expired message would be lost together with its dead letter, so expiry is
    left to the receiver. The same applies to messages that request no dead letter, since the
    collector makes a dead letter of every message.
    """

    transport: Transport
    collect_from: str
    monotonic: Callable[[], float] = time.monotonic
    _known: dict[str, tuple[bool, float]] = field(default_factory=dict, repr=False)

    def __call__(self, queue: str, wants_dead_letter: bool) -> bool:
        """Return whether a message may expire in *queue*. Raises TransportUnavailable."""
        if not wants_dead_letter:
            return False
        now = self.monotonic()
        answer, until = self._known.get(queue, (False, now))
        if now < until:
            return answer
        with closing(self.transport.session()) as session:
            answer = (
                isinstance(session, TellsDeadMessages)
                and session.dead_messages_to(queue) == self.collect_from
            )
        self._known[queue] = answer, now + _KNOWN_FOR
        return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectDead:
    """The step on the queue to which a broker's policy sends dead messages.

    The policy asked for them, so their own level does not count. A transactional message becomes a
    dead letter at its source; here only if the source is unknown.
    """

    manager: QueueManager
    limits: Limits
    telemetry: Telemetry
    joins: bool

    def __call__(self, batch: Sequence[Received], work: Work) -> None:
        """Place each message of *batch*; raise MessageRejected for messages not given up."""
        for received in batch:
            death = received.death
            if death is None:
                raise MessageRejected(
                    f"message {received.message.id!r:.80} came to {received.queue!r} and no broker "
                    "says that it died; applications do not send to dead-letter queues"
                )
            end = DeliveryEnd(
                received.message,
                read_headers(received.message.headers),
                death.queue,
                class_of_death(death),
                self.manager.store.clock.now(),
                f"the broker gave it up in queue {death.queue!r:.80}: {death.reason:.80}",
            )
            if self._acknowledges(end, work):
                continue
            copy = end.stored_copy(death.count)
            copy = replace(copy, journal=copy.journal | JournalLevel.DEADLETTER)
            placed = self.manager.place(copy, transaction=work.transaction if self.joins else None)
            if placed is not Placement.PLACED:
                raise MessageRejected("the dead-letter queue is full")
            self.telemetry.count("dead_letters_collected")

    def _acknowledges(self, end: DeliveryEnd, work: Work) -> bool:
        """Notify another node, which keeps its copy of a transactional message until then."""
        source = end.delivery.source_node
        if not end.delivery.transactional or source in (None, self.manager.node):
            return False
        try:
            final = final_acknowledgement(end, self.limits)
            return work.try_send([final]) == [SendResult.CONFIRMED]
        except InvalidMessage as error:
            logger.warning(
                "node could not notify the source of message %.80r: %s",
                end.message.id,
                on_one_line(error),
                extra=message_fields("final_acknowledgement_refused", end.message, end.queue),
            )
            return False
