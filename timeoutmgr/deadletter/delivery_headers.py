"""Delivery headers of a message: level, timers, hops, source and admin queue.

A message without them (built by hand, or by another program) has level NONE.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from timeoutmgr.contracts.dead_letters import AcknowledgeLevel, JournalLevel, MessageClass
from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message import headers
from timeoutmgr.message.instants import (
    Micros,
    duration_micros,
    from_timespan,
    instant_of,
    to_timespan,
)
from timeoutmgr.message.message import Message, with_headers
from timeoutmgr.resilience.error_copy import without_failure

# --- the two timers of a message: time to reach its queue, and time to be received. Pure ------
# Both are relative: each host counts the time that a message spent there, and clocks of two hosts
# are never compared. The shorter timer applies.

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


JOURNAL: Final = "TimeoutManager.Journal"
TRANSACTIONAL: Final = "TimeoutManager.Transactional"
TIME_TO_REACH_QUEUE: Final = "TimeoutManager.TimeToReachQueue"
HOPS: Final = "TimeoutManager.Hops"
CLASS: Final = "TimeoutManager.Class"
ACKNOWLEDGE: Final = "TimeoutManager.Acknowledge"
ADMIN_QUEUE: Final = "TimeoutManager.AdminQueue"
SOURCE_NODE: Final = "TimeoutManager.SourceNode"
SOURCE_GUID: Final = "TimeoutManager.SourceGuid"
SOURCE_QUEUE: Final = "TimeoutManager.SourceQueue"
TARGET_QUEUE: Final = "TimeoutManager.TargetQueue"
DEAD_LETTER_QUEUE: Final = "TimeoutManager.DeadLetterQueue"

LIMITS: Final = frozenset({headers.TIME_TO_BE_RECEIVED, TIME_TO_REACH_QUEUE, HOPS, SOURCE_GUID})
"""Headers because of which a retried message would end again at once."""
MOST_HOPS: Final = 15
"""Maximum number of hops of a message."""


def without_limits(message: Message) -> Message:
    """Return *message* for a retry, without its limits, which may be exceeded by now."""
    kept = {name: value for name, value in message.headers.items() if name not in LIMITS}
    return with_headers(message, kept)


def prepared_for_retry(message: Message) -> Message:
    """Return *message* without its failure, and without the limits that would end it at once."""
    return without_limits(without_failure(message))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryHeaders:
    """Requests of a message for its delivery, and its hops so far."""

    journal: JournalLevel = JournalLevel.NONE
    transactional: bool = False
    time_to_reach_queue: timedelta = REACH_QUEUE_DEFAULT
    time_to_be_received: timedelta | None = None
    hops: int = 0
    acknowledge: AcknowledgeLevel = AcknowledgeLevel.NONE
    admin_queue: str | None = None
    source_node: str | None = None
    source_guid: str | None = None
    source_queue: str | None = None
    dead_letter_queue: str | None = None
    sent: Micros | None = None

    @property
    def timers(self) -> Timers:
        """Both timers as they were at the sending."""
        return Timers(reach_queue=self.time_to_reach_queue, be_received=self.time_to_be_received)

    @property
    def wants_dead_letter(self) -> bool:
        """Whether a failure leaves a dead letter."""
        return JournalLevel.DEADLETTER in self.journal

    @property
    def wants_journal(self) -> bool:
        """Whether a delivery leaves a journal entry."""
        return JournalLevel.JOURNAL in self.journal

    @property
    def has_hops_left(self) -> bool:
        """Whether its number of hops is within the limit."""
        return self.hops <= MOST_HOPS

    @property
    def awaits_final_acknowledgement(self) -> bool:
        """Whether its source keeps a copy until it knows how the delivery ended."""
        return self.transactional and self.journal is not JournalLevel.NONE

    def as_headers(self) -> dict[str, str]:
        """Return the headers; values equal to the default are left out."""
        given: dict[str, str | None] = {
            JOURNAL: str(int(self.journal)) if self.journal else None,
            TRANSACTIONAL: "True" if self.transactional else None,
            TIME_TO_REACH_QUEUE: to_timespan(self.time_to_reach_queue)
            if self.time_to_reach_queue != REACH_QUEUE_DEFAULT
            else None,
            HOPS: str(self.hops) if self.hops else None,
            ACKNOWLEDGE: str(int(self.acknowledge)) if self.acknowledge else None,
            ADMIN_QUEUE: self.admin_queue,
            SOURCE_NODE: self.source_node,
            SOURCE_GUID: self.source_guid,
            SOURCE_QUEUE: self.source_queue,
            DEAD_LETTER_QUEUE: self.dead_letter_queue,
        }
        return {name: value for name, value in given.items() if value is not None}


def read_headers(given: Mapping[str, str]) -> DeliveryHeaders:
    """Return the delivery headers in *given*; an unreadable value counts as absent.

    A message must not fail because a foreign program wrote an unreadable number.
    """
    level = _number(given, JOURNAL, 3)
    asked = _number(given, ACKNOWLEDGE, int(AcknowledgeLevel.FULL_RECEIVE) | 1)
    reach_queue = _duration(given, TIME_TO_REACH_QUEUE)
    return DeliveryHeaders(
        journal=JournalLevel(level),
        transactional=given.get(TRANSACTIONAL) == "True",
        time_to_reach_queue=REACH_QUEUE_DEFAULT if reach_queue is None else reach_queue,
        time_to_be_received=_duration(given, headers.TIME_TO_BE_RECEIVED),
        hops=_number(given, HOPS, 1_000_000),
        acknowledge=AcknowledgeLevel(asked),
        admin_queue=given.get(ADMIN_QUEUE) or None,
        source_node=given.get(SOURCE_NODE) or None,
        source_guid=given.get(SOURCE_GUID) or None,
        source_queue=given.get(SOURCE_QUEUE) or None,
        dead_letter_queue=given.get(DEAD_LETTER_QUEUE) or None,
        sent=instant_of(given, headers.TIME_SENT, None),
    )


def one_hop_more(given: Mapping[str, str]) -> dict[str, str]:
    """Return *given* with one more hop."""
    return {**given, HOPS: str(_number(given, HOPS, 1_000_000) + 1)}


def _number(given: Mapping[str, str], name: str, most: int) -> int:
    text = given.get(name, "0")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        return 0
    return int(text) if int(text) <= most else 0


def _duration(given: Mapping[str, str], name: str) -> timedelta | None:
    try:
        return from_timespan(given[name])
    except (KeyError, ValueError):
        return None
