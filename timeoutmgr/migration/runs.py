"""Values of a run: its terms, its batches, surveys and problems."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from timeoutmgr.contracts import Key, ScheduleRecord, Timeout
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import EARLIEST, LATEST, Micros, require_window

# --- states of a run and its batches, and the allowed transitions. Pure ---------------------------
# ::
#
# run planned → running → completed ├────────┴─────► aborting → aborted
# └──────────────────────────────┘ (nothing was hidden yet)
#
# batch pending → hidden → sending → done └────────┴────► returned
#
# ``hidden`` means that the source's poller no longer sees the batch, and that certainly none of it
# was sent. ``sending`` is committed before the first send: the target may have any of it.


class MigrationRunState(StrEnum):
    """State of a run."""

    PLANNED = "planned"
    RUNNING = "running"
    COMPLETED = "completed"
    ABORTING = "aborting"
    ABORTED = "aborted"

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do."""
        return self in (MigrationRunState.COMPLETED, MigrationRunState.ABORTED)


class BatchState(StrEnum):
    """State of a batch."""

    PENDING = "pending"
    HIDDEN = "hidden"
    SENDING = "sending"
    DONE = "done"
    RETURNED = "returned"

    @property
    def is_open(self) -> bool:
        """Whether the batch is neither here nor there."""
        return self in (BatchState.HIDDEN, BatchState.SENDING)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do."""
        return self in (BatchState.DONE, BatchState.RETURNED)


_RUN: Final = MappingProxyType(
    {
        MigrationRunState.PLANNED: {
            MigrationRunState.RUNNING,
            MigrationRunState.ABORTING,
            MigrationRunState.ABORTED,
        },
        MigrationRunState.RUNNING: {MigrationRunState.COMPLETED, MigrationRunState.ABORTING},
        MigrationRunState.ABORTING: {MigrationRunState.ABORTED},
    }
)
_BATCH: Final = MappingProxyType(
    {
        BatchState.PENDING: {BatchState.HIDDEN},
        BatchState.HIDDEN: {BatchState.SENDING, BatchState.RETURNED},
        BatchState.SENDING: {BatchState.DONE, BatchState.RETURNED},
    }
)


def run_may_become(now: MigrationRunState, then: MigrationRunState) -> bool:
    """Return whether a run may go from state *now* to *then*; staying is allowed, for repeats."""
    return then is now or then in _RUN.get(now, ())


def batch_may_become(now: BatchState, then: BatchState) -> bool:
    """Return whether a batch may go from state *now* to *then*; staying is allowed, for repeats."""
    return then is now or then in _BATCH.get(now, ())


# --- the timeouts that a run moves, by due time. Pure ---------------------------------------------

MINUTE: Final = 60_000_000
SAFETY: Final = 15 * MINUTE
SOON: Final = 4 * 60 * MINUTE
"""A preview warns if the nearest timeout is due sooner than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Due times from *cutoff* on and before *until* (None: any), and not within *safety* of now.

    A timeout due that soon stays with the source, whose own poller delivers it on time. So a run
    needs no pause of its endpoint, and no timeout is late because of the move. With *overdue*, even
    timeouts that are already due are moved, for a source without a poller.
    """

    cutoff: Micros | None = None
    until: Micros | None = None
    safety: Micros = SAFETY
    overdue: bool = False

    def __post_init__(self) -> None:
        """Check the values."""
        if self.safety < 0:
            raise ConfigurationError(f"safety window must not be negative, got {self.safety} µs")
        require_window(ConfigurationError, cutoff=self.cutoff, until=self.until)

    def first(self, now: Micros) -> Micros:
        """Return the earliest due time that is moved at *now*."""
        cutoff = EARLIEST if self.cutoff is None else self.cutoff
        return cutoff if self.overdue else max(cutoff, now + self.safety)

    @property
    def end(self) -> Micros:
        """The instant before which a timeout must be due to be moved."""
        return LATEST + 1 if self.until is None else self.until


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Terms of a run. A run is resumed with the same terms, or not at all.

    *source* and *target* are descriptions without secrets, because they are stored. *others* has
    further options of source and target (renamed destinations, the digest of a file).
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
class KeyRange:
    """Timeouts from key *first* to *last*, both included; *count* of them when it was planned."""

    first: Key
    last: Key
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A range with its state and its counts.

    *collected* timeouts were hidden in the source and sent. Of these, *new* reached the target by
    this run; *known* were there before, or dispatched or cancelled, so the target dropped them.
    *returned* are at the source again. *repeated* may be at the target twice under one id, because
    of a crash between sending and recording. *claim* names the owner, as in the ledger: no
    other process can write the batch.
    """

    no: int
    range: KeyRange
    state: BatchState = BatchState.PENDING
    collected: int = 0
    new: int = 0
    known: int = 0
    returned: int = 0
    repeated: int = 0
    claim: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationRun:
    """A run as the ledger knows it; *report* was saved at its end.

    *runner* is the owner name of the process that works on it; batches are claimed for it.
    """

    id: str
    terms: Terms
    state: MigrationRunState
    created: Micros
    ended: Micros | None = None
    report: Mapping[str, Any] | None = None
    runner: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A timeout that is being moved, with the flag of its row.

    *maybe_sent* must survive the move: a cancel at the target must not promise more than a cancel
    at the source could.
    """

    timeout: Timeout
    maybe_sent: bool = False


@dataclass(frozen=True, slots=True)
class Delivered:
    """The target's answer for a batch: the numbers of new and of already known timeouts.

    *used* are the ids that the target has for other content; their timeouts stay at the source.
    """

    new: int
    known: int = 0
    used: frozenset[str] = frozenset()

    @property
    def total(self) -> int:
        """The number of timeouts that the target has accounted for."""
        return self.new + self.known


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Survey of a source for one endpoint within a window; instants are due times.

    *schedules* name the run that is stored ahead only while it is pending.
    """

    count: int
    earliest: Micros | None = None
    latest: Micros | None = None
    destinations: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    left: int = 0
    """Number of timeouts outside the window, due too soon, or with a route the target lacks."""
    schedules: tuple[ScheduleRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class Problem:
    """Reason why a run may not start, and its remedy."""

    subject: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.what}; {self.remedy}"


MOST_BYTES: Final = 32 * 1024 * 1024
"""Bytes of bodies in one batch, unless a single body has more.

A whole batch is in memory, and several copies of it during delivery: 5,000 bodies of a megabyte
would kill the process, and again each time the run is continued.
"""


def in_ranges(sized: Iterable[tuple[Key, int]], most: int) -> Iterator[KeyRange]:
    """Yield ranges of at most *most* keys of *sized*, which has keys in order with their bytes."""
    keys: list[Key] = []
    total = 0
    for key, size in sized:
        total += size
        if keys and (len(keys) == most or total > MOST_BYTES):
            yield KeyRange(keys[0], keys[-1], len(keys))
            keys, total = [], size
        keys.append(key)
    if keys:
        yield KeyRange(keys[0], keys[-1], len(keys))
