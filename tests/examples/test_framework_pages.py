"""The code of the how-to pages about frameworks runs, or is a part of an example that runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


PAGES = {
    "howto-django.md": "django",
    "howto-fastapi.md": "fastapi",
    "howto-flask.md": "flask",
}
"""Pages whose code is a part of the example in that folder."""


def blocks(page: str) -> list[str]:
    """Return the Python code of ``docs/<page>``, block by block."""
    return BLOCK.findall((ROOT / "docs" / page).read_text())


def test_the_page_about_driver_connections_runs_from_top_to_bottom(tmp_path: Path) -> None:
    waiting = 'print(config.settings().transport.session().count("shop.Timeouts"))\n'

    answer = subprocess.run(
        [sys.executable, "-c", "".join([*blocks("howto-driver-connection.md"), waiting])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )

    assert answer.stdout == "2\n", answer.stderr


@pytest.mark.parametrize(("page", "example"), PAGES.items())
def test_the_code_of_a_page_is_a_part_of_its_example(page: str, example: str) -> None:
    files = [_plain(path.read_text()) for path in (ROOT / "examples" / example).rglob("*.py")]
    found = blocks(page)

    assert found
    assert [block for block in found if not any(_plain(block) in text for text in files)] == []


def _plain(text: str) -> str:
    """Return *text* without indentation: a part of a file may stand deeper there."""
    return "\n".join(line.strip() for line in text.strip().splitlines())
