"""Reports about a store and the processes that use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from timeoutmgr.message.instants import Micros
from timeoutmgr.message.redaction import masked

# --- A finding: the result of one check, as a line of a doctor's report -----------------------


class Level(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of a doctor's report."""

    level: Level
    check: str
    text: str
    remedy: str = ""

    def line(self) -> str:
        """Return the finding for people, with secrets masked."""
        remedy = f" -> {self.remedy}" if self.remedy else ""
        return masked(f"{self.level.value:<4}  {self.check}: {self.text}{remedy}")

    def document(self) -> dict[str, str]:
        """Return the finding for JSON, with secrets masked."""
        found = {"level": self.level.value, "check": self.check, "text": masked(self.text)}
        return {**found, "remedy": masked(self.remedy)} if self.remedy else found


LIVE: Final[Micros] = 3 * 60 * 1_000_000
"""Maximum age of the heartbeat of a live process: a process writes a heartbeat every 75 seconds."""

SENDERS_AHEAD: Final = "senders_ahead"
"""Key in the state of a process: names of senders whose clock is ahead of the store's."""
PROCESS_VERSION: Final = "version"
"""Key in the state of a process: the version of this package that it runs."""


COUNTED: Final = 10_000
"""Maximum number of timeouts that are counted exactly; a larger number is a lower bound."""
LOOKED_AT: Final = 50_000
"""Maximum number of rows read to count or list matches that no index finds: a store may read fewer
if they take long."""


class Exactness(StrEnum):
    """Accuracy of a number."""

    EXACT = "exact"
    AT_LEAST = "at_least"
    """A lower bound: further rows were not read."""
    ESTIMATE = "estimate"
    """An estimate from the statistics of the database: there may be more or fewer."""


@dataclass(frozen=True, slots=True)
class Count:
    """A number of timeouts; if it is not *exact*, a lower bound or an estimate.

    An estimate comes from the statistics of the database, and may be too high or too low. The
    number of a background count is as of an earlier instant, *as_of*.
    """

    number: int
    exact: bool = True
    is_estimate: bool = False
    as_of: Micros | None = None

    @property
    def exactness(self) -> Exactness:
        """Accuracy of the number."""
        if self.is_estimate:
            return Exactness.ESTIMATE
        return Exactness.EXACT if self.exact else Exactness.AT_LEAST

    def __str__(self) -> str:
        """Return the number as text, with a sign if it is a bound or an estimate."""
        if self.is_estimate:
            return f"≈{self.number}"
        return str(self.number) if self.exact else f"{self.number}+"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatistics:
    """Figures of a store; lateness is in microseconds, over the most recent dispatches.

    *pending*, *due* and *outcomes* are counted up to COUNTED. The numbers named in *at_least* are
    lower bounds.
    """

    pending: int
    due: int
    oldest_due: Micros | None
    claimed: int
    outcomes: Mapping[str, int]
    lateness_p50: int | None
    lateness_p99: int | None
    lateness_max: int | None
    at_least: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord:
    """The last heartbeat of a process; *state* has the reports of its features."""

    owner: str
    endpoint: str
    host: str
    pid: int
    started: Micros
    heartbeat: Micros
    state: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointReport:
    """An endpoint with pending timeouts: the earliest due time, and the last heartbeat or 0."""

    endpoint: str
    earliest: Micros
    last_heartbeat: Micros


DAY = 86_400_000_000
"""Microseconds over which statistics count outcomes."""
RECENT = 1_000
"""Number of the latest dispatches over which statistics measure lateness."""


def percentile(ordered: Sequence[int], percent: int) -> int | None:
    """Return the nearest-rank percentile of ascending values; None if there are no values."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] if ordered else None
