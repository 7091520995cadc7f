"""What a store remembers about an id's messages, to tell repeats from new messages.

A store keeps the digest of the current message. If that message was replaced, it also keeps the
digest of the first message and when the last replacement was sent. So a redelivery of either
message is recognised, and an older replacement too, even after the timeout is closed. A replacement
may overtake the first message while another consumer has it or was killed with it: then the first
message is remembered when it arrives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from timeoutmgr.contracts import OnConflict, RepeatKind, Timeout
from timeoutmgr.contracts.timeouts import SIZE, in_full, is_same
from timeoutmgr.message.instants import Micros

AWAITED: Final = b""
"""Stands for an id that was cancelled before its message arrived."""
_SENT_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Remembered:
    """The content of an id's message; *replaced_at* is set only for a replacement.

    *first* is the content that was replaced; None if that message has not arrived yet.
    """

    content: bytes
    first: bytes | None = None
    replaced_at: Micros | None = None

    def replaced_by(self, timeout: Timeout, content: bytes) -> Remembered:
        """Return the memory after *timeout* has replaced the message."""
        first = self.content if self.replaced_at is None else self.first
        return Remembered(content, first, timeout.created)

    def kind_of(self, timeout: Timeout, content: bytes) -> RepeatKind:
        """Return what kind of repeat *timeout* is, given that it replaces nothing."""
        if timeout.on_conflict is OnConflict.REPLACE and self._is_older(timeout):
            return RepeatKind.SUPERSEDED
        known = (self.content, self.first)
        if any(one is not None and is_same(one, content) for one in known):
            return RepeatKind.DUPLICATE
        return RepeatKind.SUPERSEDED if self.overtook(timeout) else RepeatKind.CONFLICT

    def overtook(self, timeout: Timeout) -> bool:
        """Return whether *timeout*, of unknown content, arrived after its own replacement."""
        is_first = self.first is None and timeout.on_conflict is OnConflict.KEEP
        return is_first and self._is_older(timeout)

    def _is_older(self, timeout: Timeout) -> bool:
        return self.replaced_at is not None and timeout.created < self.replaced_at

    def pack(self) -> bytes:
        """Return the memory as bytes for a column."""
        if self.replaced_at is None:
            return self.content
        first = b"" if self.first is None else in_full(self.first)
        sent = self.replaced_at.to_bytes(_SENT_BYTES, "big", signed=True)
        return in_full(self.content) + first + sent


def unpack(packed: bytes | None) -> Remembered | None:
    """Return the unpacked memory; None if the content is unknown."""
    if not packed:
        return None
    if len(packed) <= SIZE:
        return Remembered(packed)
    first, sent = packed[SIZE:-_SENT_BYTES] or None, packed[-_SENT_BYTES:]
    return Remembered(packed[:SIZE], first, int.from_bytes(sent, "big", signed=True))


def memory_of_new(timeout: Timeout, content: bytes) -> bytes:
    """Return the packed memory of *timeout* with *content*, whose id is new."""
    if timeout.on_conflict is not OnConflict.REPLACE:
        return content
    return Remembered(content, replaced_at=timeout.created).pack()


def with_first(packed: bytes | None, timeout: Timeout, content: bytes) -> bytes | None:
    """Return the memory *packed* with *timeout* added if its replacement overtook it, or None."""
    remembered = unpack(packed)
    if remembered is None or not remembered.overtook(timeout):
        return None
    return replace(remembered, first=content).pack()


def kind_of(packed: bytes | None, timeout: Timeout, content: bytes) -> RepeatKind:
    """Return what kind of repeat *timeout* with *content* is, if its id is known as *packed*."""
    if packed == AWAITED:
        return RepeatKind.CANCELLED
    remembered = unpack(packed)
    return RepeatKind.DUPLICATE if remembered is None else remembered.kind_of(timeout, content)
