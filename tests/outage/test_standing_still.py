"""A server whose processes stand still (SIGSTOP), and a worker that is to end meanwhile."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.cli.programs import Program, environment
from tests.services.private import PrivateServer

# The hour: no call fails by itself, so that a worker which waits for Redis fails the test.
APP: Final = """
import logging
import threading
from datetime import timedelta
from pathlib import Path

from timeoutmgr import Endpoint, EndpointConfiguration
from timeoutmgr.satellites import TimeoutManager

config = EndpointConfiguration("sales")
config.use_transport("{url}", accept_loss=True, confirm_timeout=timedelta(hours=1))
config.use_persistence("sqlite:///timeoutmgr.db")
config.enable_feature(TimeoutManager())

@config.handler("Slow")
def slow(body, context):
    print("handler begins", flush=True)
    while not Path("go").exists():
        threading.Event().wait(0.02)

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    Endpoint(config).run()
"""


@pytest.fixture
def server(private_server: Callable[[str], PrivateServer]) -> PrivateServer:
    return private_server("redis")


@pytest.fixture
def start(server: PrivateServer, tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Start a program on an endpoint whose broker is *server*."""
    (tmp_path / "app.py").write_text(APP.format(url=server.url))
    started: list[Program] = []

    def run(*words: str) -> Program:
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=tmp_path,
            env=environment(PYTHONUNBUFFERED="1"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(Program(process, process.stdout, process.stderr))
        return started[-1]

    yield run
    for program in started:
        program.process.kill()
        program.wait()


def test_an_idle_worker_ends_while_redis_stands_still(
    server: PrivateServer, start: Callable[..., Program]
) -> None:
    worker = start("app.py")
    worker.wait_for("endpoint sales runs")

    with server.standing_still():
        code = worker.stop()

    assert code == 0
    assert any("which hangs" in line for line in worker.err)


def test_a_worker_with_a_leased_message_ends_while_redis_stands_still(
    server: PrivateServer, start: Callable[..., Program], tmp_path: Path
) -> None:
    worker = start("app.py")
    worker.wait_for("endpoint sales runs")
    assert (
        start("-m", "timeoutmgr", "--app", "app:config", "send", "sales", "Slow", "{}").wait() == 0
    )
    worker.wait_for("handler begins")

    with server.standing_still():
        worker.process.send_signal(signal.SIGTERM)
        worker.wait_for("which hangs")
        (tmp_path / "go").touch()
        code = worker.wait()

    assert code == 0
