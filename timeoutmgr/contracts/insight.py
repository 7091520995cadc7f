"""Counts and lists of timeouts at a bounded cost: for commands, pages, metrics and forecasts.

The bound limits the rows that a query reads, not only the rows that it returns. If an index
supports a filter, the query uses the index. Other filters are tested on at most LOOKED_AT rows, in
the order in which timeouts are tried, and on fewer rows if they take long. The result says whether
the query ended at this bound.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, timedelta, tzinfo
from enum import StrEnum
from functools import cached_property
from math import gcd
from typing import Protocol, runtime_checkable

from timeoutmgr.contracts.persistences import HistoryEntry
from timeoutmgr.contracts.reports import Count
from timeoutmgr.contracts.timeouts import Key, Page, Timeout, TimeoutFilter, TimeoutState
from timeoutmgr.message.instants import MICROSECOND, Micros, from_micros, to_micros

# --- forecast: how many timeouts are due when -------------------------------------------------


HOUR = 3_600_000_000
"""Microseconds."""


@dataclass(frozen=True)
class LoadWindow:
    """A span of time from *start*, cut into *buckets* of *width* microseconds.

    With a *zone*, buckets of more than an hour follow its local time: a day has 23 or 25 hours when
    the clocks are put forward or back. A bucket of an hour always lasts an hour.
    """

    start: Micros
    width: Micros
    buckets: int
    zone: tzinfo = UTC

    def __post_init__(self) -> None:
        """Refuse an empty window, or a window of more buckets than a page can show."""
        if self.width < 1 or not 1 <= self.buckets <= MOST_BUCKETS:
            raise ValueError(
                f"a window has 1 to {MOST_BUCKETS} buckets of at least 1 microsecond, got "
                f"{self.buckets} of {self.width}"
            )

    @classmethod
    def around(cls, instant: Micros, width: Micros, buckets: int, zone: tzinfo = UTC) -> LoadWindow:
        """Return the window whose first bucket has *instant*, aligned to local time in *zone*."""
        wall = from_micros(instant).astimezone(zone).replace(tzinfo=UTC)
        since_begin = timedelta(microseconds=to_micros(wall) % width)
        if width <= HOUR:
            return cls(instant - since_begin // MICROSECOND, width, buckets, zone)
        begin = (wall - since_begin).replace(tzinfo=zone)
        return cls(to_micros(begin), width, buckets, zone)

    @cached_property
    def edges(self) -> Sequence[Micros]:
        """The start of each bucket, and the end of the last."""
        if self.zone is UTC or self.width <= HOUR:
            return range(self.start, self.start + self.width * self.buckets + 1, self.width)
        # A zone may skip the wall time at which the first bucket begins.
        before, at = (from_micros(self.start - off).astimezone(self.zone) for off in (1, 0))
        wall = min(before.replace(tzinfo=None) + MICROSECOND, at.replace(tzinfo=None))
        walls = (wall + no * self.width * MICROSECOND for no in range(1, self.buckets + 1))
        return [self.start, *(to_micros(each.replace(tzinfo=self.zone)) for each in walls)]

    @cached_property
    def step(self) -> Micros:
        """The longest time that divides every bucket into equal parts, counted from its start."""
        return gcd(*(edge - self.start for edge in self.edges))

    @property
    def end(self) -> Micros:
        """The instant behind the last bucket."""
        return self.edges[-1]

    def bucket_of(self, instant: Micros) -> int:
        """Return the number of the bucket with *instant*; out of range for an instant outside."""
        return bisect_right(self.edges, instant) - 1


MOST_BUCKETS = 500
"""Maximum number of buckets of a window."""


@dataclass(frozen=True, slots=True)
class Load:
    """How many timeouts are tried in each bucket of *window*, as of the instant *at*.

    A timeout that waits for another try counts when it is tried. Each count has its own exactness:
    exact, at least, or an estimate from the statistics of the database. An exact number from a
    background count says of which earlier instant it is.
    """

    window: LoadWindow
    counts: Sequence[Count]
    at: Micros

    @property
    def total(self) -> Count:
        """The sum of the buckets, with the weakest exactness among them."""
        return Count(
            sum(count.number for count in self.counts),
            exact=all(count.exact for count in self.counts),
            is_estimate=any(count.is_estimate for count in self.counts),
            as_of=self.as_of if any(count.as_of is not None for count in self.counts) else None,
        )

    @property
    def as_of(self) -> Micros:
        """The instant of the oldest count."""
        return min(
            (count.as_of for count in self.counts if count.as_of is not None), default=self.at
        )


# --- groups, overdue, in flight ----------------------------------------------------------------


class GroupBy(StrEnum):
    """Property by which timeouts are grouped."""

    DESTINATION = "destination"
    TYPE = "type"


@dataclass(frozen=True, slots=True)
class Groups:
    """Numbers of the earliest timeouts by destination or type; None is for messages without a type.

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
    """A claim in force: its owner, its number of keys, its first and last key, and its expiry."""

    token: str
    owner: str
    size: int
    first: Key
    last: Key
    until: Micros


