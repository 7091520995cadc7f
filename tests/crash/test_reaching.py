from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Protocol

import pytest

from chaos.crash_command import VARIABLE
from chaos.forkserver_client import ForkServer, Streams
from tests.support.forked_programs import PROGRAM
from timeoutmgr import crashpoints

ARM = "from chaos.crash_command import arm_from_environment; arm_from_environment()\n"
_ROOT = Path(__file__).parents[2]


class RunForked(Protocol):
    """Runs a program in a fork, with a crash point in its environment."""

    def __call__(self, program: str, setting: str) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture
def run_forked(fork_server: ForkServer, tmp_path: Path) -> RunForked:
    """Runs a program without the imports of a new interpreter."""

    def run(program: str, setting: str) -> subprocess.CompletedProcess[str]:
        streams = Streams(tmp_path / "output", tmp_path / "errors")
        child = fork_server.start(PROGRAM, [program], streams, {VARIABLE: setting})
        code = child.wait(60)
        texts = (path.read_text() for path in (streams.output, tmp_path / "errors"))
        return subprocess.CompletedProcess([], code, *texts)

    return run


def test_a_point_does_nothing_in_a_process_that_is_not_armed() -> None:
    assert crashpoints._armed is None
    crashpoints.reach("no.such")


def test_the_variable_does_not_arm_the_product() -> None:
    ended = _run(
        "from timeoutmgr.crashpoints import reach; reach('pump.received')", "pump.received"
    )
    command = _run(
        "import sys; sys.argv = ['timeoutmgr', '--version']\n"
        "from timeoutmgr.cli.main import main\n"
        "from timeoutmgr import crashpoints\n"
        "try:\n    main()\nfinally:\n    assert crashpoints._armed is None",
        "pump.received",
    )

    assert (ended.returncode, ended.stderr) == (0, "")
    assert (command.returncode, command.stderr) == (0, "")


def test_the_crashing_program_is_the_command_with_a_point_armed(tmp_path: Path) -> None:
    (tmp_path / "timeoutmgr.toml").write_text('endpoint = "sales"\n')
    ended = subprocess.run(
        [sys.executable, "-m", "chaos.crash_command", "install"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(_ROOT),
            VARIABLE: "install.queue_tables",
        },
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert "dies at crash point install.queue_tables" in ended.stderr


@pytest.mark.parametrize(
    ("setting", "reached", "left"),
    [
        ("pump.received", "r", ""),
        ("pump.received:1", "r", ""),
        ("pump.received:2", "r", "1"),
        ("pump.received:2", "rr", "1"),
        ("pump.received:2", "hrhr", "123"),
        ("pump.received:3", "rr", "12"),
    ],
)
def test_a_process_kills_itself_at_the_nth_hit(
    run_forked: RunForked, setting: str, reached: str, left: str
) -> None:
    names = {"r": "pump.received", "h": "pump.handled"}
    program = f"{ARM}from timeoutmgr.crashpoints import reach\n" + "".join(
        f"reach({names[one]!r}); print({n}, end='', flush=True)\n"
        for n, one in enumerate(reached, 1)
    )

    ended = run_forked(program, setting)

    dies = reached.count("r") >= int(setting.partition(":")[2] or 1)
    assert ended.returncode == (-signal.SIGKILL if dies else 0)
    assert ended.stdout == left
    assert ("dies at crash point" in ended.stderr) is dies


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("pump.recieved:1", "did you mean 'pump.received'?"),
        ("zzz", "known: pump.received, "),
        ("pump.received:0", "nth from 1"),
        ("pump.received:x", "nth from 1"),
        ("pump.received:-1", "nth from 1"),
    ],
)
def test_a_setting_that_means_nothing_is_refused_at_once(
    run_forked: RunForked, setting: str, sentence: str
) -> None:
    ended = run_forked(ARM, setting)

    assert ended.returncode == 1
    assert "ConfigurationError: " in ended.stderr
    assert sentence in ended.stderr


def test_an_unregistered_point_is_an_error_if_a_point_is_set(run_forked: RunForked) -> None:
    program = f"{ARM}from timeoutmgr.crashpoints import reach; reach('no.such')"
    ended = run_forked(program, "pump.received")

    assert "'no.such' is not registered" in ended.stderr


def _run(program: str, setting: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(_ROOT), VARIABLE: setting},
        capture_output=True,
        text=True,
        check=False,
    )
