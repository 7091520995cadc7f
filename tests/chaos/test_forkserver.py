"""Each incarnation is a process of its own, and no process outlives the fork server or the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chaos import ChaosFailed
from chaos.environment import Environment
from chaos.forkserver_client import ForkServer, Streams
from chaos.processes import PATIENCE
from tests.support.waiting import eventually
from tests.testing.projects import ROOT


def test_a_child_is_a_process_with_its_own_variables_and_log(
    tmp_path: Path, fork_server: ForkServer
) -> None:
    environment = Environment(
        folder=str(tmp_path), broker="", store="", suffix="", claim_time=5, seed=1
    ).save("other")
    child = fork_server.start(
        "json.tool:main",
        [str(environment)],
        Streams(tmp_path / "child.log"),
        {"CHAOS_PROCESS": "worker-1#1"},
    )

    assert child.wait(PATIENCE) == 0
    assert '"claim_time": 5' in (tmp_path / "child.log").read_text()


def test_closing_the_fork_server_ends_its_children(tmp_path: Path, fork_server: ForkServer) -> None:
    child = fork_server.start("signal:pause", [], Streams(tmp_path / "child.log"), {})
    child.send_signal(signal.SIGSTOP)

    fork_server.close()

    eventually(lambda: not is_running(child.pid), "the child is gone")


def test_children_end_when_the_run_is_killed(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys\n"
        "from chaos.forkserver_client import ForkServer, Streams\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "server = ForkServer(folder / 'forkserver.log')\n"
        "child = server.start('signal:pause', [], Streams(folder / 'log'), {})\n"
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


def test_the_end_of_the_fork_server_ends_the_run(tmp_path: Path, fork_server: ForkServer) -> None:
    os.kill(fork_server.pid, signal.SIGKILL)

    with pytest.raises(ChaosFailed, match="fork server"):
        fork_server.start("signal:pause", [], Streams(tmp_path / "child.log"), {})


def is_running(pid: int) -> bool:
    """Return whether *pid* is there and no zombie, which its new parent may leave for a while."""
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return bool(found.stdout.strip()) and not found.stdout.startswith("Z")
