"""The programs of the page on asyncio run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "howto-asyncio.md"


def outputs(folder: Path) -> list[list[str]]:
    """Run each program of the page; return the lines that each prints."""
    found = []
    for program in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        command = [sys.executable, "-W", "error::RuntimeWarning", "-c", program]
        answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=110)
        assert answer.returncode == 0, answer.stderr
        found.append(answer.stdout.splitlines())
    return found


def test_each_program_does_what_the_page_says(tmp_path: Path) -> None:
    fetched, booked, shop = outputs(tmp_path)

    assert sorted(fetched) == sorted(f"fetched page {number}" for number in range(50))
    assert booked == ["booked A7 1"]
    assert shop == ["True", "cancelled"]
