"""The seed and the name of a message decide how its handler behaves."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from chaos.handling import AWAITED, PLAIN, Failing, HandlingPlan

NAMES = [f"p1-{number}" for number in range(1000)]
PLAN = HandlingPlan(seed=7, failing=0.2, awaited=0.5)


def test_a_part_of_the_messages_fails_once_a_part_always_and_the_rest_never() -> None:
    found = Counter(PLAN.failing_of(name) for name in NAMES)

    assert found[Failing.NEVER] > found[Failing.ONCE] + found[Failing.ALWAYS]
    assert min(found[Failing.ONCE], found[Failing.ALWAYS]) > 50


def test_coroutines_handle_their_share() -> None:
    types = Counter(map(PLAN.message_type, NAMES))

    assert min(types[PLAIN], types[AWAITED]) > 400
    assert {replace(PLAN, awaited=0.0).message_type(name) for name in NAMES} == {PLAIN}


def test_the_seed_determines_each_choice() -> None:
    other = replace(PLAN, seed=8)

    assert [PLAN.failing_of(one) for one in NAMES] == [PLAN.failing_of(one) for one in NAMES]
    assert [PLAN.failing_of(one) for one in NAMES] != [other.failing_of(one) for one in NAMES]
    assert [PLAN.message_type(one) for one in NAMES] != [other.message_type(one) for one in NAMES]
