"""Running named tests in a copy of the checkout."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from .copies import copy_to, environment, mutate
from .inside import RESULTS
from .mutant import Mutant
from .verdicts import Judged, ReportedTest, Verdict, judge

_LONGEST_TEST: Final = 30
_LONGEST_RUN: Final = 600
_PYTEST: Final = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.mutation.inside")


def run_tests(
    folder: Path, tests: Sequence[str], servers: Mapping[str, str], *options: str
) -> tuple[int, list[ReportedTest], str]:
    """Run *tests* in the copy in *folder*; return exit code, test outcomes and output."""
    results = folder / "results.jsonl"
    results.touch()
    ran = subprocess.run(
        [sys.executable, *_PYTEST, f"--timeout={_LONGEST_TEST}", *options, *tests],
        cwd=folder,
        env=environment(folder, **{RESULTS: str(results)}, **servers),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_LONGEST_RUN,
        check=False,
    )
    outcomes = [ReportedTest(**json.loads(line)) for line in results.read_text().splitlines()]
    return ran.returncode, outcomes, ran.stdout


def try_out(mutant: Mutant, clean: Path, folder: Path, servers: Mapping[str, str]) -> Judged:
    """Run *mutant*'s tests on a copy of the *clean* copy in which it is applied."""
    began = time.monotonic()
    copy_to(folder, clean)
    mutate(folder, mutant)
    try:
        code, outcomes, _ = run_tests(folder, mutant.tests, servers, "-x")
        verdict, by = judge(code, outcomes)
    except subprocess.TimeoutExpired:
        verdict, by = Verdict.BROKEN, f"its tests did not end within {_LONGEST_RUN} s"
    return Judged(mutant=mutant.name, verdict=verdict, by=by, seconds=time.monotonic() - began)
