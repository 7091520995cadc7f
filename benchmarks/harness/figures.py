"""Interleaved runs: A B A B A B, so that a slow machine slows both sides alike."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from . import machine


@dataclass(frozen=True, slots=True)
class Sample:
    """A run: count, seconds, and processor seconds of the measured processes.

    *parts* are the processor seconds by name of process, if there are several.
    """

    count: int
    seconds: float
    cpu: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return self.count / self.seconds

    @property
    def cpu_us(self) -> float:
        return self.cpu / self.count * 1e6


class Watch:
    """Wall and processor time of this process since the watch was created."""

    def __init__(self) -> None:
        self._at, self._cpu = time.perf_counter(), time.process_time()

    def sample(self, count: int) -> Sample:
        return Sample(count, time.perf_counter() - self._at, time.process_time() - self._cpu)


Samples = Mapping[str, list[Sample]]
Case = Callable[[], Sample]


def interleave(cases: Mapping[str, Case], rounds: int, *, warm_up: bool = True) -> Samples:
    """Run all *cases* in turn, *rounds* times, after a warm-up round that does not count.

    A single round is for a quick look, without warm-up.
    """
    samples: dict[str, list[Sample]] = {name: [] for name in cases}
    for number in range(0 if warm_up and rounds > 1 else 1, rounds + 1):
        for name, case in cases.items():
            began = time.perf_counter()
            sample = case()
            took = time.perf_counter() - began
            parts = ", ".join(f"{who} {cpu:.1f}" for who, cpu in sorted(sample.parts.items()))
            say(
                f"{'warm-up' if not number else f'round {number}'}  {name}: {sample.rate:,.0f}/s, "
                f"{sample.cpu_us:.0f} us of CPU{f' ({parts})' if parts else ''}  "
                f"({took:.0f} s, load {machine.load()})"
            )
            if number:
                samples[name].append(sample)
    return samples


def say(text: str) -> None:
    """Print progress to standard error; only the figures go to standard output."""
    print(f"  {text}", file=sys.stderr, flush=True)


def rate(samples: list[Sample]) -> float:
    return median(sample.rate for sample in samples)


def cpu_us(samples: list[Sample]) -> float:
    return median(sample.cpu_us for sample in samples)


def spread(samples: list[Sample]) -> float:
    """Return the difference between the fastest and the slowest run, relative to the median."""
    return apart([sample.rate for sample in samples])


def apart(values: Sequence[float]) -> float:
    """Return the difference between the largest and smallest value, relative to the median."""
    return (max(values) - min(values)) / median(values)


def ratio(above: list[Sample], below: list[Sample]) -> float:
    """Return the median of the rounds' ratios: runs of one round have similar conditions."""
    return median(ratios(above, below))


def ratios(above: list[Sample], below: list[Sample]) -> list[float]:
    """Return how many times as fast *above* was, in each round."""
    return [one.rate / other.rate for one, other in zip(above, below, strict=True)]


def cpu_ratios(above: list[Sample], below: list[Sample]) -> list[float]:
    """Return how many times the processor time *above* took, in each round."""
    return [one.cpu_us / other.cpu_us for one, other in zip(above, below, strict=True)]
