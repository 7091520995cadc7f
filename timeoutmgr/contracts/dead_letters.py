"""The port to dead-letter queues, for the code that moves messages through an endpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum, IntFlag
from typing import Any, Final, Protocol

from timeoutmgr.contracts.timeouts import Timeout
from timeoutmgr.contracts.transactions import Transaction
from timeoutmgr.errors import InvalidMessage, TimeoutManagerError
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Message, Outgoing

# --- message classes, journaling and acknowledgement levels: MSMQ's names with MSMQ's numbers ---
# A class is sixteen bits: bit 15 is set for a negative class, bit 14 for the receive stage (else
# arrival), bit 13 for HTTP (the low byte then is an HTTP status), the low byte is the code.

_NEGATIVE: Final = 0x8000
_RECEIVE: Final = 0x4000
_HTTP: Final = 0x2000

ORDER_ACK: Final = 0x00FF
"""Between queue managers only: a transactional message arrived in order."""


class JournalLevel(IntFlag):
    """Copies that a message requests: a dead letter if it fails, a journal copy if it succeeds."""

    NONE = 0
    DEADLETTER = 1
    JOURNAL = 2
    BOTH = 3


class MessageClass(IntEnum):
    """Kind of a message, or how its delivery ended."""

    NORMAL = 0x0000
    REPORT = 0x0001
    ACK_REACH_QUEUE = 0x0002
    ACK_RECEIVE = 0x4000
    NACK_BAD_DST_Q = 0x8000
    NACK_PURGED = 0x8001
    NACK_REACH_QUEUE_TIMEOUT = 0x8002
    NACK_Q_EXCEED_QUOTA = 0x8003
    NACK_ACCESS_DENIED = 0x8004
    NACK_HOP_COUNT_EXCEEDED = 0x8005
    NACK_BAD_SIGNATURE = 0x8006
    NACK_BAD_ENCRYPTION = 0x8007
    NACK_COULD_NOT_ENCRYPT = 0x8008
    NACK_NOT_TRANSACTIONAL_Q = 0x8009
    NACK_NOT_TRANSACTIONAL_MSG = 0x800A
    NACK_UNSUPPORTED_CRYPTO_PROVIDER = 0x800B
    NACK_SOURCE_COMPUTER_GUID_CHANGED = 0x800C
    NACK_Q_DELETED = 0xC000
    NACK_Q_PURGED = 0xC001
    NACK_RECEIVE_TIMEOUT = 0xC002
    NACK_RECEIVE_TIMEOUT_AT_SENDER = 0xC003
    NACK_RECEIVE_REJECTED = 0xC004

    @property
    def is_negative(self) -> bool:
        """Whether the class means that the message was not delivered."""
        return is_negative(self)

    @property
    def is_receive(self) -> bool:
        """Whether the class is about receipt from the queue, not about arrival in the queue."""
        return is_receive(self)


def is_negative(code: int) -> bool:
    """Return whether *code* means that a message was not delivered."""
    return bool(code & _NEGATIVE)


def is_receive(code: int) -> bool:
    """Return whether *code* is of the receive stage, not of arrival."""
    return bool(code & _RECEIVE)


def is_http(code: int) -> bool:
    """Return whether the low byte of *code* is an HTTP status."""
    return bool(code & _HTTP)


def is_well_formed(code: int) -> bool:
    """Return whether *code* sets only bits that a class has; it need not be a known class."""
    return 0 <= code <= 0xFFFF and (is_http(code) or not code & ~(_NEGATIVE | _RECEIVE | 0xFF))


class AcknowledgeLevel(IntFlag):
    """Which acknowledgements are sent to a message's admin queue."""

    NONE = 0x00
    POS_ARRIVAL = 0x01
    POS_RECEIVE = 0x02
    NEG_ARRIVAL = 0x04
    NEG_RECEIVE = 0x08
    NACK_REACH_QUEUE = 0x04
    FULL_REACH_QUEUE = 0x05
    NACK_RECEIVE = 0x0C
    FULL_RECEIVE = 0x0E

    def asks_for(self, ended: int) -> bool:
        """Return whether this level requests an acknowledgement of the class *ended*."""
        if ended in (MessageClass.NORMAL, MessageClass.REPORT, ORDER_ACK):
            return False
        receive, negative = is_receive(ended), is_negative(ended)
        if receive:
            wanted = AcknowledgeLevel.NEG_RECEIVE if negative else AcknowledgeLevel.POS_RECEIVE
        else:
            wanted = AcknowledgeLevel.NEG_ARRIVAL if negative else AcknowledgeLevel.POS_ARRIVAL
        return bool(self & wanted)


