"""Stored copies: a dead letter or journal entry, with the facts of its delivery."""

from dataclasses import dataclass
from enum import StrEnum

from timeoutmgr.contracts.dead_letters import JournalLevel, MessageClass, is_well_formed
from timeoutmgr.deadletter.delivery_headers import DeliveryHeaders
from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message.instants import Micros, duration_micros
from timeoutmgr.message.message import Message


def class_name(number: int) -> str:
    """Return the name of the message class *number*, or the number in hex if it has no name."""
    try:
        return MessageClass(number).name
    except ValueError:
        return f"{number:#06x}"


def class_number(text: str) -> int:
    """Return the message class that a person names, or gives as a number. Raises InvalidMessage."""
    try:
        known = MessageClass.__members__.get(text.upper())
        number = int(text, 0) if known is None else known.value
    except ValueError:
        number = -1
    if not is_well_formed(number):
        names = ", ".join(each.name for each in MessageClass if each.is_negative)
        raise InvalidMessage(
            f"{text!r:.80} is not a message class; expected a number such as 0x8000, or {names}"
        )
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCopy:
    """A message on a node: a dead letter, a journal entry, or a copy awaiting acknowledgement.

    *message_class* is its last known status, perhaps a number without a name. *source* is the queue
    that sent it, if known; *destination* is the queue that failed or received it. *kept* is the
    instant of its storage. The timers have their values at the sending, in microseconds. *late*: a
    receiver acknowledged it after it became a dead letter. *channel* is the path of the final
    acknowledgement that settled it (see :mod:`timeoutmgr.message.routes`), or None.
    """

    message: Message
    destination: str
    message_class: int
    kept: Micros
    source: str = ""
    transactional: bool = False
    application_queue: str = ""
    journal: JournalLevel = JournalLevel.NONE
    sent: Micros | None = None
    time_to_reach_queue: Micros = 0
    time_to_be_received: Micros | None = None
    hops: int = 0
    attempts: int = 0
    reason: str = ""
    late: bool = False
    channel: str | None = None

    @property
    def class_name(self) -> str:
        """The name of its class, or the number in hex if it has no name."""
        return class_name(self.message_class)

    @property
    def key(self) -> tuple[str, str]:
        """Its key among the copies of a node: message id and destination."""
        return self.message.id, self.destination


class NodeQueue(StrEnum):
    """The own queues of a node."""

    DEADLETTER = "deadletter"
    DEADXACT = "deadxact"
    JOURNAL = "journal"


class Placement(StrEnum):
    """Result of placing a message."""

    PLACED = "placed"
    NOT_ASKED = "not_asked"
    """Its level does not request a dead letter (or a copy); the node stores nothing."""
    OVER_QUOTA = "over_quota"
    """The queue is full: the node discards the new copy."""


@dataclass(frozen=True, slots=True)
class DeliveryEnd:
    """How the delivery of *message* to *queue* ended, or how far it came, at that instant.

    *delivery* are the delivery headers of the message.
    """

    message: Message
    delivery: DeliveryHeaders
    queue: str
    message_class: int
    at: Micros
    reason: str = ""

    def stored_copy(self, attempts: int = 0) -> StoredCopy:
        """Return the copy of the message that a node stores."""
        delivery, limit = self.delivery, self.delivery.time_to_be_received
        return StoredCopy(
            message=self.message,
            destination=self.queue,
            message_class=self.message_class,
            kept=self.at,
            source=delivery.source_queue or "",
            transactional=delivery.transactional,
            application_queue=(delivery.dead_letter_queue or "") if delivery.transactional else "",
            journal=delivery.journal,
            sent=delivery.sent,
            time_to_reach_queue=duration_micros(delivery.time_to_reach_queue),
            time_to_be_received=None if limit is None else duration_micros(limit),
            hops=delivery.hops,
            attempts=attempts,
            reason=self.reason,
        )
