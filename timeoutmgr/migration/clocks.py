"""The clocks of a migration: the place that set due times provides the clock for their delays.

A delay is the time left until a due time, so it is computed by the clock that set the due time. A
host that used its own clock would deliver early by as much as that clock is ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from timeoutmgr.contracts import Clock
from timeoutmgr.message.instants import Micros
from timeoutmgr.migration.ports import PlanInputs
from timeoutmgr.migration.runs import Problem

_SECOND: Final = 1_000_000
_ASK_EVERY: Final = 1.0
"""Seconds for which a place's answer is reused, plus the time that has passed on this host."""
REPORTED: Final = 1 * _SECOND
"""Offset of two clocks from which a run reports it."""
REFUSED: Final = 30 * _SECOND
"""Offset of two clocks from which a run neither begins nor continues."""


class OriginClock:
    """The clock of a remote place, which *ask* queries; for one thread.

    The host's monotonic clock is read after the place has answered, so the latency of the answer
    makes a delay longer: a moment late, never early.
    """

    def __init__(self, ask: Callable[[], Micros], host: Clock) -> None:
        self._ask = ask
        self._host = host
        self._answer: Micros = 0
        self._asked: float | None = None

    def now(self) -> Micros:
        """Return the place's time."""
        at = self._host.monotonic()
        if self._asked is None or at - self._asked >= _ASK_EVERY:
            self._answer = self._ask()
            self._asked = at = self._host.monotonic()
        return self._answer + int((at - self._asked) * _SECOND)

    def monotonic(self) -> float:
        """Return this host's monotonic seconds."""
        return self._host.monotonic()


@dataclass(frozen=True, slots=True)
class Offset:
    """Offset of two clocks: how far the clock of *place* is *ahead* of the clock of *other*."""

    place: str
    other: str
    ahead: Micros

    @property
    def is_refused(self) -> bool:
        """Whether no run may begin."""
        return abs(self.ahead) > REFUSED

    def problem(self) -> Problem:
        """Return why no run may begin."""
        return Problem(
            self.place,
            f"{self} (at most {REFUSED // _SECOND} s are accepted)",
            "set both clocks (NTP), and run again",
        )

    def __str__(self) -> str:
        where = "ahead of" if self.ahead > 0 else "behind"
        return f"its clock is {abs(self.ahead) / _SECOND:.3f} s {where} that of {self.other}"

    def warning(self) -> str:
        """Return the warning of a run that begins nevertheless."""
        return f"{self.place}: {self}; due times are kept by the clock of the source"


def offsets(parts: PlanInputs) -> list[Offset]:
    """Return the offsets between the clocks of *parts* that a run must report."""
    return [one for one in _measured(parts) if abs(one.ahead) > REPORTED]


def _measured(parts: PlanInputs) -> Iterator[Offset]:
    source, target = parts.source, parts.target
    host = _apart(parts.clock.now, source.now)
    yield Offset("this host", source.describe(), host)
    if target.now() is not None:
        # A store delivers by its own clock.
        there = _apart(lambda: target.now() or 0, source.now)
        yield Offset(target.describe(), source.describe(), there)


def _apart(one: Callable[[], Micros], other: Callable[[], Micros]) -> Micros:
    """Return by how much *one* is ahead of *other*, without the time between the two reads."""
    before, there, after = other(), one(), other()
    return there - after if there > after else min(there - before, 0)
