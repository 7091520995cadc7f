"""Pictures are drawn by a script, and nothing in README or picture leads to another server."""

from __future__ import annotations

import re

import pytest

from tests.docs import pictures
from tests.docs.pages import ROOT

ALLOWED = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
"""Names of XML, which no reader follows."""


def test_the_picture_of_the_walk_is_the_drawn_one() -> None:
    assert (pictures.ASSETS / "walk.svg").read_text() == pictures.walk()


@pytest.mark.parametrize("name", ["walk.svg", "terminal.svg"])
def test_a_picture_asks_no_server(name: str) -> None:
    svg = (pictures.ASSETS / name).read_text()

    assert set(re.findall(r"""https?://[^"'<>\s]+""", svg)) <= ALLOWED


def test_the_page_of_a_package_index_has_no_link_and_no_picture() -> None:
    page = pictures.PACKAGE_PAGE.read_text()

    assert page == pictures.package_page(), "run python -m tests.docs.pictures"
    assert re.findall(r"\]\((?!https://)", page) == []


def test_each_path_that_the_readme_names_exists() -> None:
    named = re.findall(r"`((?:docs/|[A-Z]+\.md)[\w./-]*)`", (ROOT / "README.md").read_text())

    assert len(named) > 5
    assert [name for name in named if not (ROOT / name).exists()] == []
