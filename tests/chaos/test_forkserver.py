"""Each life is a process of its own, and none outlives the nursery or the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.testing.projects import ROOT
from timeoutmgr.testing.chaos import ChaosFailed
from timeoutmgr.testing.chaos.births import Nursery
from timeoutmgr.testing.chaos.processes import PATIENCE
from timeoutmgr.testing.chaos.scene import Scene
from timeoutmgr.testing.signals import eventually


def test_each_life_is_a_process_with_its_own_name_and_log(tmp_path: Path, nursery: Nursery) -> None:
    scene = Scene(folder=str(tmp_path), broker="", store="", suffix="", claim_time=5, seed=1).save(
        "other"
    )
    child = nursery.start(
        "json.tool:main", [str(scene)], tmp_path / "child.log", {"CHAOS_PROCESS": "worker-1#1"}
    )

    assert child.wait(PATIENCE) == 0
    assert '"claim_time": 5' in (tmp_path / "child.log").read_text()


def test_nobody_outlives_the_nursery_when_it_is_closed(tmp_path: Path, nursery: Nursery) -> None:
    child = nursery.start("signal:pause", [], tmp_path / "child.log", {})
    child.send_signal(signal.SIGSTOP)

    nursery.close()

    eventually(lambda: not is_running(child.pid), "the child is gone")


def test_nobody_outlives_a_run_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys\n"
        "from timeoutmgr.testing.chaos.births import Nursery\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "child = Nursery(folder / 'nursery.log').start('signal:pause', [], folder / 'log', {})\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.readline()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as run:
        assert run.stdout is not None
        child = int(run.stdout.readline())
        assert is_running(child)

        run.kill()

    eventually(lambda: not is_running(child), "the child is gone")


def test_the_end_of_the_nursery_ends_the_run(tmp_path: Path, nursery: Nursery) -> None:
    os.kill(nursery.pid, signal.SIGKILL)

    with pytest.raises(ChaosFailed, match="nursery"):
        nursery.start("signal:pause", [], tmp_path / "child.log", {})


def is_running(pid: int) -> bool:
    """Return whether *pid* is there and no zombie, which its new parent may leave for a while."""
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return bool(found.stdout.strip()) and not found.stdout.startswith("Z")
