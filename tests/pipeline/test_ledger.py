from __future__ import annotations

import pytest

from timeoutmgr.pipeline.errors import RunInTheWay
from timeoutmgr.pipeline.ledger import Ledger, RunState
from timeoutmgr.pipeline.stores import Store

TERMS = {"dataset": "spring", "paths": ["a"]}


def test_the_first_run_of_the_same_parameters_is_found_in_whatever_state(store: Store) -> None:
    ledger = Ledger(store)
    ledger.begin("other", "schedule", TERMS | {"dataset": "Spring"}, 1)
    ledger.begin("archive", "archive", TERMS, 2)
    ledger.begin("first", "schedule", TERMS, 3)
    ledger.begin("again", "schedule", TERMS, 3)
    ledger.move("first", RunState.COMPLETED)

    found = ledger.first("schedule", TERMS)

    assert found is not None
    assert (found.run_id, found.created) in {("first", 3), ("again", 3)}
    assert ledger.first("schedule", TERMS | {"paths": []}) is None


def test_two_runs_of_the_same_parameters_cannot_be_of_two_instants(store: Store) -> None:
    ledger = Ledger(store)
    ledger.begin("first", "schedule", TERMS, 3)

    for name in ("first", "second"):
        with pytest.raises(RunInTheWay, match=r"'first' of the same .* run it again"):
            ledger.begin(name, "schedule", TERMS, 4)

    assert ledger.find("second") is None
    assert ledger.begin("first", "schedule", TERMS, 3).created == 3
