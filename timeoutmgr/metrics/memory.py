"""Counts and states of processes in one shared memory, which outlives each process.

The memory has a section for each process, and tables of names that all sections share. A cell has 8
bytes and is written atomically: a killed process leaves either the old or the new number.
"""

import fcntl
import math
import mmap
import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from itertools import accumulate
from types import MappingProxyType
from typing import Final, Self

from timeoutmgr.metrics.catalogue import (
    BY_LABEL,
    CLASS,
    DESTINATION,
    DURATION_BOUNDS,
    EVENTS,
    LATENESS_BOUNDS,
    REASON,
    VALUES,
)
from timeoutmgr.resilience.after_fork import begin_anew_after_fork
from timeoutmgr.telemetry import Operation

CELL: Final = 8
OTHER: Final = "other"
"""Name for all further names when a table is full; a name in the table may equal it."""
DESTINATIONS: Final = 50
QUEUES: Final = 15
BREAKERS: Final = 23
REASONS: Final = 31
CLASSES: Final = 31
CAPACITIES: Final[Mapping[str, int]] = MappingProxyType(
    {DESTINATION: DESTINATIONS, REASON: REASONS, CLASS: CLASSES}
)
"""Number of values of a label that get their own number."""
BUCKETS: Final = len(LATENESS_BOUNDS) + 1
DURATION_BUCKETS: Final = len(DURATION_BOUNDS) + 1


class State(IntEnum):
    """A cell that neither an event nor a value sets; instants are monotonic seconds."""

    STARTED = 0
    """When the endpoint had started."""
    TICK = 1
    """When the watchdog last ran."""
    DRAINING = 2
    """When the process was asked to stop."""
    STORE_ANSWERED = 3
    """When the store last answered; infinite if the endpoint stores nothing."""
    BROKER_ANSWERED = 4
    OLDEST_DUE = 5
    """Age of the oldest timeout when the store last answered, negative before it is due."""
    PENDING = 6
    """The pending timeouts when they were last counted."""
    PENDING_AS_OF = 7
    IN_FLIGHT = 8
    CONNECTIONS_USED = 9
    CONNECTIONS_IDLE = 10
    PUMPS_ENDED = 11
    """Number of pumps that ended by themselves."""


# --- layout: cells of a section, and the tables of names before all sections -------------------

EVENT_CELLS: Final[Mapping[str, int]] = MappingProxyType(
    {name: at for at, name in enumerate(EVENTS)}
)
VALUE_CELLS: Final[Mapping[str, int]] = MappingProxyType(
    {name: len(EVENTS) + at for at, name in enumerate(VALUES)}
)
STATE_CELLS: Final = len(EVENTS) + len(VALUES)
QUEUE_CELLS: Final = STATE_CELLS + len(State)
BREAKER_CELLS: Final = QUEUE_CELLS + QUEUES + 1
PAUSE_CELLS: Final = BREAKER_CELLS + BREAKERS + 1
"""Cells of destinations by number, and the cell for a pause of all destinations."""
LATENESS_CELLS: Final = PAUSE_CELLS + DESTINATIONS + 2
LATENESS_EACH: Final = BUCKETS + 2
"""Cells of a destination: its buckets, the sum in microseconds, and the early messages."""
_DURATION_CELLS: Final = LATENESS_CELLS + (DESTINATIONS + 1) * LATENESS_EACH
DURATION_EACH: Final = DURATION_BUCKETS + 1
"""Cells of an operation: its buckets, and the sum in microseconds."""
DURATION_CELLS: Final[Mapping[Operation, int]] = MappingProxyType(
    {
        operation: _DURATION_CELLS + number * DURATION_EACH
        for number, operation in enumerate(Operation)
    }
)
_LABEL_CELLS: Final = _DURATION_CELLS + len(Operation) * DURATION_EACH
*_starts, SECTION_CELLS = accumulate(
    (CAPACITIES[label] + 1 for label in BY_LABEL.values()), initial=_LABEL_CELLS
)
BY_LABEL_CELLS: Final[Mapping[str, int]] = MappingProxyType(
    dict(zip(BY_LABEL, _starts, strict=True))
)
"""The first cell of each event that is counted by a label; there is a cell per value."""

_TABLES: Final = (DESTINATIONS, QUEUES, BREAKERS, REASONS, CLASSES)
_NAME: Final = 256
"""Bytes of a name, and of its length before it."""
_LONGEST: Final = _NAME - 2


