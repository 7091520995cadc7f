"""A worker of the app dispatches its stored tasks, and executes them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.forkserver_client import Child, ForkServer
from tests.contrib.celery.conftest import Site
from tests.support.forked import start
from tests.support.waiting import eventually
from timeoutmgr import Endpoint
from timeoutmgr.contrib.celery.worker import DispatchStep
from timeoutmgr.contrib.worker_dispatch import LateStart
from timeoutmgr.errors import StorageUnavailable, TransportUnavailable

SEND = (
    "from tests.contrib.celery.proj import note, stubborn, delays\n"
    "gone = note.apply_async(('revoked',), countdown=2)\n"
    "for n in range(5): note.apply_async((f'n{n}',), countdown=1.5)\n"
    "stubborn.apply_async(('s',), countdown=1.5)\n"
    "gone.revoke()\n"
)

RUNNING_TASK = (
    "from tests.contrib.celery.proj import note, wait\n"
    "wait.apply_async(('a',), countdown=1.5)\n"
    "note.apply_async(('b',), countdown=3600, task_id='b')\n"
)

MORE_THAN_A_PROCESS_TAKES = (
    "from tests.contrib.celery.proj import note, sender, wait\n"
    "wait.delay('a')\n"
    "sender.delay()\n"
    "for n in range(3): note.delay(f'n{n}')\n"
)

IS_STORED = (
    "from tests.contrib.celery.proj import delays\n"
    "assert [task.id for task in delays.list()] == ['b']\n"
)

STOCK = (
    "import os\n"
    "from celery import Celery\n"
    "from timeoutmgr.transport.sql import register\n"
    "register()\n"
    "app = Celery('stock', broker=os.environ['BROKER'])\n"
    "app.conf.task_default_queue = os.environ['QUEUE']\n"
    "app.send_task('note', ('moved',), countdown=3600, task_id='moved')\n"
)
SEND_MOVED = (
    "from tests.contrib.celery.proj import delays\n"
    "from timeoutmgr.contracts import ChangeResult\n"
    "assert delays.send_now('moved') is ChangeResult.CHANGED\n"
)

DYING = (
    "import os, signal\n"
    "from timeoutmgr.contrib.celery import DurableDelays\n"
    "move_in = DurableDelays.move_in\n"
    "def dying(*given):\n"
    "    {before}\n"
    "    os.kill(os.getpid(), signal.SIGKILL)\n"
    "DurableDelays.move_in = dying\n"
)
APP = ("-A", "tests.contrib.celery.proj")
MAIN = "from celery.__main__ import main; main()\n"
INSPECT = (
    "import json\n"
    "from tests.contrib.celery.proj import app\n"
    "replies = app.control.broadcast('delayed', reply=True, timeout=5, limit=1)\n"
    "print(json.dumps([answer for reply in replies for answer in reply.values()]))\n"
)

PATIENCE = 120.0
ROOT = Path(__file__).parents[3]


class Celery:
    """Starts programs with the app in their environment, and workers as a shell starts them."""

    def __init__(self, fork_server: ForkServer, folder: Path, variables: dict[str, str]) -> None:
        self.variables = variables
        self._fork_server = fork_server
        self._folder = folder
        self._started: list[Child] = []
        self._workers: list[subprocess.Popen[bytes]] = []

    def worker(self, pool: str, *more: str, program: str = "") -> subprocess.Popen[bytes]:
        """Start a worker in an interpreter of its own, which runs *program* first."""
        words = ["worker", "-P", *pool.split(), "-c", "2", "-l", "WARNING", *more]
        command = [sys.executable, "-c", program + MAIN, *APP, *words]
        variables = {**os.environ, **self.variables}
        self._workers.append(subprocess.Popen(command, cwd=ROOT, env=variables))
        return self._workers[-1]

    def __call__(self, program: str, *arguments: str) -> Child:
        """Start a *program*."""
        output = self._output(len(self._started))
        child = start(
            self._fork_server, program, *arguments, output=output, variables=self.variables
        )
        self._started.append(child)
        return child

    def printed(self, program: str, *arguments: str) -> str:
        """Run a *program* to its end; return its output."""
        number = len(self._started)
        self(program, *arguments).wait(PATIENCE)
        return self._output(number).read_text()

    def close(self) -> None:
        """Kill all programs."""
        everyone: list[Child | subprocess.Popen[bytes]] = [*self._started, *self._workers]
        for started in everyone:
            started.kill()
            started.wait(PATIENCE)

    def _output(self, number: int) -> Path:
        return self._folder / f"output-{number}"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The file into which tasks write."""
    path = tmp_path / "log"
    path.touch()
    return path


