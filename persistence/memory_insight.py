"""Contents of one endpoint's store in memory, and bounded answers about them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from timeoutmgr.contracts import (
    ClaimReport,
    Clock,
    Count,
    GroupBy,
    Groups,
    HistoryCursor,
    HistoryEntry,
    HistoryFilter,
    HistoryPage,
    InFlightReport,
    Key,
    Load,
    LoadWindow,
    Overdue,
    Page,
    ProcessRecord,
    ScheduleRecord,
    Timeout,
    TimeoutDetails,
    TimeoutFilter,
    TimeoutState,
)
from timeoutmgr.contracts.insight import MOST_CLAIMS
from timeoutmgr.contracts.sagas import Cleared
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.labels import labels_of
from timeoutmgr.message.message import enclosed_types

from .remembered import AWAITED


@dataclass(slots=True)
class MemoryRow:
    """A pending timeout."""

    timeout: Timeout
    maybe_sent: bool = False


@dataclass(slots=True)
class MemoryKnown:
    """State of an id."""

    state: TimeoutState
    due: Micros
    closed_at: Micros | None = None
    maybe_sent: bool = False
    content: bytes = AWAITED


@dataclass(slots=True)
class MemoryClaim:
    """Claimed keys."""

    keys: frozenset[Key]
    owner: str
    until: Micros


@dataclass(slots=True)
class MemoryContents:
    """Contents of one endpoint's store; access needs *lock*."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    rows: dict[Key, MemoryRow] = field(default_factory=dict)
    known: dict[str, MemoryKnown] = field(default_factory=dict)
    claims: dict[str, MemoryClaim] = field(default_factory=dict)
    locked: set[Key] = field(default_factory=set)
    history: list[HistoryEntry] = field(default_factory=list)
    processes: dict[str, ProcessRecord] = field(default_factory=dict)
    schedules: dict[str, ScheduleRecord] = field(default_factory=dict)
    cleared: dict[str, Cleared] = field(default_factory=dict)


