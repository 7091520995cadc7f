"""What a run is made of: its terms, its batches, and what was seen on the way. Values only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from timeoutmgr.contracts import Key, Timeout
from timeoutmgr.instants import Micros
from timeoutmgr.migration.states import BatchState, RunState
from timeoutmgr.migration.window import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What was asked for. A run is resumed with the same terms, or not at all.

    *source* and *target* are described without secrets: this is stored. *others* is what a
    source or target was told besides (renamed destinations, the digest of a file).
    """

    endpoint: str
    source: str
    target: str
    window: Window = field(default_factory=Window)
    batch: int = 5_000
    others: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the terms as they are stored, instants to the microsecond."""
        return json.dumps(self.document(), sort_keys=True)

    def document(self) -> dict[str, Any]:
        """Return the terms as plain values."""
        return {
            "endpoint": self.endpoint,
            "source": self.source,
            "target": self.target,
            "cutoff": self.window.cutoff,
            "until": self.window.until,
            "safety": self.window.safety,
            "overdue": self.window.overdue,
            "batch": self.batch,
            "others": dict(self.others),
        }

    @classmethod
    def from_json(cls, text: str) -> Terms:
        """Return the terms that were stored as *text*."""
        found = json.loads(text)
        names = ("cutoff", "until", "safety", "overdue")
        window = Window(**{name: found.pop(name) for name in names})
        return cls(window=window, **found)

    def differences(self, other: Terms) -> list[str]:
        """Return a line for each term in which *other* differs."""
        mine, theirs = self.document(), other.document()
        return [
            f"{name} was {mine[name]!r} and is {theirs[name]!r}"
            for name in mine
            if mine[name] != theirs[name]
        ]


@dataclass(frozen=True, slots=True)
class Range:
    """Timeouts from key *first* to *last*, both included; *count* of them when it was planned."""

    first: Key
    last: Key
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A range and what became of it.

    *taken* were hidden in the source and sent; of these *new* are at the target through this
    run and *known* were there before, dispatched or cancelled, so that the target dropped them.
    *returned* went back into the source. *repeated* may be at the target twice, under one id: a
    crash lay between sending them and writing that down. *claim* names who has it in hand, as
    the ledger does: nobody else can write it.
    """

    no: int
    range: Range
    state: BatchState = BatchState.PENDING
    taken: int = 0
    new: int = 0
    known: int = 0
    returned: int = 0
    repeated: int = 0
    claim: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run as the ledger knows it; *report* is what was saved at its end.

    *runner* is who works at it, as the ledger calls that process; batches are claimed for it.
    """

    id: str
    terms: Terms
    state: RunState
    created: Micros
    ended: Micros | None = None
    report: Mapping[str, Any] | None = None
    runner: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A timeout on its way, with what its row knew besides.

    *maybe_sent* must outlive the move: a cancel at the target may not promise more than one at
    the source could.
    """

    timeout: Timeout
    maybe_sent: bool = False


@dataclass(frozen=True, slots=True)
class Delivered:
    """What the target says of a batch: how many it took, and how many it knew already."""

    new: int
    known: int = 0

    @property
    def total(self) -> int:
        """How many the target answers for."""
        return self.new + self.known


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What a source holds for one endpoint within a window; instants are due times."""

    count: int
    earliest: Micros | None = None
    latest: Micros | None = None
    destinations: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    left: int = 0
    """Due outside the window, or too soon: they stay."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a run may not start, and what to do."""

    subject: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.what}; {self.remedy}"
