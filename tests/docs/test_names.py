"""The pages name files that exist, so that a reader can go there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FILE = re.compile(r"`([a-z_]+(?:/[a-z_0-9]+)+\.py)(?:::\w+)*`")
FOLDERS = (ROOT, ROOT / "timeoutmgr")
"""A page names a file from here, or from its room."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_file_that_a_page_names_exists(page: Path) -> None:
    missing = [
        name
        for name in FILE.findall(page.read_text())
        if not any((folder / name).is_file() for folder in FOLDERS)
    ]

    assert missing == []


def test_each_decision_has_a_number_of_its_own() -> None:
    pages = sorted((ROOT / "docs" / "adr").glob("*.md"))

    numbers = [int(page.name[:4]) for page in pages]

    assert numbers == list(range(1, len(pages) + 1))
    for number, page in zip(numbers, pages, strict=True):
        assert page.read_text().startswith(f"# {number}. ")


def test_the_way_of_a_message_goes_through_one_file_a_step() -> None:
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
    walk = page.partition("## The walk of one message")[2].partition("\n## ")[0]

    steps = re.findall(r"^\| (\d+) \| `([^`]+)`", walk, re.MULTILINE)

    assert [int(number) for number, _file in steps] == list(range(1, len(steps) + 1))
    assert len({file for _number, file in steps}) == len(steps) > 10
