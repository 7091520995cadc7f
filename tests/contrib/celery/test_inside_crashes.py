"""A process is killed amid ``delays.inside``: tasks and row exist together, or none of them."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from sqlalchemy import create_engine, text

from chaos.crash_command import VARIABLE
from chaos.forkserver_client import ForkServer, Streams
from tests.contrib.celery.conftest import MakeSite, Site
from tests.contrib.celery.inside_process import ENDS, send
from tests.support.waiting import eventually
from timeoutmgr import crashpoints

ENTRY: Final = f"{send.__module__}:main"


class Order:
    """A site, and a table of orders in the database of its store."""

    def __init__(self, site: Site, fork_server: ForkServer, output: Path) -> None:
        self.site = site
        self._fork_server = fork_server
        self._output = output
        self.engine = create_engine(site.delays._store)
        self.table = f"{site.delays.endpoint.name}_orders"

    def killed(self, point: str = "", end: str = "") -> None:
        """Have a process send, and die at the crash *point* or at *end*."""
        name = self.site.delays.endpoint.name
        arguments = [name, self.site.broker, self.site.delays._store, end]
        self._output.touch()
        streams = Streams(self._output)
        child = self._fork_server.start(ENTRY, arguments, streams, {VARIABLE: point})
        eventually(lambda: child.poll() is not None, f"the process ends at {point or end}", 60)
        assert child.poll() == -signal.SIGKILL, self._output.read_text()

    def found(self) -> tuple[int, list[str]]:
        """Return the number of rows, and the tasks that are stored."""
        with self.engine.connect() as connection:
            rows = connection.execute(text(f"SELECT count(*) FROM {self.table}")).scalar_one()
        return rows, sorted(self.site.stored())


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def order(
    request: pytest.FixtureRequest, make_site: MakeSite, fork_server: ForkServer, tmp_path: Path
) -> Iterator[Order]:
    """A table of orders beside a store; on Redis only the store is in the database."""
    made = Order(make_site(request.param), fork_server, tmp_path / "output")
    with made.engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE {made.table} (id INTEGER)"))
    yield made
    with made.engine.begin() as connection:
        connection.execute(text(f"DROP TABLE {made.table}"))
    made.engine.dispose()


def passed(order: Order, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the crash points of a send, in their order and with their number."""
    seen: list[str] = []
    monkeypatch.setattr(crashpoints, "_armed", seen.append)
    with order.engine.connect() as connection, connection.begin() as transaction:
        send(order.site.delays, order.site.add, connection, order.table)
        transaction.rollback()
    monkeypatch.undo()
    counts: Counter[str] = Counter()
    numbered = []
    for point in seen:
        counts[point] += 1
        numbered.append(f"{point}:{counts[point]}")
    return numbered


@pytest.mark.timeout(180)
def test_a_process_that_is_killed_leaves_tasks_and_row_or_neither(
    order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = passed(order, monkeypatch)
    assert len(points) >= 6

    for point in points:
        order.killed(point)
        assert order.found() == (0, []), point
    order.killed(end=ENDS[0])
    assert order.found() == (0, [])
    order.killed(end=ENDS[1])
    assert order.found() == (1, ["at once", "delayed"])
