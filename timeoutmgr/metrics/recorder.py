"""A telemetry that counts in a section of the memory.

Threads count without a lock, which would cost more than the rest of a call: in ``cells[at] +=
amount`` the interpreter never switches to another thread, or runs a signal handler.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from math import isnan, nan
from time import perf_counter_ns
from typing import Final

from timeoutmgr.message.instants import Micros
from timeoutmgr.metrics.catalogue import BY_LABEL, DURATION_BOUNDS, LATENESS, LATENESS_BOUNDS
from timeoutmgr.metrics.memory import (
    BUCKETS,
    BY_LABEL_CELLS,
    DESTINATIONS,
    DURATION_BUCKETS,
    DURATION_CELLS,
    EVENT_CELLS,
    LATENESS_CELLS,
    LATENESS_EACH,
    VALUE_CELLS,
    CountMemory,
    Section,
)
from timeoutmgr.resilience.after_fork import begin_anew_after_fork
from timeoutmgr.telemetry import (
    Addressed,
    Counters,
    Dispatched,
    ObservesOperations,
    Operation,
    Telemetry,
    count_each_of,
)

_BOUNDS: Final = [round(bound * 1_000_000) for bound in LATENESS_BOUNDS]
_EDGES: Final = list(pairwise((-1, *_BOUNDS, 1 << 63)))
"""Exclusive lower bound and upper bound of each bucket of lateness; no bucket is for early ones."""
_MOST: Final = (1 << 63) - 1
_DURATIONS: Final = [round(bound * 1_000_000) for bound in DURATION_BOUNDS]
# Plain dictionaries: a read-only view costs a second look-up on each call.
_EVENTS: Final = dict(EVENT_CELLS)
_OPERATIONS: Final = dict(DURATION_CELLS)


class Recorder:
    """Counts in *section*, and passes events on to the telemetry of the user.

    Events that are not in the catalogue (of plugins) are only passed on.
    """

    def __init__(self, memory: CountMemory, section: Section, behind: Telemetry) -> None:
        self._names = memory.destinations
        self._lateness_cells: dict[str, int] = {}
        self._counts = section.counts
        self._numbers = section.numbers
        # The plain counters of a configuration would count the same events again.
        self._behind = None if type(behind) is Counters else behind
        self._during_behind = behind.during if isinstance(behind, ObservesOperations) else None
        self._each_behind = count_each_of(behind)
        self._by_label = {
            event: (first, memory.values[BY_LABEL[event]])
            for event, first in BY_LABEL_CELLS.items()
        }
        self._others = Counters()
        begin_anew_after_fork(self._others)
        self._lateness = nan
        self._before = list(section.counts[: len(EVENT_CELLS)])

    def count(self, event: str, amount: int = 1) -> None:
        """Add *amount* to the count of *event*."""
        try:
            self._counts[_EVENTS[event]] += amount
        except KeyError:
            self._others.count(event, amount)
        if self._behind is not None:
            self._behind.count(event, amount)

    def count_each(self, event: str, values: Iterable[str]) -> None:
        """Add 1 to the count of *event* for each of *values* of its label."""
        if event in self._by_label:
            first, names = self._by_label[event]
            counted = Counter(values)
            values = counted.elements()
            for value, number in counted.items():
                at = first + names.number(value)
                self._counts[at] += number
        self._each_behind(event, values)

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

    def late(self, at: Micros, sent: Iterable[Dispatched]) -> None:
        """Observe the lateness of each message of *sent*."""
        counts, cells = self._counts, self._lateness_cells
        last = None
        first = cell = number = total = above = bound = 0
        for destination, due in sent:
            lateness = at - due
            # Successive messages mostly share destination and bucket: then two writes suffice.
            if destination == last and above < lateness <= bound:
                number += 1
                total += lateness
                continue
            if number:
                counts[cell] += number
                self._add(first + BUCKETS, total)
            try:
                first = cells[destination]
            except KeyError:
                first = self._cells_of(destination)
            last = destination
            bucket = bisect_left(_BOUNDS, lateness)
            cell = first + bucket
            above, bound = _EDGES[bucket]
            number = 1
            if lateness >= 0:
                total = lateness
            else:
                total = 0
                counts[first + BUCKETS + 1] += 1
        if number:
            counts[cell] += number
            self._add(first + BUCKETS, total)

    def _add(self, at: int, amount: int) -> None:
        """Add *amount* to the sum at *at*, up to its maximum: a metric must not break a send.

        A message due in year 1 (from an empty date) is late by 2,000 years.
        """
        try:
            self._counts[at] += amount
        except ValueError:
            self._counts[at] = _MOST

    def _cells_of(self, destination: str) -> int:
        """Return the first cell of *destination*; cache it if the destination has its own cells."""
        number = self._names.number(destination)
        first = LATENESS_CELLS + number * LATENESS_EACH
        if number < DESTINATIONS:  # the number of further names is unlimited
            self._lateness_cells[destination] = first
        return first

    def during(
        self, operation: Operation, messages: Iterable[Addressed]
    ) -> AbstractContextManager[None]:
        """Observe how long *operation* takes, even if it fails."""
        observed = _Observed(self, operation)
        if self._during_behind is None:
            return observed
        return _both(observed, self._during_behind(operation, messages))

    def took(self, operation: Operation, duration: Micros) -> None:
        """Observe the *duration* of an operation that has ended."""
        counts, first = self._counts, _OPERATIONS[operation]
        counts[first + bisect_left(_DURATIONS, duration)] += 1
        counts[first + DURATION_BUCKETS] += duration

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


class _Observed:
    """Measures the time of an operation; a generator-based context would cost twice as much."""

    __slots__ = ("_began", "_operation", "_recorder")

    def __init__(self, recorder: Recorder, operation: Operation) -> None:
        self._recorder = recorder
        self._operation = operation

    def __enter__(self) -> None:
        self._began = perf_counter_ns()

    def __exit__(self, *_error: object) -> None:
        self._recorder.took(self._operation, (perf_counter_ns() - self._began) // 1_000)


@contextmanager
def _both(
    outer: AbstractContextManager[None], inner: AbstractContextManager[None]
) -> Iterator[None]:
    with outer, inner:
        yield
