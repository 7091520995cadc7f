"""The scorecard names 64 faults, and nothing on it that does not exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "explanation" / "reliability.md"
SECOND = PAGE.with_name("reliability-second-look.md")

LATER = "not yet: comes with "
WITHOUT = "no test yet: "
TO_COME = "FIGURE-TO-COME"
_COUNTS = re.compile(
    r"\*\*(\d+) of (\d+) rows are shown by a test, (\d+) needs? a part that does not exist yet, "
    r"(\d+) have no test yet\.\*\*"
)
_TEST = re.compile(r"tests/[\w/]+\.py[\w:]*")
_MAKE = re.compile(r"`make (\w+)`")
_CRASH_POINT = re.compile(r"`(\w+\.\w+)`")


class Row(NamedTuple):
    """A fault, and its description."""

    number: str
    fault: str
    promise: str
    shown_by: str
    command: str
    figure: str

    @property
    def is_shown(self) -> bool:
        return not self.shown_by.startswith((LATER, WITHOUT))


def rows() -> list[Row]:
    """Return the rows of the table."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    found = [line for line in lines if re.match(r"\| \d+ \|", line)]
    return [Row(*(cell.strip() for cell in line.strip("|").split("|"))) for line in found]


def looks() -> dict[str, str]:
    """Return the text of the second look at each promise."""
    parts = re.split(r"^## (\d)\. .*$", SECOND.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@cache
def names_in(path: Path) -> dict[str, set[str]]:
    """Return the tests of a file ("" stands for the file itself), and of its classes."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {"": functions(tree)} | {
        node.name: functions(node) for node in tree.body if isinstance(node, ast.ClassDef)
    }


def functions(parent: ast.Module | ast.ClassDef) -> set[str]:
    return {
        node.name
        for node in parent.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


@cache
def conformance() -> set[str]:
    """Return the cases of the suites that we ship: the classes of our tests inherit them."""
    folder = ROOT / "timeoutmgr" / "testing" / "conformance"
    return {
        name for path in folder.rglob("*.py") for names in names_in(path).values() for name in names
    }


def exists(test: str) -> bool:
    """Return whether there is a test of that name, without importing it."""
    file, *inside = test.split("::")
    path = ROOT / file
    if not path.is_file():
        return False
    found = names_in(path)
    match inside:
        case []:
            return any(found.values())
        case [name]:
            return name in found[""]
        case [suite, name]:
            return suite in found and name in found[suite] | conformance()
    return False


def test_there_are_exactly_the_64_faults_in_their_order() -> None:
    assert [row.number for row in rows()] == [str(number) for number in range(1, 65)]


def test_no_cell_is_empty() -> None:
    assert [row.number for row in rows() if not all(row)] == []


def test_a_row_names_a_test_or_says_why_there_is_none() -> None:
    for row in rows():
        if row.is_shown:
            assert _TEST.search(row.shown_by), row
            assert _MAKE.search(row.command), row
            assert row.figure != "—", row
        else:
            reason = row.shown_by.removeprefix(LATER).removeprefix(WITHOUT)
            assert reason.strip(), row
            assert row.command == row.figure == "—", row


def test_the_counts_at_the_head_match_the_rows() -> None:
    said = _COUNTS.search(PAGE.read_text(encoding="utf-8"))
    assert said is not None

    later = sum(row.shown_by.startswith(LATER) for row in rows())
    without = sum(row.shown_by.startswith(WITHOUT) for row in rows())

    shown = sum(row.is_shown for row in rows())
    assert [int(number) for number in said.groups()] == [shown, 64, later, without]


def test_every_named_test_exists() -> None:
    named = _TEST.findall(PAGE.read_text(encoding="utf-8"))

    assert len(named) > 64
    assert sorted({test for test in named if not exists(test)}) == []


def test_a_name_that_is_no_test_would_be_noticed() -> None:
    here = "tests/test_reliability.py"
    suites = "tests/testing/test_conformance_stores.py"
    assert exists(here)
    assert exists(f"{here}::test_no_cell_is_empty")
    assert exists(f"{suites}::TestSqlite::test_exactly_one_of_cancel_and_dispatch_wins")
    for wrong in (
        "tests/test_none.py",
        f"{here}::test_none",
        f"{here}::exists",
        f"{suites}::TestNone::test_exactly_one_of_cancel_and_dispatch_wins",
        f"{suites}::TestSqlite::test_none",
        f"{suites}::test_exactly_one_of_cancel_and_dispatch_wins",
        "tests/support/clock.py",
    ):
        assert not exists(wrong), wrong


def test_every_named_command_is_in_the_makefile() -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)

    pages = [page.read_text(encoding="utf-8") for page in (PAGE, SECOND)]
    named = set(_MAKE.findall("\n".join(pages)))

    assert {"test", "crash", "chaos", "mutants"} <= named <= set(targets)


def test_every_named_crash_point_is_registered() -> None:
    source = (ROOT / "timeoutmgr" / "crashpoints.py").read_text(encoding="utf-8")

    named = {point for row in rows()[:7] for point in _CRASH_POINT.findall(row.shown_by)}

    assert len(named) > 7
    assert {point for point in named if f'"{point}":' not in source} == set()


def test_no_figure_is_left_out() -> None:
    assert [row.number for row in rows() if TO_COME in row.figure] == []
    assert TO_COME not in PAGE.read_text(encoding="utf-8")


def test_each_of_the_six_promises_is_looked_at_again() -> None:
    found = looks()

    assert list(found) == list("123456")
    for number, text in found.items():
        assert len(_TEST.findall(text)) >= 3, f"promise {number} needs tests that would fail"
