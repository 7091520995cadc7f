"""Events out: counters and the last values, for status, health files and tests.

A telemetry is called on hot paths and from many threads: it must be quick and must not raise.
"""

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Protocol, runtime_checkable


class Telemetry(Protocol):
    """Where events go."""

    def count(self, event: str, amount: int = 1) -> None:
        """Add *amount* to what was counted of *event*."""
        ...

    def value(self, name: str, value: float) -> None:
        """Set the last value of *name*; the name ends with its unit."""
        ...


@runtime_checkable
class HasSnapshot(Protocol):
    """A telemetry that keeps its events in this process; no telemetry needs to."""

    def snapshot(self) -> Mapping[str, float]:
        """Return all counts and values."""
        ...


class Counters:
    """Keeps everything in this process; ``snapshot`` reads it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._values: dict[str, float] = {}

    def count(self, event: str, amount: int = 1) -> None:
        """Add *amount* to what was counted of *event*."""
        with self._lock:
            self._counts[event] += amount

    def value(self, name: str, value: float) -> None:
        """Set the last value of *name*."""
        with self._lock:
            self._values[name] = value

    def snapshot(self) -> Mapping[str, float]:
        """Return all counts and values at one look."""
        with self._lock:
            return {**self._counts, **self._values}
