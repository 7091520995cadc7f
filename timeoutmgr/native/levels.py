"""Delays as 28 bits: the level that a message enters, and its routing key. Pure functions.

Level *n* holds a message for 2^n seconds. A routing key has the bits of the delay, most significant
first, before the destination: ``0.0.….1.0.1.billing`` waits 5 s, in level 2 and in level 0. Each
level's exchange matches its own bit: 1 leads to its queue, 0 directly to the next exchange.
"""

from datetime import timedelta
from functools import lru_cache
from re import ASCII, DOTALL, compile
from typing import Final

from timeoutmgr.errors import DelayTooLong, InvalidMessage
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.validation import DESTINATION_BYTES

LEVELS: Final = 28
MAX_SECONDS: Final = 2**LEVELS - 1
"""268,435,455 s, eight and a half years. A longer delay would need a 29th bit, and shift all
bits."""
MAX_DELAY: Final = timedelta(seconds=MAX_SECONDS)

_SECOND: Final = 1_000_000
_ANY_DELAY: Final = "*." * LEVELS
_SPELLED: Final = tuple("".join(f"{bit}." for bit in f"{number:07b}") for number in range(128))
"""Texts of seven bits in a key. Joining four of these takes half the time of 28 single bits."""
_KEY: Final = compile(r"((?:[01]\.){28})(.+)", ASCII | DOTALL)


def parts_until(due: Micros, now: Micros, parts: int) -> int:
    """Return the time from *now* until *due* in *parts* of a second (8: eighths); 0 for the past.

    It is rounded up, so never early. Raises DelayTooLong beyond the range of the levels.
    """
    count = max(0, -((now - due) * parts // _SECOND))
    if count > MAX_SECONDS * parts:
        raise DelayTooLong(timedelta(microseconds=due - now), MAX_DELAY)
    return count


def start_level(seconds: int) -> int:
    """Return the level that a message of this delay enters: that of its highest bit; 0 for none."""
    return max(_checked(seconds).bit_length() - 1, 0)


def routing_key(seconds: int, destination: str) -> str:
    """Return the key under which a message for *destination* is delayed by *seconds*."""
    bits, seven = _checked(seconds), _SPELLED
    spelled = (
        seven[bits >> 21] + seven[bits >> 14 & 127] + seven[bits >> 7 & 127] + seven[bits & 127]
    )
    return spelled + check_destination(destination)


def read_routing_key(key: str) -> tuple[int, str] | None:
    """Parse a routing key: return the delay in seconds and the destination; None if invalid.

    The destination is everything after the bits, including dots.
    """
    found = _KEY.fullmatch(key)
    return None if found is None else (int(found[1].replace(".", ""), 2), found[2])


def binding_key(destination: str) -> str:
    """Return the key that binds *destination*, and no other name, to the delivery exchange.

    It has 28 wildcard words and the name: ``#.sales`` would also match ``eu.sales``.
    """
    return _ANY_DELAY + check_destination(destination)


def pass_key(level: int, bit: int) -> str:
    """Return the key that matches every message whose bit of *level* is *bit*."""
    return f"{'*.' * (LEVELS - 1 - level)}{bit}.#"


def enter_key(level: int | None) -> str:
    """Return the key for every message whose highest bit is *level*; None: without any bit."""
    if level is None:
        return f"{'0.' * LEVELS}#"
    return f"{'0.' * (LEVELS - 1 - level)}1.#"


@lru_cache(maxsize=1024)
def check_destination(destination: str) -> str:
    """Return *destination* if it can be bound exactly; raise InvalidMessage if not."""
    # Cached, because a program sends to few destinations; refused names are not cached.
    if not destination:
        raise InvalidMessage("a destination is the name of a queue, got an empty text")
    size = len(destination.encode())
    if size > DESTINATION_BYTES:
        raise InvalidMessage(
            f"destination {destination[:40]!r}… has {size} bytes of UTF-8; at most "
            f"{DESTINATION_BYTES} fit a routing key behind 28 delay levels"
        )
    if not {"*", "#"}.isdisjoint(destination.split(".")):
        raise InvalidMessage(
            f"destination {destination!r:.80} has '*' or '#' for a word, which in a binding stand "
            "for any word: it would receive messages for other queues. Choose another queue name"
        )
    return destination


def _checked(seconds: int) -> int:
    """Return *seconds*, 0 if in the past; raise DelayTooLong beyond the last level."""
    if seconds > MAX_SECONDS:
        raise DelayTooLong(timedelta(seconds=seconds), MAX_DELAY)
    return max(seconds, 0)
