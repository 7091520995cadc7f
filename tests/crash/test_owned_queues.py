"""Processes that die while they remove queues of dead owners; the next sweep ends the work."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import kombu as kombu_package
import pytest
from sqlalchemy import func, select

from tests.crash.cases import OWNED
from timeoutmgr.crashpoints import POINTS
from timeoutmgr.transport.sql import register

kombu: Any = kombu_package  # its annotations are too few to check against
register()
_WORKER: Final = (sys.executable, "-m", "tests.crash.owned_queue_worker")
_ROOT: Final = Path(__file__).parents[2]
_POINTS: Final = [point for point in POINTS if point.startswith(OWNED)]


def leave_a_dead_owner(url: str) -> None:
    """Return when a process with a temporary queue was killed."""
    with subprocess.Popen(
        [*_WORKER, url], cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        try:
            assert worker.stdout.readline() == "owns\n"
        finally:
            worker.kill()


def rows(connection: Any) -> dict[str, int]:
    tables = connection.transport.sql.tables
    with connection.transport.sql.database.read() as own:
        return {
            name: own.execute(select(func.count()).select_from(getattr(tables, name))).scalar_one()
            for name in ("queues", "bindings", "messages", "owners")
        }


@pytest.mark.parametrize("point", [*_POINTS, "owned_queues.deleting:2"])
def test_a_sweep_that_dies_is_ended_by_the_next(sqlite_url: str, point: str) -> None:
    with kombu.Connection(f"timeoutmgr+{sqlite_url}") as connection:
        kombu.Queue("tasks", durable=True)(connection.default_channel).declare()
        connection.Producer().publish("kept", routing_key="tasks")
        leave_a_dead_owner(sqlite_url)
        connection.Producer().publish("ended", routing_key="tasks", expiration=0)
        assert rows(connection) == {"queues": 2, "bindings": 1, "messages": 3, "owners": 1}

        died = subprocess.run([*_WORKER, sqlite_url, point], cwd=_ROOT, check=False)
        assert died.returncode == -signal.SIGKILL
        connection.transport.sql.owned_queues.sweep()

        assert rows(connection) == {"queues": 1, "bindings": 0, "messages": 1, "owners": 0}
