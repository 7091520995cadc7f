"""The list of mutants cannot rot: each fits the source of today, and names tests that exist.

Each row of the page of behaviours that is built has a mutant, which a test of the row is to notice.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.behaviours import BEHAVIOURS, WITHOUT_TEST, marks
from tests.mutation.mutant import ROOT, Mutant, SourceMoved
from tests.mutation.mutants import MUTANTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_one_change_of_todays_source_that_can_run(mutant: Mutant) -> None:
    mutated = mutant.source()

    compile(mutated, mutant.file, "exec")
    assert mutated != (ROOT / mutant.file).read_text()


def test_every_mutant_has_a_name_of_its_own() -> None:
    names = [mutant.name for mutant in MUTANTS]

    assert sorted(set(names)) == sorted(names)


def test_every_test_that_is_to_notice_a_mutant_exists() -> None:
    wanted = sorted({test for mutant in MUTANTS for test in mutant.tests})

    collected = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *wanted],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert collected.returncode == 0, collected.stdout + collected.stderr


def test_every_behaviour_that_is_built_has_a_mutant() -> None:
    broken = {mutant.behaviour for mutant in MUTANTS} - {None}

    assert broken == set(BEHAVIOURS) - WITHOUT_TEST


def test_a_mutant_of_a_behaviour_names_only_tests_that_bear_its_marker() -> None:
    held = marks()
    strangers = [
        (mutant.name, mutant.behaviour, test)
        for mutant in MUTANTS
        if mutant.behaviour is not None
        for test in mutant.tests
        if test.partition("[")[0] not in held[mutant.behaviour]
    ]

    assert strangers == []


@pytest.mark.parametrize("text", ["", "there\n", "here here \n"])
def test_a_text_that_is_not_there_once_is_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / "source.py").write_text(text)
    mutant = replace(MUTANTS[0], file="source.py", before="here ", after="there")

    with pytest.raises(SourceMoved, match="the source moved: mend the list"):
        mutant.source(tmp_path)
