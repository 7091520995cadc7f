"""A migration out of delay levels is killed at each point: each message ends in one place."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import amqp
import pytest

from chaos.forkserver_client import ForkServer
from tests.crash.cases import Crash
from tests.crash.site import Worker
from tests.migration.levels import names_of, queues_of
from tests.persistence.making import SECOND
from tests.support.makers import a_message
from tests.support.waiting import eventually
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import TimeoutFilter
from timeoutmgr.crashpoints import POINTS
from timeoutmgr.message.message import Outgoing
from timeoutmgr.native.infrastructure import delay_topology, unroutable_topology
from timeoutmgr.native.names import NameSet, to_levels
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.transport.kombu_transport import KombuTransport

AMOUNT: Final = 8
CHUNK: Final = 2
DELIVERED: Final = Crash("draining.delivered", 2)
"""Where the run died that is then aborted: a chunk is stored, and waits in its level as well."""
ABORTING: Final = (
    *("draining.aborting", "draining.shut_for_good", "draining.swept", "draining.returned"),
    "draining.aborted",
)
RUNNING: Final = tuple(
    point for point in POINTS if point.startswith("draining.") and point not in ABORTING
)


@dataclass(frozen=True, slots=True)
class Broker:
    """Levels of this test alone, in classic queues, which a broker makes quickly."""

    url: str
    session: Any
    stem: str

    @property
    def names(self) -> NameSet:
        """The names of the levels."""
        return names_of(self.stem)


@pytest.fixture(scope="module")
def broker(rabbitmq_url: str) -> Iterator[Broker]:
    """A broker with the levels."""
    name = f"t{secrets.token_hex(4)}"
    names = names_of(name)
    with closing(KombuTransport(rabbitmq_url)) as transport, closing(transport.session()) as opened:
        session: Any = opened
        session.declare(unroutable_topology())
        session.declare(delay_topology(names, "classic"))
        yield Broker(rabbitmq_url, session, name)
        session.remove(delay_topology(names, "classic"))


class Scene:
    """Messages in the levels, a store, and the processes that move messages into the store."""

    def __init__(
        self, broker: Broker, url: str, endpoint: str, folder: Path, fork_server: ForkServer
    ) -> None:
        self.broker = broker
        self.url = url
        self.endpoint = endpoint
        self._folder = folder
        self._fork_server = fork_server
        self._processes = 0
        with closing(SqlPersistence(url)) as persistence:
            persistence.install()
        clock = SystemClock()
        far = clock.now() + 3600 * SECOND
        self.ids = [f"{endpoint}-{number}" for number in range(AMOUNT)]
        broker.session.create_queues([endpoint])
        broker.session.send(
            [
                to_levels(Outgoing(endpoint, a_message(one)), far, broker.names, clock)
                for one in self.ids
            ]
        )
        self.wait(AMOUNT)

    def wait(self, amount: int) -> None:
        """Wait until *amount* are in the levels: the messages of a dead process are back then."""
        count = self.broker.session.count
        eventually(
            lambda: sum(map(count, queues_of(self.broker.names))) == amount, "all are back", 10
        )

    def start(self, crash: Crash | None, *, aborts: bool) -> None:
        """Have a process die at *crash*, or do all that is left."""
        self._processes += 1
        given: dict[str, Any] = {
            "worker": "tests.crash.mover",
            "url": self.url,
            "prefixes": ["timeoutmgr_"] * 2,
            "endpoint": self.endpoint,
            "broker": self.broker.url,
            "stem": self.broker.stem,
            "batch": CHUNK,
            "aborts": aborts,
        }
        worker = Worker(self._fork_server, given, self._folder / f"{self._processes}.txt", crash)
        worker.wait_until_it_ends()
        assert worker.was_killed is (crash is not None), f"{crash}: {worker.said}"
        assert "Traceback" not in worker.said, worker.said

    def stored(self) -> list[str]:
        """The messages that are in the store."""
        with closing(SqlPersistence(self.url)) as persistence:
            ledger = persistence.migration_ledger(self.endpoint, SystemClock())
            assert ledger.open_run() is None or self._processes < 2
            store = persistence.timeouts(self.endpoint, SystemClock())
            return [one.message.id for one in store.list(TimeoutFilter())]

    def in_levels(self, channel: amqp.Channel) -> list[str]:
        """The messages that are in the levels; they are taken out."""
        found = []
        for name in queues_of(self.broker.names):
            while (message := channel.basic_get(name, no_ack=True)) is not None:
                found.append(message.properties["message_id"])
        return found


@pytest.fixture
def scene(
    broker: Broker,
    sqlite_url: str,
    unique: str,
    tmp_path: Path,
    fork_server: ForkServer,
    raw_channel: amqp.Channel,
) -> Iterator[Scene]:
    """Levels with five messages, and an empty store."""
    for name in queues_of(broker.names):
        raw_channel.queue_purge(name)
    made = Scene(broker, sqlite_url, unique, tmp_path, fork_server)
    yield made
    broker.session.delete_queues([unique])


@pytest.mark.behaviour(132)
def test_a_drain_that_dies_at_one_point_after_the_other_is_finished(
    scene: Scene, raw_channel: amqp.Channel
) -> None:
    for point in RUNNING:
        scene.start(Crash(point, 1), aborts=False)
    scene.start(None, aborts=False)

    assert sorted(scene.stored()) == scene.ids
    assert scene.in_levels(raw_channel) == []


@pytest.mark.behaviour(134)
def test_an_abort_that_dies_at_one_point_after_the_other_is_finished(
    scene: Scene, raw_channel: amqp.Channel
) -> None:
    scene.start(DELIVERED, aborts=False)
    scene.wait(AMOUNT - CHUNK)
    for point in ABORTING:
        scene.start(Crash(point, 1), aborts=True)
    scene.start(None, aborts=True)

    assert len(scene.stored()) == 2 * CHUNK
    assert sorted(scene.stored() + scene.in_levels(raw_channel)) == scene.ids
