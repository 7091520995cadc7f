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
    """Return a UUID of RFC 4122 from 16 *octets*; version and variant replace some bits.

    The text is that of ``uuid.UUID``, without its object: each message needs three UUIDs.
    """
    text = octets.hex()
    low, high, variant = text[8:12], text[13:16], _VARIANT[text[16]]
    return f"{text[:8]}-{low}-{version}{high}-{variant}{text[17:20]}-{text[20:]}"


def random_id() -> str:
    """Return a new id, as ``uuid.uuid4`` makes them."""
    return uuid_text(os.urandom(16), _RANDOM)


def id_of(*parts: str) -> str:
    """Return an id that the same *parts*, and no other parts, always give."""
    digest = _digest(*map(_encoded, parts))
    return uuid_text(digest[:16], _OF_CONTENT)


class RepeatableIds:
    """Ids of messages that a handler sends: a repeat of the handler gets the same ids.

    Unless receiving and sending share a transaction, a handler's messages may be sent although it
    failed later, or its process died. With the same ids, a store recognizes the repeats, and a
    receiver can. *cause* identifies the handled message. Thread-safe.
    """

    def __init__(self, *cause: str) -> None:
        self._cause = _digest(*map(_encoded, cause))
        self._numbers: dict[bytes, Iterator[int]] = {}

    def next(self, destination: str, message_type: str, body: bytes, saga_id: str = "") -> str:
        """Return the id of the next message.

        The id depends on the content, and on the number of equal messages before it. It does not
        depend on the position among all messages, which may change with the next try, or on the due
        time, which a handler often computes from the current time.
        """
        texts = _encoded(destination), _encoded(message_type)
        saga = [_encoded(saga_id)] if saga_id else []
        content = _digest(self._cause, *texts, body, *saga)
        # Each of the two calls is atomic: two threads that send equal messages get different ids.
        number = next(self._numbers.setdefault(content, count()))
        digest = _digest(content, str(number).encode())
        return uuid_text(digest[:16], _OF_CONTENT)


def _encoded(text: str) -> bytes:
    # A lone surrogate gets an id too: a later check refuses the message, with a clear error.
    return text.encode("utf-8", "surrogatepass")


def _digest(*parts: bytes) -> bytes:
    found = hashlib.sha256()
    for part in parts:
        # The length marks where a part ends and the next begins.
        found.update(len(part).to_bytes(8, "big"))
        found.update(part)
    return found.digest()
