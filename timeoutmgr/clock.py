"""Clocks: of the host, and of a server. Each part gets its clock from its caller."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Protocol, runtime_checkable

from timeoutmgr.message.instants import Micros

# --- the clock contract -----------------------------------------------------------------------


@runtime_checkable
class Clock(Protocol):
    """Source of time; no code reads the time in another way."""

    def now(self) -> Micros:
        """Return UTC microseconds of the wall clock, which may be set forward or back."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back, for waiting."""
        ...


class SystemClock:
    """Wall clock and monotonic clock of this host."""

    def now(self) -> Micros:
        """Return UTC microseconds, rounded down."""
        return time.time_ns() // 1_000

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()


_FRESH_FOR: Final = 1.0
"""Seconds for which a server's answer is extrapolated before the server is asked again."""


class CarriedClock:
    """A server's clock: asked at most once a second, and carried on by the host's monotonic clock.

    It may be ahead by the round trip of the question, and is never behind: a delay that counts from
    it ends late rather than early. *ask* returns None if only the host's clock counts.
    """

    def __init__(self, ask: Callable[[], Micros | None], host: Clock) -> None:
        self._ask = ask
        self._host = host
        self._answer: tuple[Micros | None, float] | None = None
        self.after_fork()

    def after_fork(self) -> None:
        """Replace the lock: in a child it may still be locked by a thread of the parent."""
        self._asking = threading.Lock()

    def __call__(self) -> Micros | None:
        """Return the server's time; this may ask the server."""
        now = self._host.monotonic()
        return _carried(self._answered(now), now)

    def refresh(self) -> None:
        """Ask the server, unless it was asked a moment ago; not on an event loop."""
        self._answered(self._host.monotonic())

    def carried(self) -> Micros | None:
        """Return the server's time by its last answer; None before the first answer."""
        answer = self._answer
        return None if answer is None else _carried(answer, self._host.monotonic())

    def _answered(self, now: float) -> tuple[Micros | None, float]:
        """Return an answer of the last second, and the instant just before the question."""
        before = answer = self._answer
        if answer is not None and now - answer[1] < _FRESH_FOR:
            return answer
        with self._asking:
            answer = self._answer
            if answer is None or answer is before:  # no other thread has asked in the meantime
                self._answer = answer = self._ask(), now
            return answer


def _carried(answer: tuple[Micros | None, float], now: float) -> Micros | None:
    theirs, since = answer
    return None if theirs is None else theirs + int((now - since) * 1_000_000) + 1
