"""`make demo DEMO=delayed-store` keeps its promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.behaviour(62, 94)
def test_all_accepted_messages_of_the_demo_arrive_once_though_its_process_is_killed() -> None:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    program = ROOT / "examples" / "delayed_store" / "run.py"

    ended = subprocess.run(
        [sys.executable, str(program), "--messages", "80", "--seconds", "2"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "80 accepted, 0 lost, 0 early, 0 repeated" in ended.stdout


def test_the_make_target_names_programs_that_are_there() -> None:
    lines = (ROOT / "Makefile").read_text().splitlines()
    programs = [
        line.split(" = ")[1] for line in lines if line.startswith("DEMO_") and "run" in line
    ]

    assert "examples/delayed_store/run.py" in programs
    assert all((ROOT / program).is_file() for program in programs)
