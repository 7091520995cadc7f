"""Many runs in sequence: their sum, and the sentence about it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.model.promises import Promise

from .run import TIMEOUTS, Result, Run

COUNTED = {
    "lost": Promise.NEVER_LOST,
    "early": Promise.NEVER_EARLY,
    "other id": Promise.SAME_ID,
    "repeated without a crash": Promise.NO_REPEAT_WITHOUT_CRASH,
    "untrue cancels": Promise.CANCEL_IS_TRUE,
    "untrue reschedules": Promise.CHANGE_IS_TRUE,
    "surprises": Promise.NOBODY_WAITS_FOR_EVER,
}


@dataclass(slots=True)
class Sum:
    """The sum of the results of runs; *seconds* of the time of a core."""

    first: int | None = None
    last: int = 0
    timeouts: int = 0
    crashes: int = 0
    repeats: int = 0
    reports: int = 0
    seconds: float = 0.0
    fired: Counter[str] = field(default_factory=Counter)
    broken: list[Result] = field(default_factory=list)

    def add(self, result: Result) -> None:
        self.first = result.seed if self.first is None else self.first
        self.last = result.seed
        self.timeouts += result.timeouts
        self.crashes += result.crashes
        self.repeats += result.repeats
        self.reports += result.reports
        self.fired += result.fired
        if result.broken is not None:
            self.broken.append(result)

    @property
    def per_minute(self) -> int:
        return round(self.timeouts / self.seconds * 60) if self.seconds else 0

    def counts(self) -> dict[str, int]:
        """Return how many runs broke each promise."""
        kinds = Counter(result.broken[0] for result in self.broken if result.broken)
        return {name: kinds[promise] for name, promise in COUNTED.items()}

    def sentence(self) -> str:
        counts = ", ".join(f"{name} {count}" for name, count in self.counts().items())
        return (
            f"seeds {self.first}…{self.last}: {self.timeouts:,} timeouts in {self.seconds:.1f} s "
            f"CPU ({self.per_minute:,} a minute), {self.crashes:,} crashes, {self.repeats:,} "
            f"repeats after one, {self.fired.total():,} faults at {len(self.fired)} sites; {counts}"
        )

    def as_json(self) -> dict[str, object]:
        return {
            "seeds": [self.first, self.last],
            "lives": self.timeouts,
            "cpu_seconds": round(self.seconds, 3),
            "lives_per_cpu_minute": self.per_minute,
            "crashes": self.crashes,
            "repeats_after_a_crash": self.repeats,
            "outages_told": self.reports,
            "faults": dict(sorted(self.fired.items())),
            "broken": self.counts(),
            "broken_seeds": [result.seed for result in self.broken],
        }


def play(seeds: Iterable[int], timeouts: int = TIMEOUTS) -> Iterator[Sum]:
    """Play seed after seed; yield the growing sum after each."""
    total, began = Sum(), time.process_time()
    for seed in seeds:
        total.add(Run(seed, timeouts=timeouts).play())
        total.seconds = time.process_time() - began
        yield total


def describe(result: Result) -> str:
    """Return the facts that are needed to study a broken promise."""
    assert result.broken is not None
    promise, why, name = result.broken
    trace = "\n".join(f"  {event}" for event in result.about())
    return f"seed {result.seed} breaks {promise.value!r}: {name} {why}\n{trace}"
