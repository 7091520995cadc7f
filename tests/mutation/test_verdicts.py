"""A mutant is killed by an assertion and by nothing else."""

from __future__ import annotations

import pytest

from tests.mutation.verdicts import ReportedTest, Verdict, judge


def ended(outcome: str, when: str = "call", *, asserted: bool = False) -> ReportedTest:
    return ReportedTest(test="t", when=when, outcome=outcome, asserted=asserted, error="why")


@pytest.mark.parametrize(
    ("code", "results", "verdict", "by"),
    [
        (0, [ended("passed")], Verdict.SURVIVED, ""),
        (0, [ended("passed"), ended("skipped", "setup")], Verdict.SURVIVED, ""),
        (0, [ended("skipped", "setup")], Verdict.NOT_RUN, "why"),
        (1, [ended("passed"), ended("failed", asserted=True)], Verdict.KILLED, "t"),
        (1, [ended("failed")], Verdict.BROKEN, "t (call): why"),
        (1, [ended("failed", "setup", asserted=True)], Verdict.BROKEN, "t (setup): why"),
        (1, [ended("passed")], Verdict.BROKEN, "pytest ended with 1 before any test failed"),
        (2, [], Verdict.BROKEN, "pytest ended with 2 before any test failed"),
        (4, [], Verdict.BROKEN, "pytest ended with 4 before any test failed"),
    ],
)
def test_the_verdict_of_a_run(
    code: int, results: list[ReportedTest], verdict: Verdict, by: str
) -> None:
    assert judge(code, results) == (verdict, by)
