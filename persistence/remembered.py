"""Memory of the messages of one id, and the kind of a further message.

The digest of the message that counts; for an id whose message was replaced also the digest of the
first message, and when the last replacement was sent. So a redelivery of either is known, and an
older replacement too, after the timeout is closed as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from timeoutmgr.contracts import OnConflict, RepeatKind, Timeout
from timeoutmgr.contracts.timeouts import SIZE, in_full, is_same
from timeoutmgr.message.instants import Micros

AWAITED: Final = b""
"""Of an id that was cancelled before its message arrived."""
_SENT_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Remembered:
    """The content of an id's message; *first* and *replaced_at* only if it was replaced."""

    content: bytes
    first: bytes | None = None
    replaced_at: Micros | None = None

    def replaced_by(self, timeout: Timeout, content: bytes) -> Remembered:
        """Return the memory once *timeout* has replaced the message."""
        return Remembered(content, self.first or self.content, timeout.created)

    def kind_of(self, timeout: Timeout, content: bytes) -> RepeatKind:
        """Return the kind of *timeout* beside the message that it cannot replace."""
        if timeout.on_conflict is OnConflict.REPLACE and self._is_older(timeout):
            return RepeatKind.SUPERSEDED
        known = (self.content, self.first)
        if any(one is not None and is_same(one, content) for one in known):
            return RepeatKind.DUPLICATE
        return RepeatKind.CONFLICT

    def _is_older(self, timeout: Timeout) -> bool:
        return self.replaced_at is not None and timeout.created < self.replaced_at

    def pack(self) -> bytes:
        """Return it as the bytes of a column."""
        if self.first is None or self.replaced_at is None:
            return self.content
        sent = self.replaced_at.to_bytes(_SENT_BYTES, "big", signed=True)
        return in_full(self.content) + in_full(self.first) + sent


def unpack(packed: bytes | None) -> Remembered | None:
    """Return the unpacked value; None where the content is not known."""
    if not packed:
        return None
    content, first, sent = packed[:SIZE], packed[SIZE : 2 * SIZE], packed[2 * SIZE :]
    if not first:
        return Remembered(content)
    return Remembered(content, first, int.from_bytes(sent, "big", signed=True))


def kind_of(packed: bytes | None, timeout: Timeout, content: bytes) -> RepeatKind:
    """Return the kind of repeat of *timeout*, with *content*, whose id was stored as *packed*."""
    if packed == AWAITED:
        return RepeatKind.CANCELLED
    remembered = unpack(packed)
    if remembered is None:
        return RepeatKind.DUPLICATE
    return remembered.kind_of(timeout, content)