@dataclass(frozen=True, slots=True)
class InFlightReport:
    """Timeouts that dispatchers have claimed: their number, and the claims, earliest keys first.

    At most MOST_CLAIMS claims are listed; the number includes all claims.
    """

    number: int
    claims: Sequence[ClaimReport]


MOST_CLAIMS = 1_000
"""Maximum number of claims that are listed."""


# --- one timeout, and the history of all --------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutDetails:
    """A timeout id: its state, its message while it is pending, and its events, oldest first.

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
    """Position of an event: its instant, and its number among all events."""

    at: Micros
    sequence: int


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """Events, newest first. *next* is where to go on, None behind the last event.

    A page may have fewer events than requested, or none, and still have a *next*: the search read
    many events that did not match, and stopped at its bound.
    """

    events: Sequence[HistoryEntry]
    next: HistoryCursor | None = None


# --- the contract -------------------------------------------------------------------------------


@runtime_checkable
class Insight(Protocol):
    """A store that counts and lists its timeouts at a bounded cost, without locks."""

    def count_in_bounds(self, which: TimeoutFilter) -> Count:
        """Return how many pending timeouts match: exact up to COUNTED, otherwise a lower bound.

        If no index supports the filter, at most the first LOOKED_AT rows are read.
        """
        ...

    def list_in_bounds(
        self, which: TimeoutFilter, *, limit: int = 100, after: Key | None = None
    ) -> Page:
        """Return a page as ``list`` does; without an index, read at most LOOKED_AT rows."""
        ...

    def groups(
        self, which: TimeoutFilter, by: GroupBy, *, limit: int, after: Key | None = None
    ) -> Groups:
        """Return the numbers of the earliest *limit* matches behind the key *after*, by *by*.

        A search that takes long ends early.
        """
        ...

    def load(self, window: LoadWindow, *, destination: str | None = None) -> Load:
        """Return how many timeouts are tried in each bucket of *window*.

        For a bucket with more rows than may be read: its recent background count; otherwise an
        estimate from the statistics of the database; without statistics, a lower bound.
        """
        ...

    def details(self, timeout_id: str, *, events: int = 100) -> TimeoutDetails | None:
        """Return the details of an id, with its newest *events*; None if it was never seen."""
        ...

    def overdue(self, before: Micros) -> Overdue:
        """Return the timeouts that were due before an instant; a retry counts by its due time."""
        ...

    def in_flight(self) -> InFlightReport:
        """Return the claims that are in force now."""
        ...

    def events(
        self, which: HistoryFilter, *, limit: int = 100, after: HistoryCursor | None = None
    ) -> HistoryPage:
        """Return a page of the history, newest first; at most LOOKED_AT events are read."""
        ...


@runtime_checkable
class ReadsAtOnce(Protocol):
    """A store that can run several queries in one transaction."""

    def one_read(self) -> AbstractContextManager[None]:
        """Run the queries that this thread makes inside the context in a shared transaction."""
        ...


@runtime_checkable
class CountsLoad(Protocol):
    """A store that counts in the background the buckets that ``load`` cannot read."""

    def request_load_counts(self, *, by_destination: bool = False) -> None:
        """Make the endpoint's processes count for the next hour; call it each time before ``load``.

        Counts *by_destination* cost more.
        """
        ...
