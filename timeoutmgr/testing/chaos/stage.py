"""The queues and tables of a run: made before it, looked at, and taken away after it."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any, Final

from sqlalchemy import create_engine, inspect, text
from sqlalchemy.exc import SQLAlchemyError

from timeoutmgr import Endpoint
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import TimeoutStore, TransactionMode, Transport
from timeoutmgr.deadletter import Box, LetterQueue
from timeoutmgr.errors import StorageUnavailable, TransportUnavailable
from timeoutmgr.instants import Micros
from timeoutmgr.testing.chaos.deliveries import Deliveries
from timeoutmgr.testing.chaos.scene import Scene, is_database

AWAY: Final = (StorageUnavailable, TransportUnavailable, SQLAlchemyError)
"""What a look at a server raises that was cut off or restarted a moment ago."""

_SAME: Final[Micros] = 50_000
"""An offset below this is the time that it took to ask."""


class Stage:
    """Where the run takes place, as seen from outside the processes, by connections of its own."""

    def __init__(self, scene: Scene) -> None:
        self._scene: Final = scene
        self._transport: Final = scene.transport()
        scene.save("main")
        for config in (scene.worker("main"), scene.receiving()):
            endpoint = Endpoint(config)
            endpoint.install()
            endpoint.close()
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
        return self._count(self._scene.consumer, *self._scene.satellites)

    def left(self) -> dict[str, int]:
        """Return what is left where nothing should be, after the run."""
        return {
            "still stored": self.pending(),
            "left in a queue": self.waiting(),
            "in the error queue": self._count(self._scene.errors),
        }

    def clear(self) -> None:
        """Delete the queues and tables of this run, and only those."""
        try:
            delete_queues(self._transport, self._scene.queues)
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
        self._store: Final[TimeoutStore] = self._persistence.timeouts(scene.manager, SystemClock())
        self.now: Final = self._store.now
        self.close: Final = self._persistence.close

    def count(self) -> int:
        return self._store.statistics().pending


class _DelayedPending:
    """What a delayed message store holds."""

    def __init__(self, scene: Scene) -> None:
        store: Any = scene.delayed()  # the built-in one, which tells more than it has to
        store.initialize(scene.manager, TransactionMode.RECEIVE_ONLY)
        self.now: Final[Callable[[], Micros]] = store.now
        self.count: Final[Callable[[], int]] = store.count
        self.close: Final[Callable[[], None]] = store.close


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
