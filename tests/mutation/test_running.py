"""Tests run on the copy: they notice a wrong change there, and only there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.mutation.copies import copy_to
from tests.mutation.mutant import ROOT, Mutant
from tests.mutation.running import run_tests, try_out
from tests.mutation.verdicts import Verdict

TEST = "tests/satellites/test_schedule.py::test_before_the_first_poll_there_is_no_next"
FILE = "satellites/schedule.py"
LINE = "        return self._next\n"


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_to(tmp_path_factory.mktemp("mutation") / "clean")


def a_mutant(after: str) -> Mutant:
    return Mutant(
        name="of a property",
        promise="Before the first poll there is no next.",
        file=FILE,
        before=f'None before the first poll."""\n{LINE}',
        after=f'None before the first poll."""\n{after}',
        tests=(TEST,),
    )


@pytest.mark.parametrize(
    ("after", "verdict"),
    [
        ("        return 5\n", Verdict.KILLED),
        (f"{LINE}        # as before\n", Verdict.SURVIVED),
        ("        return undefined\n", Verdict.BROKEN),
    ],
)
def test_a_wrong_change_is_killed_a_harmless_change_survives_a_broken_change_is_reported(
    clean: Path, tmp_path: Path, after: str, verdict: Verdict
) -> None:
    before = (ROOT / FILE).read_text()

    judged = try_out(a_mutant(after), clean, tmp_path / "copy", {})

    assert (judged.verdict, judged.mutant) == (verdict, "of a property")
    assert (ROOT / FILE).read_text() == (clean / FILE).read_text() == before


def test_a_run_refuses_a_folder_that_is_not_the_copy(clean: Path, tmp_path: Path) -> None:
    copy = copy_to(tmp_path / "copy", clean)
    shutil.rmtree(copy / "satellites")  # an installation may have it

    code, outcomes, output = run_tests(copy, [TEST], {})

    assert (code in (0, 1), outcomes) == (False, []), output
