"""Every interleaving, within the bounds of each scenario, keeps every promise.

The pumps, Work, and the steps that store, poll and dispatch are real; broker and database are
simulated (``broker.py``, ``rowlocks.py``, ``fenced.py``). Bounds beside the bounds of a scenario:
at most two messages and two store pumps, one poller, two dispatchers, each claim made at most
*polls* times, then a fair end without further faults. Every actor is a
process of its own: it can be killed at any port call, and its owner's life ends with it. Faults are
combined as the scenarios name them, not all with all. A port call that only reads the clock is
not a turn, nor is a write that other actors cannot see before the commit that follows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.model.actors import CLEAR, Scenario
from tests.model.explorer import Explored, explore
from tests.model.fenced import FencedStore
from tests.model.promises import CANCEL, CHANGE
from tests.model.rowlocks import RowLockStore
from tests.model.world import BEFORE, DUE, LATER, Bounds

CANCELLED, CHANGED = (CANCEL, "m1"), (CHANGE, "m1")
TWO = (("m1", DUE), ("m2", DUE))
SENT_TWICE = (("m1", DUE), ("m1", DUE))

ROW_LOCKS = Scenario(store=RowLockStore)
FENCED = Scenario(store=FencedStore)
ONE_DATABASE = Scenario(store=RowLockStore, same_database=True, starts=BEFORE)
ONE_FILE = Scenario(store=FencedStore, same_database=True, starts=BEFORE)
STORES = {
    "row locks": ROW_LOCKS,
    "fenced claim": FENCED,
    "same database": ONE_DATABASE,
    "same file": ONE_FILE,
}

CLEARED: dict[str, Any] = {
    "saga": (("m1", BEFORE), (CLEAR, BEFORE + 1), ("m2", BEFORE + 2)),
    "sent": TWO,
    "chunk": 1,
    "dispatchers": 1,
    "starts": BEFORE,
    "bounds": Bounds(polls=1),
}
CLEARED_BY_WRONG_CLOCKS: dict[str, Any] = {
    **CLEARED,
    "saga": (("m1", LATER), (CLEAR, DUE), ("m2", BEFORE)),
}

SCENARIOS: dict[str, dict[str, Any]] = {
    "from before it is due": {"starts": BEFORE},
    "two crashes": {"bounds": Bounds(crashes=2)},
    "two crashes and an unknown": {"bounds": Bounds(crashes=2, unknowns=1)},
    "a crash and an unknown": {"bounds": Bounds(crashes=1, unknowns=1)},
    "a crash and a lapse": {"bounds": Bounds(crashes=1, lapses=1)},
    "a crash and a broken connection": {"bounds": Bounds(crashes=1, cuts=1)},
    "a cancel and a broken connection": {"clients": (CANCELLED,), "bounds": Bounds(cuts=1)},
    "a crash and a redelivery": {"bounds": Bounds(crashes=1, redeliveries=1)},
    "a lapse and an unknown": {"bounds": Bounds(lapses=1, unknowns=1, polls=1)},
    "a cancel and two crashes": {"clients": (CANCELLED,), "bounds": Bounds(crashes=2, polls=1)},
    "a cancel and an unknown": {"clients": (CANCELLED,), "bounds": Bounds(unknowns=1)},
    "a cancel and a lapse": {"clients": (CANCELLED,), "bounds": Bounds(lapses=1)},
    "a cancel, a crash and a redelivery": {
        "clients": (CANCELLED,),
        "bounds": Bounds(crashes=1, redeliveries=1, polls=1),
    },
    "a reschedule and a crash": {"clients": (CHANGED,), "bounds": Bounds(crashes=1)},
    "a reschedule and an unknown": {"clients": (CHANGED,), "bounds": Bounds(unknowns=1, polls=1)},
    "a cancel and a reschedule": {"clients": (CANCELLED, CHANGED)},
    "sent twice, two store pumps": {"sent": SENT_TWICE, "stores": 2, "chunk": 1},
    "two timeouts in one chunk": {"sent": TWO, "bounds": Bounds(crashes=1)},
    "two timeouts, an unknown": {"sent": TWO, "bounds": Bounds(unknowns=1, polls=1)},
    "two timeouts in two chunks": {"sent": TWO, "chunk": 1},
    "two timeouts, the later stored first": {"sent": (("m1", DUE), ("m2", BEFORE)), "chunk": 1},
    "two timeouts and a cancel": {"sent": TWO, "clients": (CANCELLED,)},
    "two timeouts and a reschedule": {"sent": TWO, "clients": (CHANGED,)},
    "no destination": {"has_destination": False, "bounds": Bounds(crashes=1, unknowns=1, polls=1)},
    "a saga is cleared": {**CLEARED, "stores": 2},
    "a saga is cleared, a crash": {**CLEARED, "stores": 2, "bounds": Bounds(crashes=1, polls=1)},
    "a saga is cleared, an unknown": {**CLEARED, "bounds": Bounds(unknowns=1, polls=1)},
    "a saga is cleared by wrong clocks": CLEARED_BY_WRONG_CLOCKS,
    "somebody orders a dispatch": {"orders": ("m1",), "bounds": Bounds(crashes=1)},
}

THREE_FAULTS = "two crashes and an unknown"
"""Each two of its faults are a scenario of their own; all three have ten times their states."""


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.long] if name == THREE_FAULTS else [])
        for name in SCENARIOS
    ],
)
def test_every_promise_holds_in_every_interleaving(store: str, name: str) -> None:
    scenario = replace(STORES[store], **SCENARIOS[name])

    explored = explore(scenario.model())

    assert explored.ends > 0, f"{explored}"
    if scenario.same_database:
        assert explored.most_delivered <= 1, f"exactly once, but {explored}"


def test_row_locks_send_once_however_long_a_dispatcher_is_paused_past_its_claim() -> None:
    explored = lapsed(ROW_LOCKS, 2)

    assert explored.most_delivered == 1, f"{explored}"


def test_a_fenced_claim_sends_once_while_no_claim_lapses() -> None:
    explored = explore(replace(FENCED, bounds=Bounds(redeliveries=2)).model())

    assert explored.most_delivered == 1, f"{explored}"


def test_a_fenced_claim_sends_once_more_for_each_pause_past_it() -> None:
    explored = lapsed(FENCED, 1)

    assert explored.most_delivered == 2, f"{explored}"


@pytest.mark.parametrize("store", ["same database", "same file"])
def test_where_sending_is_part_of_closing_a_cancel_never_answers_maybe(store: str) -> None:
    bounds = Bounds(crashes=1, unknowns=1, polls=1)
    explored = explore(replace(STORES[store], clients=(CANCELLED,), bounds=bounds).model())

    answers = {answer for _, answer in explored.answers}
    assert answers == {"cancelled", "too_late", "will_be_cancelled", "no answer"}, f"{explored}"


@pytest.mark.parametrize("store", ["row locks", "fenced claim"])
def test_a_cancel_has_four_answers_and_each_is_given(store: str) -> None:
    bounds = Bounds(crashes=1, polls=1)
    explored = explore(replace(STORES[store], clients=(CANCELLED,), bounds=bounds).model())

    answers = {answer for _, answer in explored.answers}
    assert answers == {"cancelled", "maybe_sent", "too_late", "will_be_cancelled"}, f"{explored}"


def lapsed(scenario: Scenario, lapses: int) -> Explored:
    return explore(replace(scenario, bounds=Bounds(lapses=lapses, polls=lapses + 1)).model())
