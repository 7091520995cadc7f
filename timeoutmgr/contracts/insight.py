"""Numbers and pages of a store at a bounded cost: for commands, pages, metrics and forecasts.

Bounded are the rows that an answer reads, not only the rows that it returns. A filter that an
index serves is followed along that index; other filters are tested on at most LOOKED_AT rows, in
the order in which timeouts are tried, and on fewer rows if these take long. An answer that ends
there says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from timeoutmgr.contracts.persistences import HistoryEntry
from timeoutmgr.contracts.reports import Count
from timeoutmgr.contracts.timeouts import Key, Page, Timeout, TimeoutFilter, TimeoutState
from timeoutmgr.message.instants import Micros

# --- what comes when ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoadWindow:
    """A span of time from *start*, cut into *buckets* of *width* microseconds."""

    start: Micros
    width: Micros
    buckets: int

    def __post_init__(self) -> None:
        """Refuse a window without time, or of more buckets than a page can show."""
        if self.width < 1 or not 1 <= self.buckets <= MOST_BUCKETS:
            raise ValueError(
                f"a window has 1 to {MOST_BUCKETS} buckets of at least 1 microsecond, got "
                f"{self.buckets} of {self.width}"
            )

    @property
    def end(self) -> Micros:
        """The instant behind the last bucket."""
        return self.start + self.width * self.buckets

    def behind(self, number: int) -> LoadWindow:
        """Return the window of the buckets from *number* on."""
        return LoadWindow(self.start + number * self.width, self.width, self.buckets - number)


MOST_BUCKETS = 500
"""Maximum number of buckets of a window."""


@dataclass(frozen=True, slots=True)
class Load:
    """How many timeouts are tried in each bucket of *window*, as the store saw it *at* an instant.

    A timeout that waits for another try counts when it is tried. Each count has its own mark:
    exact, at least, or an estimate from the statistics of the database.
    """

    window: LoadWindow
    counts: Sequence[Count]
    at: Micros

    @property
    def total(self) -> Count:
        """The sum of the buckets, with the weakest of their marks."""
        return Count(
            sum(count.number for count in self.counts),
            exact=all(count.exact for count in self.counts),
            is_estimate=any(count.is_estimate for count in self.counts),
        )


# --- groups, overdue, in flight ----------------------------------------------------------------


class GroupBy(StrEnum):
    """What the groups of timeouts have in common."""

    DESTINATION = "destination"
    TYPE = "type"


@dataclass(frozen=True, slots=True)
class Groups:
    """Numbers of the earliest timeouts by destination or type; None: a message without a type.

    *searched_to* is a key if the search ended there, before the limit: timeouts behind it may
    match too.
    """

    counts: Mapping[str | None, int]
    searched_to: Key | None = None

    @property
    def counted(self) -> int:
        """How many timeouts are in the groups."""
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class Overdue:
    """Timeouts that were due before an instant: their number, and the due time of the oldest."""

    count: Count
    oldest: Micros | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimReport:
    """A claim that holds: its owner, how many keys it had, from which key to which, until when."""

    token: str
    owner: str
    size: int
    first: Key
    last: Key
    until: Micros


@dataclass(frozen=True, slots=True)
class InFlightReport:
    """Timeouts that dispatchers have: their number, and the claims, the earliest keys first.

    At most MOST_CLAIMS claims are listed; the number has them all.
    """

    number: int
    claims: Sequence[ClaimReport]


MOST_CLAIMS = 1_000
"""Maximum number of claims that are listed."""


# --- one timeout, and the history of all --------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutDetails:
    """An id: its state, its message while it is pending, and its events, oldest first.

    *claim* is the claim that covers its key, if there is one.
    """

    id: str
    state: TimeoutState
    timeout: Timeout | None
    claim: ClaimReport | None
    events: Sequence[HistoryEntry]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFilter:
    """Which events to list; the instants are a half-open range, None means any."""

    event: str | None = None
    destination: str | None = None
    since: Micros | None = None
    before: Micros | None = None


@dataclass(frozen=True, slots=True)
class HistoryCursor:
    """The position of an event: its instant, and its number among all events."""

    at: Micros
    sequence: int


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """Events, newest first. *next* is where to go on, None behind the last event.

    A page may have fewer events than were asked for, or none, and still a *next*: so many events
    of other kinds were read.
    """

    events: Sequence[HistoryEntry]
    next: HistoryCursor | None = None


# --- the contract -------------------------------------------------------------------------------


@runtime_checkable
class Insight(Protocol):
    """A store that answers about its timeouts at a bounded cost; it locks nothing."""

    def count_in_bounds(self, which: TimeoutFilter) -> Count:
        """Return how many pending timeouts match: exact up to COUNTED, otherwise at least so many.

        If no index helps, at most the first LOOKED_AT rows are read.
        """
        ...

    def list_in_bounds(
        self, which: TimeoutFilter, *, limit: int = 100, after: Key | None = None
    ) -> Page:
        """Return a page as ``list`` does; if no index helps, of LOOKED_AT rows or fewer."""
        ...

    def groups(
        self, which: TimeoutFilter, by: GroupBy, *, limit: int, after: Key | None = None
    ) -> Groups:
        """Return the numbers of the earliest *limit* matches behind the key *after*, by *by*.

        A search that takes long ends before.
        """
        ...

    def load(self, window: LoadWindow, *, destination: str | None = None) -> Load:
        """Return how many timeouts are tried in each bucket of *window*.

        If a bucket has more than can be read, the statistics of the database give an estimate;
        without them the count is a lower bound.
        """
        ...

    def details(self, timeout_id: str, *, events: int = 100) -> TimeoutDetails | None:
        """Return what is known of an id, with its newest *events*; None if it was never seen."""
        ...

    def overdue(self, before: Micros) -> Overdue:
        """Return the timeouts that were due before an instant; a retry counts by its due time."""
        ...

    def in_flight(self) -> InFlightReport:
        """Return the claims that hold now."""
        ...

    def events(
        self, which: HistoryFilter, *, limit: int = 100, after: HistoryCursor | None = None
    ) -> HistoryPage:
        """Return a page of the history, newest first; at most LOOKED_AT events are read."""
        ...


@runtime_checkable
class ReadsAtOnce(Protocol):
    """A store that can give several answers in one transaction."""

    def one_read(self) -> AbstractContextManager[None]:
        """Have the answers that this thread asks for inside share a transaction."""
        ...
