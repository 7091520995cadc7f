"""The two timers of a message: time to reach its queue, and time to be received. Pure.

Both are relative: each host counts what a message spent there, and no host's clock is compared
with another's. The shorter one rules.
"""

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from timeoutmgr.contracts.message_classes import MessageClass
from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message.instants import duration_micros

REACH_QUEUE_DEFAULT: Final = timedelta(days=4)
"""What a message has to reach its queue if nobody says otherwise: 345,600 seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timers:
    """What a message has left, from the instant that it is looked at.

    *be_received* is its whole life, transit included; None is for ever, zero ends it at once.
    """

    reach_queue: timedelta = REACH_QUEUE_DEFAULT
    be_received: timedelta | None = None

    def __post_init__(self) -> None:
        """Check both."""
        for name, value in (("reach", self.reach_queue), ("be received from", self.be_received)):
            if value is not None and (not isinstance(value, timedelta) or value < timedelta(0)):
                raise InvalidMessage(
                    f"the time to {name} a queue is a timedelta of zero or more, got {value!r}"
                )

    @property
    def until_arrival(self) -> timedelta:
        """How long it may still take to arrive: the shorter of the two."""
        if self.be_received is None:
            return self.reach_queue
        return min(self.reach_queue, self.be_received)

    def after(self, spent: timedelta) -> "Timers":
        """Return what is left after a host kept the message for *spent*; never below zero.

        A clock that was set back while it lay there counts as no time spent.
        """
        passed = max(spent, timedelta(0))
        left = None if self.be_received is None else max(self.be_received - passed, timedelta(0))
        return replace(
            self, reach_queue=max(self.reach_queue - passed, timedelta(0)), be_received=left
        )

    def ended(self, *, arrived: bool, at_sender: bool = False) -> MessageClass | None:
        """Return the class of a message whose time is up, None while it has some left.

        *at_sender*: it never left, and it is the time to be received that ran out.
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
        """The time to be received in microseconds, None for ever."""
        return None if self.be_received is None else duration_micros(self.be_received)
