"""Message classes, journaling and acknowledgement levels: MSMQ's names with MSMQ's numbers.

A class is sixteen bits: bit 15 is set for a negative class, bit 14 for the receive stage (else
arrival), bit 13 for HTTP (the low byte then is an HTTP status), the low byte is the code.
"""

from enum import IntEnum, IntFlag
from typing import Final

_NEGATIVE: Final = 0x8000
_RECEIVE: Final = 0x4000
_HTTP: Final = 0x2000

ORDER_ACK: Final = 0x00FF
"""Between queue managers only: a transactional message arrived in order."""


class JournalLevel(IntFlag):
    """Which copies a message asks for: a dead letter if it fails, a journal copy if it does not."""

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
        """Whether it says that the message was not delivered."""
        return is_negative(self)

    @property
    def is_receive(self) -> bool:
        """Whether it is about receiving from the queue, not about arriving there."""
        return is_receive(self)


def is_negative(code: int) -> bool:
    """Return whether *code* says that a message was not delivered."""
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
        """Return whether a message of this level wants to hear that it *ended* so, a class."""
        if ended in (MessageClass.NORMAL, MessageClass.REPORT, ORDER_ACK):
            return False
        receive, negative = is_receive(ended), is_negative(ended)
        if receive:
            wanted = AcknowledgeLevel.NEG_RECEIVE if negative else AcknowledgeLevel.POS_RECEIVE
        else:
            wanted = AcknowledgeLevel.NEG_ARRIVAL if negative else AcknowledgeLevel.POS_ARRIVAL
        return bool(self & wanted)
