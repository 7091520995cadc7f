"""Ids as text: random ids, repeatable ids, and their common form."""

import hashlib
import os
from collections.abc import Iterator
from itertools import count
from typing import Final

_VARIANT: Final = {digit: "89ab"[int(digit, 16) % 4] for digit in "0123456789abcdef"}
_RANDOM: Final = 4
_OF_CONTENT: Final = 8


def uuid_text(octets: bytes, version: int) -> str:
    """Return the UUID of RFC 4122 of 16 *octets*, except the bits of version and variant.

    As ``uuid.UUID`` spells it, without the object in between: each message needs three of them.
    """
    text = octets.hex()
    low, high, variant = text[8:12], text[13:16], _VARIANT[text[16]]
    return f"{text[:8]}-{low}-{version}{high}-{variant}{text[17:20]}-{text[20:]}"


def random_id() -> str:
    """Return a new id, as ``uuid.uuid4`` makes them."""
    return uuid_text(os.urandom(16), _RANDOM)


def id_of(*parts: str) -> str:
    """Return the id that the same *parts* give each time, and no other parts."""
    digest = _digest(*map(_encoded, parts))
    return uuid_text(digest[:16], _OF_CONTENT)


class RepeatableIds:
    """Ids of messages sent while one message is handled: a repeat of the handler gets the same ids.

    Without one transaction for receiving and sending, a handler's messages are sent although it
    failed later, or its process died. Under the same ids a store knows it, and a receiver can.
    *cause* identifies the handled message. Safe for many threads.
    """

    def __init__(self, *cause: str) -> None:
        self._cause = _digest(*map(_encoded, cause))
        self._numbers: dict[bytes, Iterator[int]] = {}

    def next(self, destination: str, message_type: str, body: bytes) -> str:
        """Return the id of the next message.

        The id depends on the content, and on the number of equal messages before it. It does not
        depend on the place among all messages, which may change with the next try, nor on the due
        time, which a handler often computes from now.
        """
        content = _digest(self._cause, _encoded(destination), _encoded(message_type), body)
        # Each of the two is one step: of two threads that send the same none gets the other's id.
        number = next(self._numbers.setdefault(content, count()))
        digest = _digest(content, str(number).encode())
        return uuid_text(digest[:16], _OF_CONTENT)


def _encoded(text: str) -> bytes:
    # Half a surrogate pair gets an id too: a later check refuses the message, with a sentence.
    return text.encode("utf-8", "surrogatepass")


def _digest(*parts: bytes) -> bytes:
    found = hashlib.sha256()
    for part in parts:
        # The length tells where one ends and the next begins.
        found.update(len(part).to_bytes(8, "big"))
        found.update(part)
    return found.digest()
