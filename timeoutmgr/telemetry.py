"""Telemetry: counters and last values, for status, health files and tests.

Many threads call a telemetry on hot paths, so its methods must be quick and must not raise.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from typing import Final, Protocol, TypeAlias, runtime_checkable

from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Message


@runtime_checkable
class Telemetry(Protocol):
    """Receiver of events. An exception in a method may end the thread of the caller."""

    def count(self, event: str, amount: int = 1) -> None:
        """Add *amount* to the count of *event*."""
        ...

    def value(self, name: str, value: float) -> None:
        """Set the last value of *name*; the name ends with its unit."""
        ...


Dispatched: TypeAlias = tuple[str, Micros]
"""Destination and due time of a dispatched message."""


@runtime_checkable
class ObservesLateness(Protocol):
    """A telemetry that observes each dispatched message; no telemetry needs to."""

    def late(self, at: Micros, sent: Iterable[Dispatched]) -> None:
        """Observe *sent*, which were dispatched at the instant *at*."""
        ...


@runtime_checkable
class CountsByLabel(Protocol):
    """A telemetry that counts events by the values of a label; no telemetry needs to."""

    def count_each(self, event: str, values: Iterable[str]) -> None:
        """Add 1 to the count of *event* for each of *values*, which are read once."""
        ...


CountEach: TypeAlias = Callable[[str, Iterable[str]], None]


def count_each_of(telemetry: Telemetry) -> CountEach:
    """Return the function that counts by a label: a no-op unless *telemetry* does. Call it once."""
    return telemetry.count_each if isinstance(telemetry, CountsByLabel) else _count_no_label


def _count_no_label(_event: str, _values: Iterable[str]) -> None:
    """Do nothing, and read no value: the telemetry keeps only the plain count of the event."""


class Operation(StrEnum):
    """Work of the endpoint that takes time, which a telemetry may observe from start to end."""

    STORE = "store"
    """A batch of received timeouts is stored."""
    CLAIM = "claim"
    """Due timeouts are claimed."""
    CONFIRM = "confirm"
    """Due messages are sent, and the broker confirms them."""
    HANDLER = "handler"
    """The handlers of a message, or of a list of messages, are called."""
    SETTLE = "settle"
    """A batch of handled messages is acknowledged; a commit may follow."""

    # Enum's own hash runs in Python, and costs as much as the observation of an operation.
    __hash__ = str.__hash__


Addressed: TypeAlias = tuple[str, Message]
"""The queue that a message is for, and the message."""


@runtime_checkable
class ObservesOperations(Protocol):
    """A telemetry that observes operations; no telemetry needs to."""

    def during(
        self, operation: Operation, messages: Iterable[Addressed]
    ) -> AbstractContextManager[None]:
        """Return a context for the time of *operation* on *messages*, which are read once.

        A claim has no messages yet. Contexts do not end in the order in which they began: the next
        dispatch begins while the messages of the last dispatch are being confirmed.
        """
        ...


During: TypeAlias = Callable[[Operation, Iterable[Addressed]], AbstractContextManager[None]]
_UNOBSERVED: Final = nullcontext()


def during_of(telemetry: Telemetry) -> During:
    """Return the context for operations: a no-op unless *telemetry* observes operations.

    Call it once, not for each operation.
    """
    return telemetry.during if isinstance(telemetry, ObservesOperations) else _unobserved


def _unobserved(
    _operation: Operation, _messages: Iterable[Addressed]
) -> AbstractContextManager[None]:
    return _UNOBSERVED


@runtime_checkable
class HasSnapshot(Protocol):
    """A telemetry that keeps its events in this process; no telemetry needs to."""

    def snapshot(self) -> Mapping[str, float]:
        """Return all counts and values."""
        ...


class Counters:
    """Keep counts and values in this process; ``snapshot`` reads them."""

    def __init__(self) -> None:
        self.after_fork()
        self._counts: Counter[str] = Counter()
        self._values: dict[str, float] = {}

    def after_fork(self) -> None:
        """Replace the lock: in a child it may still be locked by a thread of the parent."""
        self._lock = threading.Lock()

    def count(self, event: str, amount: int = 1) -> None:
        """Add *amount* to the count of *event*."""
        with self._lock:
            self._counts[event] += amount

    def value(self, name: str, value: float) -> None:
        """Set the last value of *name*."""
        with self._lock:
            self._values[name] = value

    def snapshot(self) -> Mapping[str, float]:
        """Return all counts and values, as of a single moment."""
        with self._lock:
            return {**self._counts, **self._values}