# --- delivery options of a message, by which its sender overrides the endpoint's rules ----------


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
        """Check that the options are compatible."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterResult:
    """Messages to send because a message became a dead letter.

    *needed* notifies the source, which has the only copy: unless it is confirmed, the message must
    go another way. *notifications* are for senders that asked for a report; they may be lost if the
    queue is missing. *report* is the line for the log, to be written after the message is settled.
    """

    needed: tuple[Outgoing, ...] = ()
    notifications: tuple[Outgoing, ...] = ()
    report: str = ""


class DeadLetters(Protocol):
    """The dead-letter queues and journals of this endpoint's node."""

    @property
    def joins(self) -> bool:
        """Whether the transaction of the queues can include the store of dead letters."""
        ...

    def queue_of(self, destination: str) -> str:
        """Return the queue that *destination*, which may be a format name, stands for.

        Raises InvalidMessage if nothing can be sent to it.
        """
        ...

    def delivery_headers(
        self, given: Any, headers: Mapping[str, str], destination: str
    ) -> dict[str, str]:
        """Return the delivery headers of a new message with *headers*.

        *given* are DeliveryOptions, or None. Raises InvalidMessage if the node cannot keep them.
        """
        ...

    def ending(self, outgoing: Sequence[Outgoing]) -> Sequence[Outgoing]:
        """Return *outgoing*, with a time to live for messages that may expire in their queue."""
        ...

    def before_sending(
        self, outgoing: Sequence[Outgoing], transaction: Transaction | None = None
    ) -> None:
        """Store a copy of each transactional message until its final acknowledgement."""
        ...

    def after_sending(
        self, outgoing: Sequence[Outgoing], transaction: Transaction | None = None
    ) -> list[Outgoing]:
        """Record which messages reached their queues; return the acknowledgements to send."""
        ...

    def refusal(self, timeout: Timeout, at: Micros) -> TimeoutManagerError | None:
        """Return why *timeout* must not be forwarded at the instant *at*; None if it may be."""
        ...

    def tried(
        self, timeouts: Sequence[Timeout], at: Micros, transaction: Transaction | None = None
    ) -> None:
        """Note that *timeouts* could not be sent at the instant *at*. Raises StorageUnavailable."""
        ...

    def passed_on(self, message: Message) -> Message:
        """Return *message* with one hop more."""
        ...

    def dead_letter(
        self,
        message: Message,
        error: BaseException,
        *,
        queue: str,
        attempts: int = 0,
        transaction: Transaction | None = None,
    ) -> DeadLetterResult | None:
        """Store *message*, which could not be delivered to *queue* because of *error*.

        Return None if its level, its error or a full queue prevents a dead letter: then the message
        belongs in the error queue. Idempotent. Raises StorageUnavailable.
        """
        ...

    def wants_dead_letter(self, message: Message) -> bool:
        """Return whether *message* requests a dead letter; else it is discarded if late."""
        ...

    def misfit(self, message: Message, queue: str) -> TimeoutManagerError | None:
        """Return why *message* does not fit *queue* of this endpoint; None if it fits."""
        ...

    def received(
        self, message: Message, queue: str, transaction: Transaction | None = None
    ) -> list[Outgoing]:
        """Journal the handled *message*; return the acknowledgements to send."""
        ...
