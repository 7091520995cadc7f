"""Several processes are one endpoint: sums of counters, and one value of each gauge."""

from __future__ import annotations

import math
import time
from datetime import timedelta

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.clock import START, FakeClock
from timeoutmgr.clock import Clock
from timeoutmgr.metrics.exposition import FRESH, Exposition, age_of_oldest
from timeoutmgr.metrics.memory import CountMemory, State
from timeoutmgr.metrics.recorder import Recorder
from timeoutmgr.telemetry import Counters


def samples(counts: CountMemory, clock: Clock | None = None) -> dict[str, float]:
    """Return each sample without labels but the endpoint."""
    page = Exposition(counts, "sales", clock).render("")[0].decode()
    return {
        sample.name.removeprefix("timeoutmgr_"): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if set(sample.labels) == {"endpoint"}
    }


def two_processes() -> tuple[CountMemory, Recorder, Recorder]:
    counts = CountMemory.create(2)
    for section in counts.sections:
        section.set_state(State.TICK, time.monotonic())
    one, two = (Recorder(counts, section, Counters()) for section in counts.sections)
    return counts, one, two


def test_counters_of_processes_are_added() -> None:
    counts, one, two = two_processes()
    one.count("handled", 3)
    two.count("handled", 4)

    assert samples(counts)["handled_total"] == 7


@pytest.mark.behaviour(139)
def test_the_clock_offset_is_that_of_the_worst_clock_with_its_sign() -> None:
    counts, one, two = two_processes()
    one.value("clock_offset_seconds", 2.0)
    two.value("clock_offset_seconds", -31.0)

    assert samples(counts)["clock_offset_seconds"] == -31.0


def test_a_process_that_ended_shows_its_counts_and_no_values() -> None:
    counts, one, two = two_processes()
    one.count("handled", 3)
    one.value("purge_lag_seconds", 90.0)
    two.value("purge_lag_seconds", 1.0)

    counts.sections[0].forget_values()

    assert samples(counts)["purge_lag_seconds"] == 1.0
    assert samples(counts)["handled_total"] == 3
    assert samples(counts)["processes"] == 1


def test_the_age_of_the_oldest_timeout_is_the_sampled_age_while_the_store_answers() -> None:
    counts, _, _ = two_processes()
    section = counts.sections[0]
    section.set_state(State.STORE_ANSWERED, 100.0)
    section.set_state(State.OLDEST_DUE, 4.0)

    assert age_of_oldest(section, 100.0 + FRESH) == 4.0


def test_the_age_of_the_oldest_timeout_grows_while_the_store_is_away() -> None:
    counts, _, _ = two_processes()
    section = counts.sections[0]
    section.set_state(State.STORE_ANSWERED, 100.0)
    section.set_state(State.OLDEST_DUE, -30.0)  # due half a minute after the last answer

    assert age_of_oldest(section, 190.0) == 60.0


def test_a_store_without_timeouts_has_no_age_also_when_it_is_away() -> None:
    counts, _, _ = two_processes()
    section = counts.sections[0]
    section.set_state(State.STORE_ANSWERED, 100.0)
    section.set_state(State.OLDEST_DUE, -math.inf)

    assert age_of_oldest(section, 900.0) == -math.inf
    assert samples(counts).get("oldest_due_age_seconds", 0.0) == 0.0
    assert "next_due_timestamp_seconds" not in samples(counts)


def test_an_instant_is_shown_by_the_wall_clock_and_an_age_by_the_monotonic_clock() -> None:
    clock = FakeClock()
    counts = CountMemory.create(1)
    [section] = counts.sections
    for state in (State.TICK, State.STORE_ANSWERED):
        section.set_state(state, clock.monotonic())
    section.set_state(State.OLDEST_DUE, 4.0)
    clock.advance(FRESH + 1)
    clock.step_wall(timedelta(hours=1))

    shown = samples(counts, clock)

    assert shown["oldest_due_age_seconds"] == 4.0 + FRESH + 1
    assert shown["store_answered_timestamp_seconds"] == START / 1_000_000 + 3_600
