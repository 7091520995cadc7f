"""A clock that stands still until a test moves it."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from timeoutmgr.message.instants import MICROSECOND, Micros, from_wire

START: Final[Micros] = from_wire("2030-06-01 12:00:00:000000 Z")


class FakeClock:
    """Wall and monotonic clock; *advance* moves both, *step_wall* only the wall clock."""

    def __init__(self, now: Micros = START) -> None:
        self._now = now
        self._monotonic = 1000.0

    def now(self) -> Micros:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        self._now += round(seconds * 1_000_000)
        self._monotonic += seconds

    def step_wall(self, by: timedelta) -> None:
        self._now += by // MICROSECOND
