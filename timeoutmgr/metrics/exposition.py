"""The metrics as Prometheus reads them: its text format, and OpenMetrics.

Needs the extra: ``pip install 'timeoutmgr[metrics]'``.
"""

import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import isinf, isnan
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import (
    Metric as Family,
)
from prometheus_client.registry import Collector

from timeoutmgr._version import __version__
from timeoutmgr.metrics import catalogue
from timeoutmgr.metrics.catalogue import ENDPOINT, EVENTS, LATENESS_BOUNDS, VALUES, Merge, Metric
from timeoutmgr.metrics.memory import (
    BREAKER_CELLS,
    BUCKETS,
    EVENT_CELLS,
    LATENESS_CELLS,
    LATENESS_EACH,
    QUEUE_CELLS,
    VALUE_CELLS,
    CountMemory,
    Names,
    Section,
    State,
)

FRESH: Final = 15.0
"""Seconds for which the last sample of the store is good: three intervals of the sampler."""
_MERGED: Final[Mapping[Merge, Callable[[Sequence[float]], float]]] = {
    Merge.MAX: max,
    Merge.MIN: min,
    Merge.FARTHEST: lambda values: max(values, key=abs),
}


class Exposition:
    """Renders the memory for one endpoint."""

    def __init__(self, memory: CountMemory, endpoint: str) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Collector(memory, endpoint))

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return the page in the best format that the header *accept* names, and its type."""
        encode, content_type = choose_encoder(accept)
        page: bytes = encode(self._registry)
        return page, content_type


class _Collector(Collector):
    def __init__(self, memory: CountMemory, endpoint: str) -> None:
        self._memory = memory
        self._endpoint = endpoint

    def collect(self) -> Iterator[Family]:
        yield from self._events()
        yield from self._lateness()
        live = [section for section in self._memory.sections if section.has(State.TICK)]
        yield from self._values(live)
        yield from self._of_store(live, time.time(), time.monotonic())
        yield self._gauge(catalogue.PROCESSES, {(): [len(live)]})
        queues, breakers = self._memory.queues, self._memory.breakers
        yield self._gauge(catalogue.QUEUE_MESSAGES, _named(live, QUEUE_CELLS, queues))
        yield self._gauge(catalogue.BREAKER_STATE, _named(live, BREAKER_CELLS, breakers))
        yield self._build()

    def _events(self) -> Iterator[Family]:
        for name, metric in EVENTS.items():
            at = EVENT_CELLS[name]
            family = CounterMetricFamily(metric.family, metric.help, labels=[ENDPOINT])
            total = sum(section.counts[at] for section in self._memory.sections)
            family.add_metric([self._endpoint], total)
            yield family

    def _lateness(self) -> Iterator[Family]:
        metric = catalogue.LATENESS
        labels = [ENDPOINT, *metric.labels]
        lateness = HistogramMetricFamily(
            metric.family, metric.help, labels=labels, unit=metric.unit
        )
        early = CounterMetricFamily(
            catalogue.EARLY.family, catalogue.EARLY.help, labels=[ENDPOINT, "destination"]
        )
        for number, name in enumerate(self._memory.destinations.all()):
            first = LATENESS_CELLS + number * LATENESS_EACH
            cells = [
                sum(section.counts[first + at] for section in self._memory.sections)
                for at in range(LATENESS_EACH)
            ]
            if any(cells):
                buckets = _buckets(cells[:BUCKETS])
                lateness.add_metric([self._endpoint, name], buckets, cells[BUCKETS] / 1_000_000)
                early.add_metric([self._endpoint, name], cells[BUCKETS + 1])
        yield lateness
        yield early

    def _values(self, live: Sequence[Section]) -> Iterator[Family]:
        for name, metric in VALUES.items():
            yield self._gauge(metric, {(): [each.numbers[VALUE_CELLS[name]] for each in live]})

    def _of_store(self, live: Sequence[Section], wall: float, now: float) -> Iterator[Family]:
        ages = [age_of_oldest(section, now) for section in live]
        yield self._gauge(catalogue.OLDEST_DUE_AGE, {(): [max(age, 0.0) for age in ages]})
        dues = [wall - age_of_oldest(section, now, grows=True) for section in live]
        yield self._gauge(catalogue.NEXT_DUE, {(): dues})
        for metric, state in (
            (catalogue.STORE_ANSWERED, State.STORE_ANSWERED),
            (catalogue.BROKER_ANSWERED, State.BROKER_ANSWERED),
        ):
            answered = [wall - (now - section.state(state)) for section in live]
            yield self._gauge(metric, {(): answered})

    def _gauge(self, metric: Metric, values: Mapping[tuple[str, ...], Sequence[float]]) -> Family:
        family = GaugeMetricFamily(
            metric.family, metric.help, labels=[ENDPOINT, *metric.labels], unit=metric.unit
        )
        for labels, every in values.items():
            known = [value for value in every if not isnan(value) and not isinf(value)]
            if known:
                family.add_metric([self._endpoint, *labels], _MERGED[metric.merge](known))
        return family

    def _build(self) -> Family:
        family = InfoMetricFamily(catalogue.BUILD.family, catalogue.BUILD.help, labels=[ENDPOINT])
        build = {"version": __version__, "python": platform.python_version()}
        family.add_metric([self._endpoint], build)
        return family


def age_of_oldest(section: Section, now: float, *, grows: bool = False) -> float:
    """Return the age of the oldest timeout, negative before it is due.

    While the store answers, the last sample counts. When the store is away the age grows on: a
    timeout that cannot be dispatched becomes older. It also grows on for an instant (*grows*).
    """
    age, answered = section.state(State.OLDEST_DUE), section.state(State.STORE_ANSWERED)
    since = now - answered
    return age + since if grows or since > FRESH else age


def _named(live: Sequence[Section], first: int, names: Names) -> dict[tuple[str, ...], list[float]]:
    return {
        (name,): [section.numbers[first + number] for section in live]
        for number, name in enumerate(names.all())
    }


def _buckets(cells: Iterable[int]) -> list[tuple[str, float]]:
    bounds = [*(str(bound) for bound in LATENESS_BOUNDS), "+Inf"]
    return [(bound, float(total)) for bound, total in zip(bounds, accumulate(cells), strict=True)]
