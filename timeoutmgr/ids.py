"""Ids as text: random ones, and the form that all of them have."""

import os
from typing import Final

_FREE: Final = ~(0xF000 << 64 | 0xC000 << 48)
_VARIANT: Final = 0x8000 << 48
_RANDOM: Final = 4


def uuid_text(number: int, version: int) -> str:
    """Return the UUID of RFC 4122 that has *number*'s bits, but for those of version and variant.

    As ``uuid.UUID`` spells it, without the object in between: each message needs two of them.
    """
    text = f"{number & _FREE | version << 76 | _VARIANT:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def random_id() -> str:
    """Return a new id, as ``uuid.uuid4`` makes them."""
    return uuid_text(int.from_bytes(os.urandom(16), "big"), _RANDOM)
