"""The catalogue has every metric that is emitted, and no other."""

from __future__ import annotations

import re

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families as families

from tests.docs.generated import counted, counted_by_label
from timeoutmgr.metrics.catalogue import BY_LABEL, CATALOGUE, EVENTS, LATENESS, VALUES, Kind, Metric
from timeoutmgr.metrics.exposition import Exposition
from timeoutmgr.metrics.memory import BREAKER_CELLS, PAUSE_CELLS, QUEUE_CELLS, CountMemory, State
from timeoutmgr.metrics.recorder import Recorder
from timeoutmgr.telemetry import Counters

OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


def full_page(accept: str = "") -> str:
    """Return a page on which each metric has a sample."""
    counts = CountMemory.create(1)
    section = counts.sections[0]
    recorder = Recorder(counts, section, Counters())
    for name in VALUES:
        recorder.value(name, 1.0)
    for event in BY_LABEL:
        recorder.count_each(event, ["a value"])
    recorder.late(2, [("billing", 1)])
    for state in State:
        section.set_state(state, 1.0)
    section.numbers[QUEUE_CELLS + counts.queues.number("sales")] = 4
    section.numbers[BREAKER_CELLS + counts.breakers.number("TimeoutStorage")] = 1
    section.numbers[PAUSE_CELLS + counts.destinations.number("billing")] = 1
    return Exposition(counts, "sales").render(accept)[0].decode()


def test_each_event_and_value_of_the_source_is_in_the_catalogue_and_no_other() -> None:
    found = counted()
    values = {name for name, kind in found.items() if kind == "value"}

    assert set(found) - values == set(EVENTS)
    assert values == {*VALUES, LATENESS.name}
    assert counted_by_label() == set(BY_LABEL)


@pytest.mark.parametrize(
    ("accept", "parse"), [("", families), (OPEN_METRICS, open_families)], ids=["text", "open"]
)
def test_the_page_shows_each_metric_of_the_catalogue_and_no_other(
    accept: str, parse: object
) -> None:
    assert callable(parse)
    shown = {family.name: family for family in parse(full_page(accept))}

    samples = {sample.name for family in shown.values() for sample in family.samples}
    created = {name for name in samples if name.endswith(("_count", "_sum"))}
    assert samples - created == {metric.exported for metric in CATALOGUE}
    for family in shown.values():
        assert family.samples


@pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric.name)
def test_a_name_says_its_unit_and_its_help_is_a_phrase(metric: Metric) -> None:
    name, unit, text = metric.name, metric.unit, metric.help

    assert re.fullmatch(r"[a-z][a-z0-9_]*", name)
    assert name.endswith("_seconds") == (unit == "seconds")
    assert text[0].islower() or text.startswith("RabbitMQ")
    assert not text.endswith(".")


def test_a_sample_has_the_labels_of_the_catalogue() -> None:
    by_name = {metric.exported: metric for metric in CATALOGUE}

    for family in families(full_page()):
        for sample in family.samples:
            metric = by_name.get(sample.name)
            if metric is not None:
                bound = {"le"} if metric.kind is Kind.HISTOGRAM else set()
                assert set(sample.labels) == {"endpoint", *metric.labels, *bound}, sample


def test_an_answer_says_its_format() -> None:
    counts = CountMemory.create(1)

    plain = Exposition(counts, "sales").render("")[1]
    opened = Exposition(counts, "sales").render(OPEN_METRICS)[1]

    assert plain.startswith("text/plain; version=0.0.4")
    assert opened.startswith("application/openmetrics-text; version=1.0.0")
