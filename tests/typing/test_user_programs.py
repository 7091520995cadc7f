"""Type checkers find the mistakes of a user's program, and none in a correct program."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests import house
from timeoutmgr import AsyncEndpoint, Endpoint, EndpointConfiguration, HandlerContext, SendOptions
from timeoutmgr.errors import InvalidMessage
from timeoutmgr.satellites import TimeoutManager

HERE = Path(__file__).parent
CORRECT, MISTAKES = HERE / "correct.py", HERE / "mistakes.py"

Places = set[tuple[str, int]]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a folder with the package as a wheel lays it out; type checkers read no setup.cfg."""
    inside = tmp_path / "site" / house.PACKAGE
    inside.mkdir(parents=True)
    for child in (house.ROOT / house.PACKAGE).iterdir():
        (inside / child.name).symlink_to(child)
    for part in house.PARTS:
        (inside / part).symlink_to(house.ROOT / part)
    return inside.parent


def mypy(package: Path) -> Places:
    """Return the places at which ``mypy --strict`` finds errors."""
    options = ["--strict", "--follow-imports=silent", "--output=json", "--config-file="]
    cache = f"--cache-dir={package.parent / 'cache'}"
    answer = subprocess.run(
        [sys.executable, "-m", "mypy", *options, cache, CORRECT, MISTAKES],
        cwd=package.parent,
        env={**os.environ, "MYPYPATH": str(package)},
        capture_output=True,
        text=True,
        timeout=110,
    )
    found = [json.loads(line) for line in answer.stdout.splitlines()]
    assert found, answer.stderr
    return {
        (Path(each["file"]).name, each["line"]) for each in found if each["severity"] == "error"
    }


def pyright(package: Path) -> Places:
    """Return the places at which pyright finds errors in its strict mode."""
    config = package.parent / "pyrightconfig.json"
    config.write_text(
        json.dumps(
            {
                "include": [str(CORRECT), str(MISTAKES)],
                "extraPaths": [str(package)],
                "typeCheckingMode": "strict",
            }
        )
    )
    # basedpyright is pyright with a Node.js in its wheel: it runs without a download.
    answer = subprocess.run(
        [
            *(sys.executable, "-m", "basedpyright", "--outputjson"),
            *("--pythonpath", sys.executable, "--project", config),
        ],
        cwd=package.parent,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert answer.stdout, answer.stderr
    return {
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1)
        for each in json.loads(answer.stdout)["generalDiagnostics"]
        if each["severity"] == "error"
    }


@pytest.mark.slow
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_a_type_checker_finds_the_mistakes_and_nothing_else(
    checker: Callable[[Path], Places], package: Path
) -> None:
    lines = MISTAKES.read_text().splitlines()
    planted = {
        (MISTAKES.name, number) for number, line in enumerate(lines, 1) if "# mistake" in line
    }

    assert len(planted) == 24
    assert checker(package) == planted


@pytest.mark.parametrize(
    "send",
    [
        Endpoint.send,
        Endpoint.send_local,
        AsyncEndpoint.send,
        AsyncEndpoint.send_local,
        HandlerContext.send,
        HandlerContext.send_local,
        HandlerContext.reply,
    ],
)
def test_each_send_has_the_fields_of_its_options_as_keywords(send: Callable[..., Any]) -> None:
    keywords = {
        name: parameter.annotation
        for name, parameter in inspect.signature(send).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name != "session"
    }

    assert keywords == {field.name: field.type for field in fields(SendOptions)}


def test_a_naive_due_time_is_refused_when_it_is_sent(tmp_path: Path) -> None:
    config = EndpointConfiguration("sales")
    config.use_transport(f"sqlite:///{tmp_path / 'sales.db'}")
    config.use_persistence(f"sqlite:///{tmp_path / 'sales.db'}")
    config.enable_feature(TimeoutManager())
    naive = datetime.now(UTC).replace(tzinfo=None) + timedelta(hours=1)
    with Endpoint(config) as endpoint, pytest.raises(InvalidMessage, match="aware"):
        endpoint.send_local("Remind", {}, deliver_at=naive)
