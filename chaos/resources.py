"""The queues and tables of a run: made before it, looked at, and taken away after it."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, Final, TypeVar

from sqlalchemy import create_engine, inspect, text
from sqlalchemy.exc import SQLAlchemyError

from timeoutmgr import Endpoint, EndpointConfiguration
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import TimeoutStore, TransactionMode, Transport
from timeoutmgr.deadletter import Box, LetterQueue
from timeoutmgr.errors import StorageUnavailable, TransportUnavailable
from timeoutmgr.instants import Micros
from timeoutmgr.migration import MigrationPlaces, RunState, report
from timeoutmgr.testing.chaos.deliveries import Deliveries
from timeoutmgr.testing.chaos.incidents import Incident, counted
from timeoutmgr.testing.chaos.judge import Migrated
from timeoutmgr.testing.chaos.levels import Levels
from timeoutmgr.testing.chaos.plan import FaultKind
from timeoutmgr.testing.chaos.scene import Scene, is_database

logger = logging.getLogger(__name__)

AWAY: Final = (StorageUnavailable, TransportUnavailable, SQLAlchemyError)
"""What a look at a server raises that was cut off or restarted a moment ago."""

_LOOKS: Final = 5
"""How often to look at servers that all answer again: each look may find one dead connection."""

_SAME: Final[Micros] = 50_000
"""An offset below this is the time that it took to ask."""


Seen = TypeVar("Seen")


def looked(look: Callable[[], Seen]) -> Seen:
    """Return what *look* sees, past connections that a restart has left dead."""
    for _again in range(_LOOKS - 1):
        try:
            return look()
        except AWAY as error:
            logger.info("a look failed: %s", error)
    return look()


class Stage:
    """Where the run takes place, as seen from outside the processes, by connections of its own."""

    def __init__(self, scene: Scene) -> None:
        self._scene: Final = scene
        self._transport: Final = scene.transport()
        self._levels: Final = (
            Levels(self._transport, [scene.consumer, *scene.endpoints]) if scene.levels else None
        )
        for config in (*_senders(scene), scene.receiving()):
            endpoint = Endpoint(config)
            endpoint.install()
            endpoint.close()
        if self._levels is not None:
            self._levels.install()
        self._pending: Final = _DelayedPending(scene) if scene.delayed_store else _Pending(scene)
        self._letters: Final = scene.letters() if scene.dead_letters else None
        self.deliveries: Final = Deliveries(scene)
        self.deliveries.create()

    def clock_offset(self) -> Micros:
        """Return how far the store's clock is ahead of this host's; zero if hardly."""
        clock = SystemClock()
        before = clock.now()
        there = self._pending.now()
        offset = there - (before + clock.now()) // 2
        return offset if abs(offset) > _SAME else 0

    def pending(self) -> int:
        """Return how many timeouts are stored."""
        return self._pending.count()

    def dead(self) -> dict[str, Micros]:
        """Return since when which messages lie in the dead-letter queues."""
        if self._letters is None:
            return {}
        boxes = (LetterQueue(self._letters, box) for box in (Box.DEADLETTER, Box.DEADXACT))
        return {letter.message.id: letter.kept for box in boxes for letter in box.every()}

    def waiting(self) -> int:
        """Return how many messages wait in the queues of consumer and satellites."""
        scene = self._scene
        return self._count(scene.consumer, *scene.endpoints, *scene.satellites)

    def in_levels(self) -> int:
        """Return how many messages are in RabbitMQ's delay levels, or came out for no queue."""
        return 0 if self._levels is None else self._levels.count()

    def migrated(self, incidents: Iterable[Incident]) -> tuple[Migrated, int]:
        """Return what the ledger of migrations says, and how many it says are not over."""
        persistence = self._scene.persistence()
        assert isinstance(persistence, MigrationPlaces), "it is an SQL store"
        with closing(persistence):
            ledger = persistence.migration_ledger(self._scene.manager, SystemClock())
            reports = [report(ledger, run, run.state) for run in ledger.runs()]
        states = Counter(one.state for one in reports)
        found = Migrated(
            completed=states[RunState.COMPLETED],
            aborted=states[RunState.ABORTED],
            moved=sum(one.new for one in reports),
            killed=counted(incidents)[FaultKind.KILL_MIGRATION],
        )
        return found, sum(not one.state.is_over for one in reports)

    def left(self) -> dict[str, int]:
        """Return what is left where nothing should be, after the run."""
        return {
            "still stored": self.pending(),
            "left in delay levels": self.in_levels(),
            "left in a queue": self.waiting(),
            "in the error queue": self._count(self._scene.errors),
        }

    def clear(self) -> None:
        """Delete the queues and tables of this run, and only those."""
        try:
            delete_queues(self._transport, self._scene.queues)
            if self._levels is not None:
                self._levels.clear()
        finally:
            # Also when the broker is away; what cannot be removed there is named by the error.
            self.close()
            drop_tables(self._scene.urls, self._scene.prefix)

    def close(self) -> None:
        """Let go of connections; twice is fine."""
        self.deliveries.close()
        self._transport.close()
        self._pending.close()
        if self._letters is not None:
            self._letters.store.close()

    def _count(self, *queues: str) -> int:
        with closing(self._transport.session()) as session:
            return sum(session.count(queue) for queue in queues)


class _Pending:
    """What a timeout manager's store holds."""

    def __init__(self, scene: Scene) -> None:
        self._persistence: Final = scene.persistence()
        self._stores: Final[list[TimeoutStore]] = [
            self._persistence.timeouts(endpoint, SystemClock()) for endpoint in scene.endpoints
        ]
        self.now: Final = self._stores[0].now
        self.close: Final = self._persistence.close

    def count(self) -> int:
        return sum(store.statistics().pending for store in self._stores)


class _DelayedPending:
    """What a delayed message store holds."""

    def __init__(self, scene: Scene) -> None:
        store: Any = scene.delayed()  # the built-in one, which tells more than it has to
        store.initialize(scene.manager, TransactionMode.RECEIVE_ONLY)
        self.now: Final[Callable[[], Micros]] = store.now
        self.count: Final[Callable[[], int]] = store.count
        self.close: Final[Callable[[], None]] = store.close


def _senders(scene: Scene) -> Iterator[EndpointConfiguration]:
    """Yield the configuration of each endpoint that sends."""
    for natively in (False, True) if scene.mixed else (False,):
        name = f"main-{'native' if natively else 'manager'}"
        its_own = replace(scene, sends_natively=natively)
        its_own.save(name)
        yield its_own.worker(name)


def delete_queues(transport: Transport, queues: Sequence[str]) -> None:
    """Delete *queues* with what is in them."""
    with closing(transport.session()) as session:
        session.delete_queues(queues)


def drop_tables(urls: Iterable[str], prefix: str) -> None:
    """Drop all tables whose names begin with *prefix*, in those of *urls* that are databases."""
    for url in set(urls):
        if is_database(url):
            _drop_tables(url, prefix)


def _drop_tables(url: str, prefix: str) -> None:
    engine = create_engine(url)
    cascade = " CASCADE" if engine.dialect.name == "postgresql" else ""
    quoted = engine.dialect.identifier_preparer.quote
    with engine.begin() as connection:
        for table in inspect(connection).get_table_names():
            if table.startswith(prefix):
                # Partitions go with their table, so that they may be gone when it is their turn.
                connection.execute(text(f"DROP TABLE IF EXISTS {quoted(table)}{cascade}"))
    engine.dispose()
