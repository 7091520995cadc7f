"""A telemetry that counts in a section of the memory."""

import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import isnan, nan
from time import perf_counter_ns
from typing import Final

from timeoutmgr.message.instants import Micros
from timeoutmgr.metrics.catalogue import DURATION_BOUNDS, LATENESS, LATENESS_BOUNDS
from timeoutmgr.metrics.memory import (
    BUCKETS,
    DURATION_BUCKETS,
    DURATION_CELLS,
    EVENT_CELLS,
    LATENESS_CELLS,
    LATENESS_EACH,
    VALUE_CELLS,
    CountMemory,
    Section,
)
from timeoutmgr.telemetry import Addressed, Counters, Operation, Sent, Telemetry, during_of

_BOUNDS: Final = [round(bound * 1_000_000) for bound in LATENESS_BOUNDS]
_DURATIONS: Final = [round(bound * 1_000_000) for bound in DURATION_BOUNDS]


class Recorder:
    """Counts in *section*, and passes events on to the telemetry of the user.

    Events that the catalogue does not have, of plugins, are only passed on.
    """

    def __init__(self, memory: CountMemory, section: Section, behind: Telemetry) -> None:
        self._names = memory.destinations
        self._counts = section.counts
        self._numbers = section.numbers
        # The plain counters of a configuration would count the same once more.
        self._behind = None if type(behind) is Counters else behind
        self._during_behind = during_of(behind)
        self._others = Counters()
        self._lock = threading.Lock()
        self._lateness = nan
        self._before = list(section.counts[: len(EVENT_CELLS)])

    def count(self, event: str, amount: int = 1) -> None:
        """Add *amount* to the count of *event*."""
        at = EVENT_CELLS.get(event)
        if at is None:
            self._others.count(event, amount)
        else:
            with self._lock:
                self._counts[at] += amount
        if self._behind is not None:
            self._behind.count(event, amount)

    def value(self, name: str, value: float) -> None:
        """Set the last value of *name*."""
        at = VALUE_CELLS.get(name)
        if at is not None:
            self._numbers[at] = value
        elif name == LATENESS.name:
            self._lateness = value
        else:
            self._others.value(name, value)
        if self._behind is not None:
            self._behind.value(name, value)

    def late(self, at: Micros, sent: Iterable[Sent]) -> None:
        """Observe the lateness of each message of *sent*."""
        counts, number = self._counts, self._names.number
        with self._lock:
            for destination, due in sent:
                first = LATENESS_CELLS + number(destination) * LATENESS_EACH
                lateness = at - due
                counts[first + bisect_left(_BOUNDS, lateness)] += 1
                if lateness >= 0:
                    counts[first + BUCKETS] += lateness
                else:
                    counts[first + BUCKETS + 1] += 1

    @contextmanager
    def during(self, operation: Operation, messages: Iterable[Addressed]) -> Iterator[None]:
        """Observe how long *operation* lasts, also if it fails."""
        began = perf_counter_ns()
        try:
            with self._during_behind(operation, messages):
                yield
        finally:
            self.took(operation, (perf_counter_ns() - began) // 1_000)

    def took(self, operation: Operation, duration: Micros) -> None:
        """Observe the *duration* of an operation that has ended."""
        first = DURATION_CELLS[operation]
        with self._lock:
            self._counts[first + bisect_left(_DURATIONS, duration)] += 1
            self._counts[first + DURATION_BUCKETS] += duration

    def snapshot(self) -> Mapping[str, float]:
        """Return all counts of this process and its last values."""
        found: dict[str, float] = {
            name: self._counts[at] - self._before[at] for name, at in EVENT_CELLS.items()
        }
        found = {name: count for name, count in found.items() if count}
        values = {name: self._numbers[at] for name, at in VALUE_CELLS.items()}
        values[LATENESS.name] = self._lateness
        kept = {name: value for name, value in values.items() if not isnan(value)}
        return {**found, **kept, **self._others.snapshot()}