@pytest.fixture
def celery(
    tmp_path: Path, postgres_url: str, unique: str, log: Path, fork_server: ForkServer
) -> Iterator[Celery]:
    """Start programs with the app in their environment; they are killed when the test ends."""
    variables = {
        "BROKER": f"timeoutmgr+{postgres_url}",
        "STORE": postgres_url,
        "RESULTS": f"file://{tmp_path}",
        "QUEUE": f"{unique}-tasks",
        "NAME": unique,
        "LOG": str(log),
    }
    made = Celery(fork_server, tmp_path, variables)
    yield made
    made.close()


def pools(*usual: str, rare: Sequence[str]) -> list[Any]:
    """Return the pools of workers to try, of which the *rare* have `make long` to themselves."""
    return [*usual, *(pytest.param(pool, marks=pytest.mark.long) for pool in rare)]


POOLS = pools(
    *("prefork", "solo"),
    rare=("threads", "prefork --max-tasks-per-child=1", "prefork --autoscale=3,1"),
)


MOVED: dict[str, object] = {"in memory": 0, "moved": 1, "stored": "1"}


def answers(celery: Celery) -> list[dict[str, object]]:
    """Return the answers of all workers to ``inspect delayed``."""
    found: list[dict[str, object]] = json.loads(celery.printed(INSPECT))
    return found


@pytest.mark.timeout(180)
@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_executes_stored_tasks_once_and_ends_at_a_term(
    celery: Celery, log: Path, pool: str
) -> None:
    assert celery(SEND).wait(PATIENCE) == 0
    running = celery.worker(pool)
    expected = {*(f"n{n}" for n in range(5)), "s 0", "s 1"}

    eventually(lambda: set(log.read_text().split("\n")) - {""} >= expected, "all tasks ran", 120)
    running.send_signal(signal.SIGTERM)
    assert running.wait(PATIENCE) == 0

    assert sorted(log.read_text().split("\n")[:-1]) == sorted(expected)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("pool", pools("prefork", rare=("threads", "solo")))
def test_a_term_lets_the_running_task_end_and_leaves_the_others_stored(
    celery: Celery, log: Path, pool: str
) -> None:
    assert celery(RUNNING_TASK).wait(PATIENCE) == 0
    running = celery.worker(pool)
    eventually(lambda: "a\n" in log.read_text(), "the task is in hand", 120)

    running.send_signal(signal.SIGTERM)
    log.with_name(f"{log.name}.a").touch()
    assert running.wait(PATIENCE) == 0

    assert log.read_text() == "a\na ended\n"
    assert celery(IS_STORED).wait(PATIENCE) == 0


@pytest.mark.timeout(180)
def test_a_worker_answers_while_its_only_process_is_busy_and_has_a_sender(
    celery: Celery, log: Path
) -> None:
    celery.worker("prefork", "-c", "1")
    assert celery(MORE_THAN_A_PROCESS_TAKES).wait(PATIENCE) == 0
    eventually(lambda: "a\n" in log.read_text(), "the task is in hand", 120)

    answer = answers(celery)
    log.with_name(f"{log.name}.a").touch()
    eventually(lambda: "n2" in log.read_text(), "all tasks ran", 120)

    assert answer == [{"in memory": 0, "moved": 0, "stored": "0"}]
    assert "sender True" in log.read_text()


