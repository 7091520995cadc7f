"""A dead letter: a message that could not be delivered, with all that is known of why."""

from dataclasses import dataclass
from enum import StrEnum

from timeoutmgr.contracts.message_classes import JournalLevel, MessageClass
from timeoutmgr.deadletter.delivery_headers import DeliveryHeaders
from timeoutmgr.message.instants import Micros, duration_micros
from timeoutmgr.message.message import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCopy:
    """A message that a node keeps: dead, awaiting its final acknowledgement, or a journal copy.

    *message_class* is its last known status, also where no class of that number is known here.
    *source* is the queue it came from, as far as that is known; *destination* the one it was for,
    which is also where it failed or was received. *kept* is when it came to lie here. The timers
    are those it was sent with, in microseconds. *late* says that it was received after all, after
    it had been given up. *channel* is the way by which the final acknowledgement came that settled
    it (see :mod:`timeoutmgr.message.channels`); None where none did.
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
        """The name of its class, or the number in hex where that has none."""
        try:
            return MessageClass(self.message_class).name
        except ValueError:
            return f"{self.message_class:#06x}"

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from every other letter of its node: message id and destination."""
        return self.message.id, self.destination


class NodeQueue(StrEnum):
    """The queues that a node has of itself."""

    DEADLETTER = "deadletter"
    DEADXACT = "deadxact"
    JOURNAL = "journal"


class Placement(StrEnum):
    """What came of placing a message."""

    PLACED = "placed"
    NOT_ASKED = "not_asked"
    """Its level does not ask for a dead letter (or a copy); nothing of it is kept."""
    OVER_QUOTA = "over_quota"
    """The queue is full: this, the new one, was not taken."""


def stored_copy_of(
    message: Message,
    delivery: DeliveryHeaders,
    message_class: int,
    *,
    destination: str,
    kept: Micros,
    reason: str = "",
    attempts: int = 0,
) -> StoredCopy:
    """Return *message*, which says *delivery* of itself, as a letter."""
    limit = delivery.time_to_be_received
    return StoredCopy(
        message=message,
        destination=destination,
        message_class=message_class,
        kept=kept,
        source=delivery.source_queue or "",
        transactional=delivery.transactional,
        application_queue=(delivery.dead_letter_queue or "") if delivery.transactional else "",
        journal=delivery.journal,
        sent=delivery.sent,
        time_to_reach_queue=duration_micros(delivery.time_to_reach_queue),
        time_to_be_received=None if limit is None else duration_micros(limit),
        hops=delivery.hops,
        attempts=attempts,
        reason=reason,
    )