class MemoryInsight:
    """Implements :class:`timeoutmgr.contracts.Insight` on the rows in memory."""

    def __init__(self, clock: Clock, contents: MemoryContents) -> None:
        self._clock = clock
        self._in = contents

    def list(
        self, which: TimeoutFilter, *, limit: int = 100, after: Key | None = None
    ) -> list[Timeout]:
        """Return a page of pending timeouts."""
        with self._in.lock:
            keys = sorted(key for key in self._in.rows if after is None or key > after)
            matching = (self._in.rows[key].timeout for key in keys)
            return [timeout for timeout in matching if matches(which, timeout)][:limit]

    def count(self, which: TimeoutFilter) -> int:
        """Return how many pending timeouts match."""
        with self._in.lock:
            return sum(matches(which, row.timeout) for row in self._in.rows.values())

    def count_in_bounds(self, which: TimeoutFilter) -> Count:
        """Return how many pending timeouts match."""
        return Count(self.count(which))

    def list_in_bounds(
        self, which: TimeoutFilter, *, limit: int = 100, after: Key | None = None
    ) -> Page:
        """Return a page as ``list`` does."""
        return Page(self.list(which, limit=limit, after=after))

    def groups(
        self, which: TimeoutFilter, by: GroupBy, *, limit: int, after: Key | None = None
    ) -> Groups:
        """Return group counts of the earliest *limit* matches after *after*."""
        found = self.list(which, limit=limit, after=after)
        names = (one.destination if by is GroupBy.DESTINATION else type_of(one) for one in found)
        return Groups(Counter(names))

    def load(self, window: LoadWindow, *, destination: str | None = None) -> Load:
        """Return how many timeouts are tried in each bucket of *window*."""
        with self._in.lock:
            buckets = Counter(
                window.bucket_of(key.due)
                for key, row in self._in.rows.items()
                if destination in {None, row.timeout.destination}
            )
            counts = [Count(buckets[number]) for number in range(window.buckets)]
            return Load(window, counts, self._clock.now())

    def find(self, timeout_id: str) -> tuple[TimeoutState, Timeout | None] | None:
        """Return the state of an id, and its row while it is pending."""
        with self._in.lock:
            known = self._in.known.get(timeout_id)
            if known is None:
                return None
            row = self._in.rows.get(Key(known.due, timeout_id))
            return known.state, row.timeout if row else None

    def history(self, timeout_id: str, *, limit: int = 100) -> Sequence[HistoryEntry]:
        """Return the newest *limit* events of *timeout_id*, oldest first."""
        with self._in.lock:
            events = [entry for entry in self._in.history if entry.id == timeout_id]
        return events[-limit:]

    def details(self, timeout_id: str, *, events: int = 100) -> TimeoutDetails | None:
        """Return what is known of an id."""
        with self._in.lock:
            found = self.find(timeout_id)
            if found is None:
                return None
            state, timeout = found
            over = [] if timeout is None else self._claims(timeout.key)
            return TimeoutDetails(
                id=timeout_id,
                state=state,
                timeout=timeout,
                claim=next(iter(over), None),
                events=self.history(timeout_id, limit=events),
            )

    def overdue(self, before: Micros) -> Overdue:
        """Return the timeouts that were due before an instant."""
        with self._in.lock:
            due = [row.timeout.due for row in self._in.rows.values() if row.timeout.due < before]
            return Overdue(Count(len(due)), min(due, default=None))

    def in_flight(self) -> InFlightReport:
        """Return the claims that are in force now."""
        with self._in.lock:
            claims = self._claims()
        return InFlightReport(sum(claim.size for claim in claims), claims[:MOST_CLAIMS])

    def _claims(self, over: Key | None = None) -> Sequence[ClaimReport]:
        now = self._clock.now()
        held = (
            ClaimReport(
                token=token,
                owner=claim.owner,
                size=len(claim.keys),
                first=min(claim.keys),
                last=max(claim.keys),
                until=claim.until,
            )
            for token, claim in self._in.claims.items()
            if claim.until > now and (over is None or over in claim.keys)
        )
        return sorted(held, key=lambda claim: (claim.first, claim.token))

    def events(
        self, which: HistoryFilter, *, limit: int = 100, after: HistoryCursor | None = None
    ) -> HistoryPage:
        """Return a page of the history, newest first."""
        with self._in.lock:
            numbered = [(HistoryCursor(one.at, no), one) for no, one in enumerate(self._in.history)]
        newest = sorted(numbered, key=lambda pair: (pair[0].at, pair[0].sequence), reverse=True)
        behind = (
            pair
            for pair in newest
            if _is_event(which, pair[1])
            and (after is None or (pair[0].at, pair[0].sequence) < (after.at, after.sequence))
        )
        found = list(islice(behind, limit))
        cursor = found[-1][0] if len(found) == limit else None
        return HistoryPage([event for _, event in found], next=cursor)


def _is_event(which: HistoryFilter, event: HistoryEntry) -> bool:
    return (
        which.event in {None, event.event}
        and which.destination in {None, event.destination}
        and (which.since is None or event.at >= which.since)
        and (which.before is None or event.at < which.before)
    )


def type_of(timeout: Timeout) -> str | None:
    """Return the full name of the most specific type of *timeout*."""
    types = enclosed_types(timeout.message)
    return types[0] if types else None


def matches(which: TimeoutFilter, timeout: Timeout) -> bool:
    """Return whether *timeout* matches *which*."""
    return (
        which.id in {None, timeout.id}
        and which.saga_id in {None, timeout.saga_id}
        and which.destination in {None, timeout.destination}
        and which.message_id in {None, timeout.message.id}
        and set(which.labels).issubset(labels_of(timeout.message))
        and which.message_type in {None, type_of(timeout)}
        and timeout.id.startswith(which.id_prefix or "")
        and (which.due_from is None or timeout.due >= which.due_from)
        and (which.due_before is None or timeout.due < which.due_before)
        and (which.tried_from is None or timeout.key.due >= which.tried_from)
        and (which.tried_before is None or timeout.key.due < which.tried_before)
    )