@pytest.mark.timeout(180)
def test_stored_tasks_survive_a_killed_worker(celery: Celery, log: Path) -> None:
    first = celery.worker("solo")
    assert celery(SEND).wait(PATIENCE) == 0
    first.kill()
    first.wait(PATIENCE)
    celery.worker("solo")
    expected = {*(f"n{n}" for n in range(5)), "s 0", "s 1"}

    eventually(lambda: set(log.read_text().split("\n")) - {""} >= expected, "all tasks ran", 120)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("pool", pools("solo", rare=("prefork",)))
def test_a_worker_stores_delayed_tasks_of_a_program_without_the_delays(
    celery: Celery, log: Path, pool: str
) -> None:
    first = celery.worker(pool)
    assert celery(STOCK).wait(PATIENCE) == 0

    eventually(lambda: answers(celery) == [MOVED], "the task is stored", 120)
    first.kill()
    first.wait(PATIENCE)
    assert celery(SEND_MOVED).wait(PATIENCE) == 0
    celery.worker(pool)

    eventually(lambda: log.read_text() == "moved\n", "the task ran", 120)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("before", ["pass", "move_in(*given)"], ids=["unstored", "stored"])
def test_a_received_task_survives_a_kill_before_it_is_acknowledged(
    celery: Celery, log: Path, before: str
) -> None:
    first = celery.worker("solo", program=DYING.format(before=before))
    assert celery(STOCK).wait(PATIENCE) == 0
    assert first.wait(PATIENCE) == -signal.SIGKILL
    celery.worker("solo")

    eventually(lambda: answers(celery) == [MOVED], "the task is stored once", 120)
    assert celery(SEND_MOVED).wait(PATIENCE) == 0
    eventually(lambda: log.read_text() == "moved\n", "the task ran", 120)


@pytest.mark.parametrize("error", [StorageUnavailable, TransportUnavailable])
def test_a_worker_starts_while_a_server_is_away_and_dispatches_later(
    embedded: Site, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    embedded.add.apply_async((1, 2), countdown=1.2)
    start, failures = Endpoint.start, [error("away"), error("away"), error("away")]

    def start_later(endpoint: Endpoint) -> None:
        if failures:
            raise failures.pop()
        start(endpoint)

    monkeypatch.setattr(Endpoint, "start", start_later)
    monkeypatch.setattr(LateStart.__init__, "__defaults__", (0.01,))
    running = SimpleNamespace(app=embedded.app)
    step = DispatchStep(running)
    step.start(running)
    try:
        assert embedded.arrival().headers["task"] == "add"
    finally:
        step.stop(running)


def test_a_worker_ends_while_a_server_is_away(
    embedded: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_endpoint: Endpoint) -> None:
        raise StorageUnavailable("away")

    monkeypatch.setattr(Endpoint, "start", away)
    step = DispatchStep(running := SimpleNamespace(app=embedded.app))
    step.start(running)

    step.stop(running)

    assert "timeoutmgr-start" not in [thread.name for thread in threading.enumerate()]


def test_the_commands_of_timeoutmgr_know_the_app(celery: Celery) -> None:
    assert celery(MAIN, *APP, "timeouts", "install").wait(PATIENCE) == 0
    if metadata.version("celery") >= "5.4":  # 5.3 knows its own commands alone
        assert "delayed" in celery.printed(MAIN, *APP, "inspect", "--list")
    assert celery(MAIN, *APP, "timeouts", "list").wait(PATIENCE) == 0
    assert celery(MAIN, *APP, "timeouts", "cancel", "unknown").wait(PATIENCE) == 0
    assert (
        celery(MAIN, *APP, "timeouts", "reschedule", "unknown", "--delay", "1h").wait(PATIENCE) == 3
    )
