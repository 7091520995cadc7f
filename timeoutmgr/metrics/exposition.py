"""The metrics in Prometheus' text format and in OpenMetrics.

Needs the extra: ``pip install 'timeoutmgr[metrics]'``.
"""

import platform
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import isinf, isnan
from operator import add
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from timeoutmgr._version import __version__
from timeoutmgr.clock import Clock, SystemClock
from timeoutmgr.database.upgrade import head
from timeoutmgr.metrics import catalogue
from timeoutmgr.metrics.catalogue import (
    BY_LABEL,
    DURATION_BOUNDS,
    DURATIONS,
    ENDPOINT,
    EVENTS,
    LATENESS_BOUNDS,
    RESULTS,
    VALUES,
    Merge,
    Metric,
)
from timeoutmgr.metrics.memory import (
    BREAKER_CELLS,
    BUCKETS,
    BY_LABEL_CELLS,
    DESTINATIONS,
    DURATION_BUCKETS,
    DURATION_CELLS,
    DURATION_EACH,
    EVENT_CELLS,
    LATENESS_CELLS,
    LATENESS_EACH,
    PAUSE_CELLS,
    QUEUE_CELLS,
    VALUE_CELLS,
    CountMemory,
    Names,
    Section,
    State,
)

MIGRATIONS: Final = "timeoutmgr.persistence:sql/migrations"
"""Location of the newest revision of the timeouts' tables."""
FRESH: Final = 15.0
"""Seconds for which the last sample of the store is valid: three sampling intervals."""
_MERGED: Final[Mapping[Merge, Callable[[Sequence[float]], float]]] = {
    Merge.MAX: max,
    Merge.MIN: min,
    Merge.FARTHEST: lambda values: max(values, key=abs),
}


