"""The first example of the README works as it stands there."""

import subprocess
import sys
from pathlib import Path

from tests.docs.pages import blocks

ROOT = Path(__file__).parents[1]


def test_the_first_example_delivers_its_message(tmp_path: Path) -> None:
    [example] = [block for block in blocks((ROOT / "README.md").read_text()) if block.title]
    (tmp_path / "sales.py").write_text(example.text)

    command = [sys.executable, "-u", "sales.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "not paid yet: A7\n"
        finally:
            process.kill()
