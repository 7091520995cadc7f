"""The explorer catches each known mistake by the promise that the mistake breaks."""

from __future__ import annotations

import pytest

from tests.model.explorer import explore
from tests.model.mutants import MUTANTS, Mutant
from tests.model.promises import PromiseBroken

pytestmark = pytest.mark.mutants


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_wrong_order_or_a_missing_lock_is_caught(mutant: Mutant) -> None:
    with pytest.raises(PromiseBroken) as caught:
        explore(mutant.mutated.model())

    assert caught.value.promise is mutant.promise, f"{caught.value}"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_same_scenario_holds_without_the_mutant(mutant: Mutant) -> None:
    explored = explore(mutant.scenario.model())

    assert explored.ends > 0, f"{explored}"
