"""The two timers of a message: time to reach its queue, and time to be received. Pure.

Both are relative: each host counts the time that a message spent there, and clocks of two hosts are
never compared. The shorter timer rules.
"""

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from timeoutmgr.contracts.dead_letters import MessageClass
from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message.instants import duration_micros

REACH_QUEUE_DEFAULT: Final = timedelta(days=4)
"""Default time to reach the queue: 345,600 seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timers:
    """Remaining times of a message, from now on.

    *be_received* includes the transit; None is unlimited, zero ends the message at once.
    """

    reach_queue: timedelta = REACH_QUEUE_DEFAULT
    be_received: timedelta | None = None

    def __post_init__(self) -> None:
        """Check both times."""
        for name, value in (("reach", self.reach_queue), ("be received from", self.be_received)):
            if value is not None and (not isinstance(value, timedelta) or value < timedelta(0)):
                raise InvalidMessage(
                    f"the time to {name} a queue must be a timedelta of zero or more, got {value!r}"
                )

    @property
    def until_arrival(self) -> timedelta:
        """Remaining time to arrive: the shorter of the two."""
        if self.be_received is None:
            return self.reach_queue
        return min(self.reach_queue, self.be_received)

    def after(self, spent: timedelta) -> "Timers":
        """Return the times that remain after *spent* on a host; never below zero.

        A negative *spent* (a clock was set back meanwhile) counts as zero.
        """
        passed = max(spent, timedelta(0))
        left = None if self.be_received is None else max(self.be_received - passed, timedelta(0))
        return replace(
            self, reach_queue=max(self.reach_queue - passed, timedelta(0)), be_received=left
        )

    def ended(self, *, arrived: bool, at_sender: bool = False) -> MessageClass | None:
        """Return the class of a message whose time is over, or None if time remains.

        *at_sender*: the message never left its sender.
        """
        if arrived:
            is_up = self.be_received is not None and not self.be_received
            return MessageClass.NACK_RECEIVE_TIMEOUT if is_up else None
        if self.until_arrival:
            return None
        if at_sender and self.be_received is not None and self.be_received < self.reach_queue:
            return MessageClass.NACK_RECEIVE_TIMEOUT_AT_SENDER
        return MessageClass.NACK_REACH_QUEUE_TIMEOUT

    @property
    def reach_queue_micros(self) -> int:
        """The time to reach the queue in microseconds."""
        return duration_micros(self.reach_queue)

    @property
    def be_received_micros(self) -> int | None:
        """The time to be received in microseconds; None is unlimited."""
        return None if self.be_received is None else duration_micros(self.be_received)
