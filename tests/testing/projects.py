"""pytest in a foreign project, in which the package is as if it were installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_LEFT_OUT: Final = ("anyio", "hypothesispytest", "pytest_cov")
"""Plugins that no project here uses; to import all three takes half of a short run."""


def install(project: Path) -> None:
    """Have the plugin found by its entry point in *project*."""
    installed = project / "timeoutmgr-0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: timeoutmgr\nVersion: 0\n")
    (installed / "entry_points.txt").write_text("[pytest11]\ntimeoutmgr = pytest_timeoutmgr\n")


def run(project: Path, *words: str) -> tuple[int, Counter[str], str]:
    """Return pytest's exit code, its counts, and its output."""
    left_out = [word for name in ("cacheprovider", *_LEFT_OUT) for word in ("-p", f"no:{name}")]
    options = ["-q", *left_out, "--strict-markers"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *words],
        cwd=project,
        env={**os.environ, "PYTHONPATH": f"{project}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    counts = re.findall(r"(\d+) (passed|failed|deselected|skipped|error)", done.stdout)
    return done.returncode, Counter({what: int(n) for n, what in counts}), done.stdout + done.stderr


def failures(said: str) -> dict[str, set[str]]:
    """Return which tests of each class failed, named without ``Test``, by what ``-rf`` printed."""
    found: dict[str, set[str]] = {}
    for name, case in re.findall(r"^FAILED \S+::Test(\w+)::(\w+)", said, re.MULTILINE):
        found.setdefault(name, set()).add(case)
    return found
