"""A second message under an id that was used before: the outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from timeoutmgr.contracts.timeouts import Timeout
from timeoutmgr.contracts.transactions import Transaction


class RepeatKind(StrEnum):
    """Effect of a message whose id was used before."""

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
    """A timeout whose id was used before, and its effect."""

    timeout: Timeout
    kind: RepeatKind


@runtime_checkable
class ExaminesIds(Protocol):
    """A store that foretells the repeats among timeouts, and stores nothing."""

    def examine(self, timeouts: Sequence[Timeout], *, transaction: Transaction) -> Sequence[Repeat]:
        """Return the *timeouts* whose id was used before, as *transaction* sees it.

        A replacement that would be applied counts as REPLACED. Nothing is locked: the answer may
        differ when the timeout is stored.
        """
        ...
