"""Numbers that all browsers share: read once, at a limited rate, and kept with their time."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any, Final

from timeoutmgr.contracts import Clock
from timeoutmgr.errors import (
    SchemaMissing,
    StorageUnavailable,
    TimeoutManagerError,
    TransportUnavailable,
)
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.redaction import masked

PATIENCE: Final = 1.5
"""Seconds that a page waits for an answer before it shows the last numbers."""
_MOST_KEPT: Final = 200
_THREADS: Final = 4
_WITHOUT_ANSWER: Final = "No answer in time: the page shows the last numbers."


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The last good *value* and the instant *at* of its read; both None before the first.

    *problem* is the error of a failed newer read; *summary* says it briefly.
    """

    value: Any = None
    at: Micros | None = None
    problem: str | None = None
    summary: str = "No answer yet."


@dataclass(frozen=True, slots=True)
class Question:
    """A value to show; *read* reads it, in *cost* statements, if it is older than *max_age*."""

    key: Hashable
    read: Callable[[], Any]
    max_age: float = field(kw_only=True)
    cost: int = field(default=1, kw_only=True)


@dataclass(slots=True)
class _Slot:
    reading: Reading = field(default_factory=Reading)
    tried: float | None = None
    running: "Future[None] | None" = None


class Readings:
    """Values by key. Only one thread at a time reads a value, and all browsers share it.

    A page that a person opens reads values that are older than their maximum age. A live update
    also waits for its share: all live updates together execute *per_second* statements a second.
    """

    def __init__(
        self,
        clock: Clock,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        patience: float = PATIENCE,
        per_second: float = 1.0,
    ) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._patience = patience
        self._per_second = per_second
        self._slots: OrderedDict[Hashable, _Slot] = OrderedDict()
        self._lock = threading.Lock()
        self._next_free = monotonic()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="timeoutmgr-web")

    def close(self, *, wait: bool = False) -> None:
        """Accept no further reads; with *wait*, wait for the end of running reads."""
        self._threads.shutdown(wait=wait, cancel_futures=True)

    def forget(self) -> None:
        """Make each value be read again at its next use, after a change.

        The result of a read that runs now is dropped: it may show the former state.
        """
        with self._lock:
            for key, slot in [*self._slots.items()]:
                self._slots[key] = _Slot(slot.reading)

    def fresh(self, key: Hashable, max_age: float) -> Reading | None:
        """Return the reading of *key* if it needs no read now."""
        with self._lock:
            slot = self._slots.get(key)
            if slot is None or slot.running is not None or not self._is_fresh(slot, max_age):
                return None
            return slot.reading

    def get(self, asked: Question, *, live: bool = False) -> Reading:
        """Return the reading of *asked*, as ``get_all`` does."""
        [reading] = self.get_all([asked], live=live)
        return reading

    def get_all(
        self, asked: Sequence[Question], *, live: bool = False, shown_for: float = 0
    ) -> list[Reading]:
        """Return the readings of *asked*, reading them concurrently.

        *live* marks a live update. A good value younger than *shown_for* seconds is returned at
        once, while a new read may run. Errors other than TimeoutManagerError are raised.
        """
        begun: list[tuple[_Slot, Future[None] | None]] = []
        with self._lock:
            for each in asked:
                slot = self._slot(each.key)
                is_good = slot.reading.at is not None and slot.reading.problem is None
                is_shown = is_good and self._is_fresh(slot, shown_for)
                self._begin(slot, each, live=live)
                begun.append((slot, None if is_shown else slot.running))
        wait([running for _slot, running in begun if running is not None], self._patience)
        return [_answer(slot, running) for slot, running in begun]

    def _begin(self, slot: _Slot, asked: Question, *, live: bool) -> None:
        if slot.running is not None or self._is_fresh(slot, asked.max_age):
            return
        is_first = slot.reading.at is None and slot.tried is None
        if not live or is_first or self._next_free <= self._monotonic():
            # Reads for a person are few, and must not delay live updates.
            self._start(slot, asked.read, asked.cost if live else 0)

    def _is_fresh(self, slot: _Slot, max_age: float) -> bool:
        return slot.tried is not None and self._monotonic() - slot.tried < max_age

    def _slot(self, key: Hashable) -> _Slot:
        slot = self._slots.setdefault(key, _Slot())
        self._slots.move_to_end(key)
        while len(self._slots) > _MOST_KEPT:
            self._slots.popitem(last=False)
        return slot

    def _start(self, slot: _Slot, read: Callable[[], Any], cost: int) -> None:
        now = self._monotonic()
        self._next_free = max(self._next_free, now) + cost / self._per_second
        slot.running = self._threads.submit(self._read, slot, read)

    def _read(self, slot: _Slot, read: Callable[[], Any]) -> None:
        reading = slot.reading
        try:
            reading = Reading(value=read(), at=self._clock.now())
        except TimeoutManagerError as error:
            reading = replace(slot.reading, problem=masked(str(error)), summary=_summary_of(error))
        finally:
            with self._lock:
                slot.reading, slot.running, slot.tried = reading, None, self._monotonic()


def _answer(slot: _Slot, running: "Future[None] | None") -> Reading:
    """Return the reading of *slot*, after a wait for *running*."""
    if running is None:
        return slot.reading
    if not running.done():
        return replace(slot.reading, problem=slot.reading.problem or _WITHOUT_ANSWER)
    running.result()
    return slot.reading


def _summary_of(error: TimeoutManagerError) -> str:
    match error:
        case TransportUnavailable():
            return "The broker does not answer."
        case StorageUnavailable():
            return "The store does not answer."
        case SchemaMissing():
            return "A part is not installed."
    return "Some numbers are not available."
