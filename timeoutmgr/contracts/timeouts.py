"""A stored timeout: its content, its place in the order, its state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple, TypeAlias

from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Message


class OnConflict(StrEnum):
    """Choice of a delayed message for an id that was used with other content.

    Content is destination, body and the sender's own headers. The due time counts only if both
    messages gave ``deliver_at``.
    """

    KEEP = "keep"
    """The first message stays. The newcomer goes whole to the error queue, with the reason."""
    REPLACE = "replace"
    """The newcomer takes the place of a pending timeout, if it was sent later than that was."""
    ERROR = "error"
    """As ``keep``; where the store takes part in the sender's transaction, ``send`` raises."""


ConflictName: TypeAlias = Literal["keep", "replace", "error"]
"""The value of an OnConflict, as text."""


class Key(NamedTuple):
    """Position of a timeout in its endpoint's order; *due* is the instant of its next try."""

    due: Micros
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeout:
    """A stored delayed message.

    *id* is derived from endpoint and message id, so that storing twice is storing once.
    *created* is when the sender sent it; *attempts* counts failed dispatches. After a failed
    dispatch *next_try* is the instant before which it is not tried again; 0 otherwise. *due_given*
    says that the sender gave ``deliver_at``, *on_conflict* how to treat an id that was used before;
    an insert reads both, and does not keep them.
    """

    id: str
    due: Micros
    destination: str
    message: Message
    saga_id: str | None = None
    created: Micros = 0
    attempts: int = 0
    next_try: Micros = 0
    due_given: bool = field(default=False, compare=False)
    on_conflict: OnConflict = field(default=OnConflict.KEEP, compare=False)

    @property
    def key(self) -> Key:
        """Its position in the order in which timeouts are tried.

        A timeout that waits for another try stands among timeouts that are due then: it delays no
        other meanwhile.
        """
        return Key(max(self.due, self.next_try) if self.next_try else self.due, self.id)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Keys of a claim, oldest first, and the time of the next poll.

    *token* names the claim (empty when *keys* is). *next_due* is the instant of the earliest
    timeout that was not handed out: in the past when the limit cut the chunk, None when nothing
    else is stored. Where all that is due is in other hands it is the instant to look again.
    *others* are the chunks behind it that were claimed with it, each by a claim of its own;
    *next_due* looks past them too.
    """

    token: str
    keys: tuple[Key, ...]
    next_due: Micros | None
    others: tuple[Chunk, ...] = ()

    @property
    def all(self) -> list[Chunk]:
        """This chunk and its further chunks, in order, without empty chunks."""
        return [chunk for chunk in (self, *self.others) if chunk.keys]


class TimeoutState(StrEnum):
    """State of a timeout id; all but ``pending`` are tombstones."""

    PENDING = "pending"
    DISPATCHED = "dispatched"
    CANCELLED = "cancelled"
    FAILED = "failed"
    MIGRATED = "migrated"
    """It was moved to another place."""


@dataclass(frozen=True, slots=True)
class Page:
    """Timeouts of a list, in order; *searched_to* is a key if the search ended there.

    Timeouts behind that key may match too, and were not looked at.
    """

    timeouts: Sequence[Timeout]
    searched_to: Key | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutFilter:
    """Which timeouts to list or count; due is a half-open range, None means any."""

    id: str | None = None
    saga_id: str | None = None
    destination: str | None = None
    due_from: Micros | None = None
    due_before: Micros | None = None
