"""The judge of a Celery run names each promise that is broken."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.harness.celery_verdict import Evidence, judge, table

KEPT = Evidence(
    sent=["a", "b", "gone"],
    retrying=["b"],
    revoked=["gone"],
    published={("a", 0): 1, ("b", 0): 1, ("b", 1): 1},
    ran=[
        {"id": "a", "retries": 0, "late": 0.002},
        {"id": "b", "retries": 0, "late": 0.001},
        {"id": "b", "retries": 1, "late": 0.5},
    ],
    stored=0,
    queued=0,
    memory=(70.0, 71.0),
)


def with_run(task: str, retries: int, late: float = 0.0) -> list[Any]:
    return [*KEPT.ran, {"id": task, "retries": retries, "late": late}]


BROKEN = [
    (replace(KEPT, ran=KEPT.ran[:2], published={("a", 0): 1, ("b", 0): 1}), "lost 1"),
    (replace(KEPT, ran=KEPT.ran[1:]), "lost 1"),
    (replace(KEPT, ran=with_run("a", 0, -0.001)), "early 1"),
    (replace(KEPT, ran=with_run("gone", 0)), "revoked_ran 1"),
    (replace(KEPT, published={**KEPT.published, ("a", 0): 2}), "dispatched_twice 1"),
    (replace(KEPT, published={("a", 0): 1, ("b", 0): 1}), "run_but_not_published 1"),
]


def test_a_run_that_keeps_all_promises_breaks_none() -> None:
    assert judge(KEPT, may_pop=False).broken(0) == []


@pytest.mark.parametrize(("evidence", "named"), BROKEN)
def test_a_broken_promise_is_named(evidence: Evidence, named: str) -> None:
    broken = judge(evidence, may_pop=False).broken(0)

    assert [each for each in broken if each.startswith(named)]


def test_a_message_that_redis_loses_is_counted_apart() -> None:
    verdict = judge(replace(KEPT, ran=KEPT.ran[1:]), may_pop=True)

    assert (verdict.lost, verdict.popped) == (0, 1)


def test_a_redelivery_of_the_broker_is_counted_apart() -> None:
    verdict = judge(replace(KEPT, ran=with_run("a", 0)), may_pop=False)

    assert (verdict.redelivered, verdict.broken(0)) == (1, [])


def test_what_still_waits_is_not_lost() -> None:
    waiting = replace(KEPT, ran=KEPT.ran[1:], queued=1)

    assert judge(waiting, may_pop=False).lost == 0
    assert judge(replace(waiting, published=Counter(), queued=0, stored=1), may_pop=False).lost == 0


def test_the_table_has_a_row_for_each_run() -> None:
    lines = table({"ours": judge(KEPT, may_pop=False)})

    assert lines[-1] == "| ours | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 70 → 71 |"
