"""Clocks: the host's, and a server's that the host carries on. A part gets its from its caller."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from timeoutmgr.message.instants import Micros

# --- the clock contract -----------------------------------------------------------------------


class Clock(Protocol):
    """The only source of time."""

    def now(self) -> Micros:
        """Return the wall clock's UTC microseconds; it may be stepped either way."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back, for waiting."""
        ...


class SystemClock:
    """Wall clock and monotonic clock of this host."""

    def now(self) -> Micros:
        """Return UTC microseconds; nanoseconds are cut off, never rounded up."""
        return time.time_ns() // 1_000

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()


_FRESH_FOR: Final = 1.0
"""Seconds for which an answer of a server is carried on."""


class CarriedClock:
    """A server's clock: asked at most once a second, and carried on by the host's monotonic clock.

    It may be ahead by the time that an answer took, and is never behind: a delay that counts from
    it ends late rather than early. *ask* returns None where only the host's clock counts.
    """

    def __init__(self, ask: Callable[[], Micros | None], host: Clock) -> None:
        self._ask = ask
        self._host = host
        self._answer: tuple[Micros | None, float] | None = None
        self.after_fork()

    def after_fork(self) -> None:
        """Make the lock: in a child, a thread of the parent that asks keeps it locked."""
        self._asking = threading.Lock()

    def __call__(self) -> Micros | None:
        """Return the server's time, which may have to be asked for."""
        now = self._host.monotonic()
        return _carried(self._answered(now), now)

    def refresh(self) -> None:
        """Ask the server, unless it was asked a moment ago; not on an event loop."""
        self._answered(self._host.monotonic())

    def carried(self) -> Micros | None:
        """Return the server's time by the last answer; None before the first one."""
        answer = self._answer
        return None if answer is None else _carried(answer, self._host.monotonic())

    def _answered(self, now: float) -> tuple[Micros | None, float]:
        """Return an answer of the last second, and the instant before its question."""
        before = answer = self._answer
        if answer is not None and now - answer[1] < _FRESH_FOR:
            return answer
        with self._asking:
            answer = self._answer
            if answer is None or answer is before:  # no other thread has asked meanwhile
                self._answer = answer = self._ask(), now
            return answer


def _carried(answer: tuple[Micros | None, float], now: float) -> Micros | None:
    theirs, since = answer
    return None if theirs is None else theirs + int((now - since) * 1_000_000) + 1
