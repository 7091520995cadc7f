"""Each probe answers for all processes of the endpoint."""

from __future__ import annotations

import math

import pytest

from timeoutmgr.metrics.memory import CountMemory, Section, State
from timeoutmgr.metrics.probes import ANSWER, TICK, not_alive, not_ready, not_started

NOW = 1000.0


def sections(number: int = 2) -> list[Section]:
    """Return the sections of processes that are in order."""
    found = CountMemory.create(number).sections
    for section in found:
        for state in (
            State.STARTED,
            State.TICK,
            State.STORE_ANSWERED,
            State.BROKER_ANSWERED,
        ):
            section.set_state(state, NOW)
    return found


def test_processes_in_order_pass_every_probe() -> None:
    good = sections()

    for probe in (not_alive, not_started, not_ready):
        assert probe(good, NOW) == []


def test_a_process_that_hangs_is_neither_alive_nor_ready() -> None:
    found = sections()
    found[1].set_state(State.TICK, NOW - TICK - 1)

    assert not_alive(found, NOW) == ["process 2: its watchdog last ran 6 s ago"]
    assert not_ready(found, NOW) == not_alive(found, NOW)


def test_a_process_whose_pump_has_ended_is_neither_alive_nor_ready() -> None:
    found = sections()
    found[0].set_state(State.PUMPS_ENDED, 0)
    found[1].set_state(State.PUMPS_ENDED, 2)

    assert not_alive(found, NOW) == ["process 2: 2 of its pumps ended, and none starts again"]
    assert not_ready(found, NOW) == not_alive(found, NOW)


def test_a_process_that_drains_is_alive_and_not_ready() -> None:
    found = sections(1)
    found[0].set_state(State.TICK, NOW - 60)
    found[0].set_state(State.DRAINING, NOW)

    assert not_alive(found, NOW) == []
    assert not_ready(found, NOW) == ["process 1: stopping"]


def test_a_process_that_starts_is_alive_and_has_not_started() -> None:
    found = CountMemory.create(1).sections

    assert not_alive(found, NOW) == []
    assert not_started(found, NOW) == ["process 1: not started"]
    assert not_started(found, NOW)[0] in not_ready(found, NOW)


@pytest.mark.parametrize(
    ("state", "what"), [(State.STORE_ANSWERED, "store"), (State.BROKER_ANSWERED, "broker")]
)
@pytest.mark.parametrize("answered", [NOW - ANSWER - 1, math.nan], ids=["late", "never"])
def test_a_part_that_does_not_answer_is_named(state: State, what: str, answered: float) -> None:
    found = sections(1)
    found[0].set_state(state, answered)

    assert not_ready(found, NOW) == [f"process 1: the {what} has not answered for 10 s"]
    assert not_alive(found, NOW) == []


def test_an_endpoint_that_stores_nothing_needs_no_store() -> None:
    found = sections(1)
    found[0].set_state(State.STORE_ANSWERED, math.inf)

    assert not_ready(found, NOW) == []
