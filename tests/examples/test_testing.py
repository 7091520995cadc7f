"""The tests of a user, by the testing kit: without a server, a wait or a thread."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.examples import EXAMPLES
from tests.testing.projects import ROOT, install

STILL = """
import socket, sys, threading, time
import pytest

def refuse(*_arguments, **_named):
    raise AssertionError("the tests of a user neither wait, nor connect, nor start a thread")

time.sleep = socket.socket.connect = threading.Thread.start = refuse
options = ["-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "-p", "no:xdist", "-W", "error"]
sys.exit(pytest.main([*options, "--strict-markers", "."]))
"""


def test_the_seven_tests_of_a_user_pass_without_a_wait(tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(EXAMPLES / "testing", project)
    install(project)

    ended = subprocess.run(
        [sys.executable, "-c", STILL],
        cwd=project,
        env={
            **os.environ,
            "PYTHONPATH": f"{project}{os.pathsep}{ROOT}",
            "TIMEOUTMGR_DATA": str(tmp_path / "timeoutmgr.db"),
        },
        capture_output=True,
        text=True,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "7 passed" in ended.stdout
    assert list(tmp_path.iterdir()) == [project]
