"""Handlers that share a commit keep every promise, in every interleaving of two consumers.

The pump, its batches and their pace, Work, the step and the session of handlers are real; broker,
transaction and savepoints are simulated. Bounds beside the bounds of a scenario: two consumers, at
most four messages in batches of at most three, and a single message whose handler fails, once or
each time. Each handler sends a message, and has an effect on the transaction if there is a
transaction. A handler that waits is the only place where another thread gives messages back: a
batch that ends waits for this thread.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.model.explorer import explore
from tests.model.handlers import HandlerScenario
from tests.model.world import Bounds
from timeoutmgr.contracts import TransactionMode

FOUR = ("m1", "m2", "m3", "m4")

SCOPE = HandlerScenario()
MODES = {
    "row locks": SCOPE,
    "same file": replace(SCOPE, one_writer=True),
    "receive only": HandlerScenario(mode=TransactionMode.RECEIVE_ONLY),
}

SCENARIOS: dict[str, dict[str, Any]] = {
    "fails each time": {"bounds": Bounds(crashes=1, pauses=1)},
    "fails once": {"failures": 1, "bounds": Bounds(crashes=1, pauses=1)},
    "two batches": {"batch": 2, "bounds": Bounds(crashes=1, pauses=1)},
    "the broker does not count": {"counts": False, "bounds": Bounds(crashes=1, pauses=1)},
    "a redelivery": {"bounds": Bounds(redeliveries=1, pauses=1)},
    "two crashes": {"bounds": Bounds(crashes=2, pauses=1)},
    "two pauses": {"bounds": Bounds(crashes=1, pauses=2)},
    "two batches of two": {"sent": FOUR, "batch": 2, "bounds": Bounds(crashes=1)},
    "an unknown": {"bounds": Bounds(crashes=1, unknowns=1)},
    "an unknown, fails once": {"failures": 1, "bounds": Bounds(pauses=1, unknowns=1)},
    "a crash and a redelivery": {"bounds": Bounds(crashes=1, redeliveries=1)},
    "the first fails": {"failing": "m1", "bounds": Bounds(crashes=1, pauses=1)},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_failed_handler_leaves_its_neighbours_whole(mode: str, name: str) -> None:
    scenario = replace(MODES[mode], **SCENARIOS[name])

    explored = explore(scenario.model())

    assert explored.ends > 0, f"{explored}"


LISTS: dict[str, dict[str, Any]] = {
    "one list": {"bounds": Bounds(crashes=1, pauses=1)},
    "fails once": {"failures": 1, "bounds": Bounds(crashes=1, pauses=1)},
    "two lists of two": {"sent": FOUR, "batch": 2, "bounds": Bounds(crashes=1)},
    "the broker does not count": {"counts": False, "bounds": Bounds(crashes=1, pauses=1)},
    "a redelivery": {"bounds": Bounds(redeliveries=1, pauses=1)},
    "an unknown": {"bounds": Bounds(crashes=1, unknowns=1)},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", LISTS)
def test_a_failed_list_leaves_each_of_its_messages_whole(mode: str, name: str) -> None:
    scenario = replace(MODES[mode], lists=True, **LISTS[name])

    explored = explore(scenario.model())

    assert explored.ends > 0, f"{explored}"


@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize("failures", [1, None])
def test_a_transaction_that_the_database_ended_is_handled_again(
    failures: int | None, lists: bool
) -> None:
    # A lost transaction of a single message counts as a failed attempt: it may be its handler's.
    bounds = Bounds(losses=1, crashes=1)

    scenario = replace(SCOPE, failures=failures, attempts=3, bounds=bounds, lists=lists)
    explored = explore(scenario.model())

    assert explored.ends > 0, f"{explored}"
    assert explored.most_delivered == 1, f"{explored}"


def test_without_a_transaction_only_a_kill_repeats_a_handler() -> None:
    receive_only = MODES["receive only"]

    calm = explore(replace(receive_only, bounds=Bounds(pauses=1)).model())
    killed = explore(replace(receive_only, bounds=Bounds(crashes=1)).model())

    assert (calm.most_delivered, killed.most_delivered) == (1, 2), f"{calm} {killed}"