class Names:
    """A table of names: the first names get numbers, later names share the last number + 1.

    A name keeps its number. Processes add names under a lock of the file, which ends with them.
    The threads of a process share the file's lock, and the first unlock releases it for all: *lock*
    excludes threads from each other, and is the same for all tables of the file.
    """

    lock: threading.Lock

    def __init__(self, view: memoryview, descriptor: int, capacity: int) -> None:
        self._view = view
        self._descriptor = descriptor
        self._capacity = capacity
        self._known: dict[str, int] = {}
        self._is_full = False

    def number(self, name: str) -> int:
        """Return the number of *name*; add it if there is room."""
        found = self._known.get(name)
        if found is None:
            return self._capacity if self._is_full else self._find(name)
        return found

    def all(self) -> list[str]:
        """Return the names by number, followed by OTHER."""
        found = [self._read(at) for at in range(self._count)]
        return [*found, *[""] * (self._capacity - len(found)), OTHER]

    def _find(self, name: str) -> int:
        short = name.encode("utf-8", "replace")[:_LONGEST]
        with self.lock, _locked(self._descriptor):
            count = self._count
            at = next((at for at in range(count) if self._bytes(at) == short), count)
            if count == self._capacity:
                # From now on, unknown names count as "other", without a lock for each message.
                self._known = {self._read(every): every for every in range(count)}
                self._is_full = True
            elif at == count:
                self._write(at, short)
            self._known[name] = at
            return at

    @property
    def _count(self) -> int:
        return self._view[0]

    def _write(self, at: int, name: bytes) -> None:
        start = CELL + at * _NAME
        self._view[start : start + 2] = len(name).to_bytes(2, "big")
        self._view[start + 2 : start + 2 + len(name)] = name
        self._view[0] = at + 1  # last: a process that is killed before has added nothing

    def _bytes(self, at: int) -> bytes:
        start = CELL + at * _NAME
        length = int.from_bytes(self._view[start : start + 2], "big")
        return bytes(self._view[start + 2 : start + 2 + length])

    def _read(self, at: int) -> str:
        return self._bytes(at).decode("utf-8", "replace")


def _bytes_of(capacity: int) -> int:
    return CELL + capacity * _NAME


@contextmanager
def _locked(descriptor: int) -> Iterator[None]:
    fcntl.lockf(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.lockf(descriptor, fcntl.LOCK_UN)


class Section:
    """The cells of one process."""

    def __init__(self, view: memoryview) -> None:
        self.counts = view.cast("q")
        """The cells as whole numbers: events, buckets, sums."""
        self.numbers = view.cast("d")
        """The same cells as floating point numbers: values, states, queues, breakers."""

    def state(self, which: State) -> float:
        """Return the state *which*; NaN if the process has not set it."""
        return self.numbers[STATE_CELLS + which]

    def set_state(self, which: State, value: float) -> None:
        """Set the state *which*."""
        self.numbers[STATE_CELLS + which] = value

    def has(self, which: State) -> bool:
        """Return whether the process has set the state *which*."""
        return not math.isnan(self.state(which))

    def forget_values(self) -> None:
        """Clear all cells except the counts: the process has ended, or has just begun."""
        for at in range(len(EVENTS), LATENESS_CELLS):
            self.numbers[at] = math.nan


class CountMemory:
    """The memory of *processes* processes, in an unnamed file."""

    def __init__(self, descriptor: int, processes: int) -> None:
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, _size(processes))
        view = memoryview(self._map)
        at = 0
        tables = []
        for capacity in _TABLES:
            tables.append(Names(view[at : at + _bytes_of(capacity)], descriptor, capacity))
            at += _bytes_of(capacity)
        self._tables = tables
        self.after_fork()
        begin_anew_after_fork(self)
        self.destinations, self.queues, self.breakers, reasons, classes = tables
        self.values: Mapping[str, Names] = {
            DESTINATION: self.destinations,
            REASON: reasons,
            CLASS: classes,
        }
        """The table of the values of each label that events are counted by."""
        self.sections = [
            Section(view[start : start + SECTION_CELLS * CELL])
            for start in range(at, at + processes * SECTION_CELLS * CELL, SECTION_CELLS * CELL)
        ]

    def after_fork(self) -> None:
        """Replace the tables' lock: a thread of the parent may hold it."""
        lock = threading.Lock()
        for table in self._tables:
            table.lock = lock

    @classmethod
    def create(cls, processes: int) -> Self:
        """Return a new memory with counts of zero."""
        descriptor = _file_without_name()
        os.ftruncate(descriptor, _size(processes))
        made = cls(descriptor, processes)
        for section in made.sections:
            section.forget_values()
        return made

    @classmethod
    def attach(cls, descriptor: int) -> Self:
        """Return the memory that a parent process has created."""
        size = os.fstat(descriptor).st_size - _size(0)
        return cls(descriptor, size // (SECTION_CELLS * CELL))


def _size(processes: int) -> int:
    tables = sum(map(_bytes_of, _TABLES))
    return tables + processes * SECTION_CELLS * CELL


def _file_without_name() -> int:
    if sys.platform == "linux":  # in memory: a container may have no folder to write in
        return os.memfd_create("timeoutmgr-metrics")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
