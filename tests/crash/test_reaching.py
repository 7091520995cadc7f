from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from timeoutmgr import crashpoints

_ROOT = Path(__file__).parents[2]


def test_reaching_a_point_does_nothing_where_the_variable_is_not_set() -> None:
    assert crashpoints.VARIABLE not in os.environ
    assert crashpoints.reach is crashpoints._pass_by


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
def test_a_process_kills_itself_at_the_nth_hit(setting: str, reached: str, left: str) -> None:
    names = {"r": "pump.received", "h": "pump.handled"}
    program = "from timeoutmgr.crashpoints import reach\n" + "".join(
        f"reach({names[one]!r}); print({n}, end='', flush=True)\n"
        for n, one in enumerate(reached, 1)
    )

    ended = _run(program, setting)

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
def test_a_setting_that_means_nothing_is_refused_at_once(setting: str, sentence: str) -> None:
    ended = _run("import timeoutmgr", setting)

    assert ended.returncode == 1
    assert "ConfigurationError: TIMEOUTMGR_CRASHPOINT" in ended.stderr
    assert sentence in ended.stderr


def test_an_unregistered_point_is_an_error_where_one_is_set() -> None:
    ended = _run("from timeoutmgr.crashpoints import reach; reach('no.such')", "pump.received")

    assert "'no.such' is not registered" in ended.stderr


def _run(program: str, setting: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(_ROOT), crashpoints.VARIABLE: setting},
        capture_output=True,
        text=True,
        check=False,
    )
