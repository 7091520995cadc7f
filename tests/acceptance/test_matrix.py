"""The matrix leaves nothing out in silence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def test_a_parallel_run_of_all_tests_says_how_many_combinations_are_not_applicable() -> None:
    others = [path for path in TESTS.iterdir() if path.name not in ("acceptance", "conftest.py")]
    # To import each file of the matrix twice would take seconds; one with an n/a pair will do.
    files = (TESTS / "acceptance").glob("test_*.py")
    others += [path for path in files if path.name != "test_inside_a_transaction.py"]

    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "1"),
            *(str(TESTS), *(f"--ignore={path}" for path in others), "-k", "none_is_called_so"),
        ],
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout + done.stderr
    assert " combinations n/a: " in done.stdout
