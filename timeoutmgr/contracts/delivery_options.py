"""Delivery options of a message: wishes of its sender beyond the endpoint's rules."""

from dataclasses import dataclass
from datetime import timedelta

from timeoutmgr.contracts.message_classes import AcknowledgeLevel, JournalLevel
from timeoutmgr.errors import InvalidMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryOptions:
    """Delivery options of a message; None leaves a choice to the endpoint.

    *transactional*: the source keeps a copy until it knows how the delivery ended.
    *dead_letter_queue* is an application's own dead-letter queue, in place of the node's.
    *acknowledge* says which acknowledgements go to *admin_queue*; it has no effect without that.
    """

    journal: JournalLevel | None = None
    transactional: bool = False
    time_to_reach_queue: timedelta | None = None
    dead_letter_queue: str | None = None
    acknowledge: AcknowledgeLevel = AcknowledgeLevel.NONE
    admin_queue: str | None = None

    def __post_init__(self) -> None:
        """Check the options against each other."""
        limit = self.time_to_reach_queue
        if limit is not None and (not isinstance(limit, timedelta) or limit < timedelta(0)):
            raise InvalidMessage(
                f"time_to_reach_queue is a timedelta of zero or more, got {limit!r}"
            )
        if self.dead_letter_queue is None:
            return
        if not self.transactional:
            raise InvalidMessage(
                f"dead_letter_queue {self.dead_letter_queue!r} is for transactional messages; set "
                "transactional=True, or leave it to the node's own queue"
            )
        if self.journal is not None and JournalLevel.DEADLETTER not in self.journal:
            raise InvalidMessage(
                f"dead_letter_queue {self.dead_letter_queue!r} needs a journal level with "
                f"DEADLETTER, got {self.journal!r}"
            )
