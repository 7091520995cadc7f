"""Counters and last values, for status, health files and tests.

Many threads call a telemetry on hot paths: its methods must be quick and must not raise.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Protocol, TypeAlias, runtime_checkable

from timeoutmgr.message.instants import Micros


class Telemetry(Protocol):
    """Receiver of events."""

    def count(self, event: str, amount: int = 1) -> None:
        """Add *amount* to the count of *event*."""
        ...

    def value(self, name: str, value: float) -> None:
        """Set the last value of *name*; the name ends with its unit."""
        ...


Sent: TypeAlias = tuple[str, Micros]
"""Destination and due time of a dispatched message."""


@runtime_checkable
class ObservesLateness(Protocol):
    """A telemetry that observes each dispatched message; no telemetry needs to."""

    def late(self, at: Micros, sent: Iterable[Sent]) -> None:
        """Observe *sent*, which were dispatched at the instant *at*."""
        ...


@runtime_checkable
class HasSnapshot(Protocol):
    """A telemetry that keeps its events in this process; no telemetry needs to."""

    def snapshot(self) -> Mapping[str, float]:
        """Return all counts and values."""
        ...


class Counters:
    """Keep counts and values in this process; ``snapshot`` reads them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._values: dict[str, float] = {}

    def count(self, event: str, amount: int = 1) -> None:
        """Add *amount* to the count of *event*."""
        with self._lock:
            self._counts[event] += amount

    def value(self, name: str, value: float) -> None:
        """Set the last value of *name*."""
        with self._lock:
            self._values[name] = value

    def snapshot(self) -> Mapping[str, float]:
        """Return all counts and values of one moment."""
        with self._lock:
            return {**self._counts, **self._values}
