"""Conditions for which a test waits, up to a deadline, instead of sleeping."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

PATIENCE: Final = 30.0
"""Seconds until a wait gives up; long, since a wait ends as soon as its condition holds."""


class Signal:
    """Wakes the threads that wait for a condition after each change."""

    def __init__(self) -> None:
        self._changed = threading.Condition()

    @contextmanager
    def change(self) -> Iterator[None]:
        """Change a condition under the lock, and wake the threads that wait for it."""
        with self._changed:
            yield
            self._changed.notify_all()

    def wait_until(
        self, holds: Callable[[], bool], what: Callable[[], str], timeout: float = PATIENCE
    ) -> None:
        """Wait until *holds*; raise AssertionError with *what* after *timeout* seconds."""
        with self._changed:
            if not self._changed.wait_for(holds, timeout):
                raise AssertionError(f"not within {timeout:g} s: {what()}")


class RecordingTelemetry:
    """A telemetry that counts events and keeps values; a test can wait for a count."""

    def __init__(self) -> None:
        self._signal = Signal()
        self._counts: Counter[str] = Counter()
        self._values: dict[str, list[float]] = {}

    def count(self, event: str, amount: int = 1) -> None:
        """Add *amount* to the count of *event*."""
        with self._signal.change():
            self._counts[event] += amount

    def value(self, name: str, value: float) -> None:
        """Keep another value of *name*."""
        with self._signal.change():
            self._values.setdefault(name, []).append(value)

    def counted(self, event: str) -> int:
        """Return the count of *event* so far."""
        return self._counts[event]

    def values(self, name: str) -> list[float]:
        """Return all values of *name*, in order."""
        return list(self._values.get(name, []))

    def snapshot(self) -> Mapping[str, float]:
        """Return all counts and the last values."""
        last = {name: values[-1] for name, values in dict(self._values).items()}
        return {**self._counts, **last}

    def wait_for(self, event: str, amount: int = 1, timeout: float = PATIENCE) -> None:
        """Wait until the count of *event* is *amount*; AssertionError after *timeout* seconds."""
        self._signal.wait_until(
            lambda: self._counts[event] >= amount,
            lambda: f"{amount} {event}; counted {dict(self._counts)}",
            timeout,
        )

    @contextmanager
    def expect(self, event: str, amount: int = 1, timeout: float = PATIENCE) -> Iterator[None]:
        """At the block's end, wait until *event* was counted *amount* times since its start."""
        before = self._counts[event]
        yield
        self.wait_for(event, before + amount, timeout)
