"""Verdict of a run of tests in a copy on a mutant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

_FAILED = 1


class Verdict(StrEnum):
    """Verdict on a mutant."""

    KILLED = "killed"
    SURVIVED = "SURVIVED"
    BROKEN = "BROKEN"
    """It does not run, so that nothing is said of the promise: mend the mutant."""
    NOT_RUN = "not run"
    """Its tests were skipped, as they are in any run here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedTest:
    """Outcome of a test, as the plugin of that run wrote it."""

    test: str
    when: str
    outcome: str
    asserted: bool
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A mutant's verdict and why."""

    mutant: str
    verdict: Verdict
    by: str
    seconds: float


def judge(code: int, outcomes: Sequence[ReportedTest]) -> tuple[Verdict, str]:
    """Return the verdict of a run that ended with *code*, and the test or the reason."""
    failed = next((one for one in outcomes if one.outcome == "failed"), None)
    if code == _FAILED and failed is not None:
        if failed.when == "call" and failed.asserted:
            return Verdict.KILLED, failed.test
        return Verdict.BROKEN, f"{failed.test} ({failed.when}): {failed.error}"
    if code != 0:
        return Verdict.BROKEN, f"pytest ended with {code} before any test failed"
    if not any(one.outcome == "passed" for one in outcomes):
        return Verdict.NOT_RUN, "; ".join(dict.fromkeys(one.error for one in outcomes))
    return Verdict.SURVIVED, ""
