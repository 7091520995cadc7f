"""Each occurrence of a schedule has its one run, in every interleaving of two processes.

The task and its changes are real, the store is simulated. Bounds beside the bounds of a scenario:
two processes, a dispatcher, four hours of a schedule of every hour, one pause. Processes die
between any two calls of the store.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.model.explorer import explore
from tests.model.recurring import RecurringScenario
from tests.model.world import Bounds
from timeoutmgr.recurrence.definition import CatchUp

ALWAYS = RecurringScenario()
FAULTS = {
    "nothing": Bounds(),
    "a crash": Bounds(crashes=1),
    "two crashes": Bounds(crashes=2),
    "an unknown commit": Bounds(unknowns=1),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("catch_up", CatchUp)
def test_each_occurrence_has_one_run_while_processes_run(catch_up: CatchUp, fault: str) -> None:
    explored = explore(replace(ALWAYS, catch_up=catch_up, bounds=FAULTS[fault]).model())

    assert explored.ends > 0, f"{explored}"


@pytest.mark.parametrize("catch_up", CatchUp)
def test_after_an_outage_the_policy_decides_about_missed_occurrences(catch_up: CatchUp) -> None:
    scenario = replace(ALWAYS, catch_up=catch_up, outage=True, bounds=FAULTS["a crash"])

    explored = explore(scenario.model())

    assert explored.ends > 0, f"{explored}"


@pytest.mark.parametrize("fault", ["nothing", "a crash"])
def test_after_a_pause_each_occurrence_has_one_run(fault: str) -> None:
    explored = explore(replace(ALWAYS, paused=True, bounds=FAULTS[fault]).model())

    assert explored.ends > 0, f"{explored}"


@pytest.mark.parametrize("fault", ["nothing", pytest.param("a crash", marks=pytest.mark.long)])
def test_no_occurrence_has_two_runs_even_without_the_lock(fault: str) -> None:
    scenario = replace(ALWAYS, catch_up=CatchUp.ONE, has_lock=False, bounds=FAULTS[fault])

    explored = explore(scenario.model())

    assert explored.ends > 0, f"{explored}"
