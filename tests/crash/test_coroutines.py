"""A process that is killed while coroutine handlers run loses no message.

Where the session of a handler is in the transaction of its message, nothing is repeated either;
elsewhere at most as many messages are as ran at once, each under the same id.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
from sqlalchemy import create_engine, text

from chaos.forkserver_client import ForkServer
from tests.crash.cases import Crash
from tests.crash.site import Worker
from tests.support.waiting import eventually
from timeoutmgr import Endpoint, EndpointConfiguration, ToSend
from timeoutmgr.contracts import Transport
from timeoutmgr.endpoint.configuration import transport_from_url

COUNT: Final = 60
CONCURRENCY: Final = 10
POINTS: Final = (
    *("handler.kept", "handler.returned", "handler.sent"),
    *("pump.handled", "pump.acked", "work.committed"),
)


class Scene:
    """Queues with messages to handle, and a table that notes them where the mode has it."""

    def __init__(
        self, url: str, mode: str, name: str, folder: Path, fork_server: ForkServer
    ) -> None:
        self.url, self.name, self.target = url, name, f"{name}-target"
        self._folder, self._fork_server, self._workers = folder, fork_server, 0
        self.mode = mode
        self.ledger = f"{name}_ledger" if mode == "transaction_scope" else None
        config = EndpointConfiguration(name)
        config.error_queue = f"{name}.error"
        config.use_transport(url)
        config.add_handler("Work", print)
        endpoint = Endpoint(config)
        with closing(endpoint):
            endpoint.install()
            self._create()
            endpoint.send_many(ToSend(name, "Work", number) for number in range(COUNT))

    def _create(self) -> None:
        with closing(self.transport()) as transport, closing(transport.session()) as session:
            session.create_queues([self.target])
        if self.ledger is not None:
            self._run(f"CREATE TABLE {self.ledger} (n INTEGER)")

    def transport(self) -> Transport:
        return transport_from_url(self.url)

    def worker(self, crash: Crash | None) -> Worker:
        self._workers += 1
        given = {
            "worker": "tests.crash.coroutine_worker",
            "name": self.name,
            "transport": self.url,
            "mode": self.mode,
            "ledger": self.ledger,
            "target": self.target,
            "concurrency": CONCURRENCY,
        }
        return Worker(self._fork_server, given, self._folder / f"worker-{self._workers}", crash)

    def waiting(self, queue: str) -> int:
        with closing(self.transport()) as transport, closing(transport.session()) as session:
            return session.count(queue)

    def finish(self) -> None:
        """Run workers until one has left no message behind."""
        while True:
            other = self.worker(None)
            try:
                # Before it runs SIGTERM would kill the process, and its exit code say nothing.
                other.wait_until_it_runs()
                eventually(lambda: self.waiting(self.target) >= COUNT, "most are handled", 60)
                assert other.terminate() == 0, other.said
            finally:
                other.kill()
            if not self.waiting(self.name):
                return

    def done(self) -> Counter[int]:
        """Return how often each message was handled, by the messages that its handler sent."""
        found: Counter[int] = Counter()
        ids: dict[int, set[str]] = {}
        with (
            closing(self.transport()) as transport,
            closing(transport.session()) as session,
            closing(session.receiver(self.target, prefetch=2 * COUNT)) as receiver,
        ):
            while batch := receiver.receive(COUNT, 0.5):
                for received in batch:
                    number = json.loads(received.message.body)
                    found[number] += 1
                    ids.setdefault(number, set()).add(received.message.id)
        assert {len(several) for several in ids.values()} == {1}, "a repeat has the same id"
        return found

    def noted(self) -> list[int]:
        assert self.ledger is not None
        engine = create_engine(self.url)
        with engine.connect() as connection:
            rows = connection.execute(text(f"SELECT n FROM {self.ledger} ORDER BY n"))
            numbers = [int(row.n) for row in rows]
        engine.dispose()
        return numbers

    def remove(self) -> None:
        """Delete queues and table."""
        with closing(self.transport()) as transport, closing(transport.session()) as session:
            session.delete_queues([self.name, self.target, f"{self.name}.error"])
        if self.ledger is not None:
            self._run(f"DROP TABLE {self.ledger}")

    def _run(self, statement: str) -> None:
        engine = create_engine(self.url)
        with engine.begin() as connection:
            connection.execute(text(statement))
        engine.dispose()


@pytest.fixture(
    params=[
        ("sqlite", "transaction_scope"),
        ("postgres", "transaction_scope"),
        ("postgres", "receive_only"),
        ("rabbitmq", "receive_only"),
    ],
    ids="+".join,
)
def scene(
    request: pytest.FixtureRequest, unique: str, tmp_path: Path, fork_server: ForkServer
) -> Iterator[Scene]:
    server, mode = request.param
    url = request.getfixturevalue(f"{server}_url")
    scene = Scene(url, mode, unique, tmp_path, fork_server)
    yield scene
    scene.remove()


@pytest.mark.parametrize("point", ["handler.sent", "pump.acked"])
def test_a_process_that_dies_while_coroutines_run_loses_nothing(scene: Scene, point: str) -> None:
    _kill_and_continue(scene, point)


@pytest.mark.crash_full
@pytest.mark.parametrize("point", POINTS)
def test_each_point_of_a_handler(scene: Scene, point: str) -> None:
    _kill_and_continue(scene, point)


def _kill_and_continue(scene: Scene, point: str) -> None:
    doomed = scene.worker(Crash(point, 2))
    try:
        doomed.wait_until_it_ends()
    finally:
        doomed.kill()
    assert doomed.was_killed, doomed.said
    scene.finish()

    done = scene.done()
    assert set(done) == set(range(COUNT))
    repeated = sum(done.values()) - COUNT
    if scene.ledger is None:
        assert repeated <= CONCURRENCY
    else:
        assert (repeated, scene.noted()) == (0, list(range(COUNT)))
