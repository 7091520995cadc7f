"""The code of the how-to pages about frameworks runs, or is a part of an example that runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


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
