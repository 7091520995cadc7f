"""A second message under an id that was used before: what it asks for, what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from timeoutmgr.contracts.transactions import Transaction

if TYPE_CHECKING:
    from timeoutmgr.contracts.timeouts import Timeout


class OnConflict(StrEnum):
    """What a delayed message asks for if its id was used with other content.

    Content is destination, body and the sender's own headers. The due time counts only if both
    messages gave ``deliver_at``.
    """

    KEEP = "keep"
    """The first message stays. The newcomer goes whole to the error queue, with the reason."""
    REPLACE = "replace"
    """The newcomer takes the place of a pending timeout, if it was sent later than that was."""
    ERROR = "error"
    """As ``keep``; where the store takes part in the sender's transaction, ``send`` raises."""


class RepeatKind(StrEnum):
    """What came of a message whose id was used before."""

    DUPLICATE = "duplicate"
    """The same content again, or the content of the first is not known: nothing changed."""
    CANCELLED = "cancelled"
    """The id was cancelled before the message arrived; the history says so from now on."""
    REPLACED = "replaced"
    """It took the place of the pending timeout."""
    SUPERSEDED = "superseded"
    """A replacement that was sent no later than the last one applied: nothing changed."""
    CONFLICT = "conflict"
    """Other content, and nothing to be replaced: nothing changed, the message is not stored."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """A timeout whose id was used before, and what came of it."""

    timeout: Timeout
    kind: RepeatKind


@runtime_checkable
class ExaminesIds(Protocol):
    """A store that tells, without storing anything, what would come of timeouts."""

    def examine(self, timeouts: Sequence[Timeout], *, transaction: Transaction) -> Sequence[Repeat]:
        """Return those of *timeouts* whose id was used before, as *transaction* sees it.

        A replacement that would be applied counts as REPLACED. Nothing is locked: the answer may
        be another one when the timeout is stored.
        """
        ...