class Exposition:
    """Renders the memory for one endpoint."""

    def __init__(self, memory: CountMemory, endpoint: str, clock: Clock | None = None) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Collector(memory, endpoint, clock or SystemClock()))

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return the page in the best format for the header *accept*, and its content type."""
        encode, content_type = choose_encoder(accept)
        page: bytes = encode(self._registry)
        return page, content_type


class _Collector(Collector):
    def __init__(self, memory: CountMemory, endpoint: str, clock: Clock) -> None:
        self._memory = memory
        self._endpoint = endpoint
        self._clock = clock
        self._revision = head(MIGRATIONS)

    def collect(self) -> Iterator[Family]:
        yield from self._events()
        yield from self._lateness()
        yield self._closed()
        yield self._attempts()
        yield self._by_label(catalogue.ERROR_QUEUE_MESSAGES)
        yield self._by_label(catalogue.UNDELIVERABLE)
        yield from self._durations()
        live = [section for section in self._memory.sections if section.has(State.TICK)]
        yield from self._values(live)
        yield from self._of_store(live, self._clock.now() / 1_000_000, self._clock.monotonic())
        yield self._connections(live)
        yield self._gauge(catalogue.PROCESSES, {(): [len(live)]})
        queues, breakers = self._memory.queues, self._memory.breakers
        yield self._gauge(catalogue.QUEUE_MESSAGES, _named(live, QUEUE_CELLS, queues))
        yield self._gauge(catalogue.BREAKER_STATE, _named(live, BREAKER_CELLS, breakers))
        yield self._build()

    def _events(self) -> Iterator[Family]:
        for name, metric in EVENTS.items():
            if metric.labels:
                yield self._by_label(metric)
            else:
                yield self._counter(metric, {(): self._cells(EVENT_CELLS[name], 1)[0]})

    def _by_label(self, metric: Metric) -> Family:
        return self._counter(metric, self._values_of(metric.name))

    def _values_of(self, event: str) -> dict[tuple[str, ...], int]:
        """Return the counts of *event* by the value of its label."""
        values = self._memory.values[BY_LABEL[event]].all()
        cells = self._cells(BY_LABEL_CELLS[event], len(values))
        counts: Counter[tuple[str, ...]] = Counter()
        for value, count in zip(values, cells, strict=True):
            if count:
                counts[value,] += count
        return counts

    def _closed(self) -> Family:
        """Return the closed timeouts by outcome; each dispatch has one observation of lateness."""
        counts: dict[tuple[str, ...], int] = {}
        for name, cells in self._lateness_cells().items():
            if sent := sum(cells[:BUCKETS]):
                counts[name, "dispatched"] = sent
        for (name,), failed in self._values_of("closed_failed").items():
            counts[name, "failed"] = failed
        return self._counter(catalogue.CLOSED, counts)

    def _attempts(self) -> Family:
        counts: dict[tuple[str, ...], int] = {
            (result,): sum(self._cells(EVENT_CELLS[event], 1)[0] for event in events)
            for result, events in RESULTS.items()
        }
        return self._counter(catalogue.ATTEMPTS, counts)

    def _counter(self, metric: Metric, counts: Mapping[tuple[str, ...], int]) -> Family:
        family = CounterMetricFamily(metric.family, metric.help, labels=[ENDPOINT, *metric.labels])
        for labels, count in counts.items():
            family.add_metric([self._endpoint, *labels], count)
        return family

    def _lateness(self) -> Iterator[Family]:
        lateness = _histogram(catalogue.LATENESS)
        early: dict[tuple[str, ...], int] = {}
        for name, cells in self._lateness_cells().items():
            buckets = _buckets(LATENESS_BOUNDS, cells[:BUCKETS])
            lateness.add_metric([self._endpoint, name], buckets, cells[BUCKETS] / 1_000_000)
            early[name,] = cells[BUCKETS + 1]
        yield lateness
        yield self._counter(catalogue.EARLY, early)

    def _lateness_cells(self) -> dict[str, list[int]]:
        """Return the cells of each name that has counts; cells of equal names are added.

        A destination may have the name OTHER, like all destinations beyond the table together.
        """
        found: dict[str, list[int]] = {}
        for number, name in enumerate(self._memory.destinations.all()):
            cells = self._cells(LATENESS_CELLS + number * LATENESS_EACH, LATENESS_EACH)
            if any(cells):
                found[name] = list(map(add, found.get(name, [0] * LATENESS_EACH), cells))
        return found

    def _durations(self) -> Iterator[Family]:
        for operation, metric in DURATIONS.items():
            family = _histogram(metric)
            cells = self._cells(DURATION_CELLS[operation], DURATION_EACH)
            buckets = _buckets(DURATION_BOUNDS, cells[:DURATION_BUCKETS])
            family.add_metric([self._endpoint], buckets, cells[DURATION_BUCKETS] / 1_000_000)
            yield family

    def _cells(self, first: int, number: int) -> list[int]:
        """Return the sums of *number* cells of all processes."""
        sections = self._memory.sections
        return [
            sum(section.counts[at] for section in sections) for at in range(first, first + number)
        ]

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
            (catalogue.PENDING_AS_OF, State.PENDING_AS_OF),
        ):
            answered = [wall - (now - section.state(state)) for section in live]
            yield self._gauge(metric, {(): answered})

        for metric, state in (
            (catalogue.PENDING, State.PENDING),
            (catalogue.IN_FLIGHT, State.IN_FLIGHT),
        ):
            yield self._gauge(metric, {(): [section.state(state) for section in live]})
        paused = _named(live, PAUSE_CELLS, self._memory.destinations)
        paused[("*",)] = [section.numbers[PAUSE_CELLS + DESTINATIONS + 1] for section in live]
        yield self._gauge(catalogue.PAUSED, paused)

    def _connections(self, live: Sequence[Section]) -> Family:
        states = {"used": State.CONNECTIONS_USED, "idle": State.CONNECTIONS_IDLE}
        values: dict[tuple[str, ...], Sequence[float]] = {
            (name,): [each.state(state) for each in live] for name, state in states.items()
        }
        return self._gauge(catalogue.POOL_CONNECTIONS, values)

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
        build = {
            "version": __version__,
            "revision": self._revision,
            "python": platform.python_version(),
        }
        family.add_metric([self._endpoint], build)
        return family


def _histogram(metric: Metric) -> HistogramMetricFamily:
    labels = [ENDPOINT, *metric.labels]
    return HistogramMetricFamily(metric.family, metric.help, labels=labels, unit=metric.unit)


def age_of_oldest(section: Section, now: float, *, grows: bool = False) -> float:
    """Return the age of the oldest timeout, negative before it is due.

    While the store answers, the last sample counts. When the store is away, the age keeps growing,
    since a timeout that cannot be dispatched gets older; with *grows*, always.
    """
    age, answered = section.state(State.OLDEST_DUE), section.state(State.STORE_ANSWERED)
    since = now - answered
    return age + since if grows or since > FRESH else age


def _named(
    live: Sequence[Section], first: int, names: Names
) -> dict[tuple[str, ...], Sequence[float]]:
    """Return the cells of each name; cells of equal names are merged like those of processes."""
    values: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)
    for number, name in enumerate(names.all()):
        values[name,] += [section.numbers[first + number] for section in live]
    return dict[tuple[str, ...], Sequence[float]](values)


def _buckets(bounds: Iterable[float], cells: Iterable[int]) -> list[tuple[str, float]]:
    names = [*(str(bound) for bound in bounds), "+Inf"]
    return [(name, float(total)) for name, total in zip(names, accumulate(cells), strict=True)]
