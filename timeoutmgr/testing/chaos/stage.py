"""The queues and tables of a run: made before it, looked at, and taken away after it."""

from contextlib import closing
from typing import Final

from sqlalchemy import create_engine, inspect, text
from sqlalchemy.exc import SQLAlchemyError

from timeoutmgr import Endpoint
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import TimeoutStore
from timeoutmgr.errors import StorageUnavailable, TransportUnavailable
from timeoutmgr.instants import Micros
from timeoutmgr.testing.chaos.deliveries import Deliveries
from timeoutmgr.testing.chaos.scene import Scene

AWAY: Final = (StorageUnavailable, TransportUnavailable, SQLAlchemyError)
"""What a look at a server raises that was cut off or restarted a moment ago."""

_SAME: Final[Micros] = 50_000
"""An offset below this is the time that it took to ask."""


class Stage:
    """Where the run takes place, as seen from outside the processes, by connections of its own."""

    def __init__(self, scene: Scene) -> None:
        self._scene: Final = scene
        self._transport: Final = scene.transport()
        self._persistence: Final = scene.persistence()
        scene.save("main")
        for config in (scene.worker("main"), scene.receiving()):
            endpoint = Endpoint(config)
            endpoint.install()
            endpoint.close()
        self._store: Final[TimeoutStore] = self._persistence.timeouts(scene.manager, SystemClock())
        self.deliveries: Final = Deliveries(scene)
        self.deliveries.create()

    def clock_offset(self) -> Micros:
        """Return how far the store's clock is ahead of this host's; zero if hardly."""
        clock = SystemClock()
        before = clock.now()
        there = self._store.now()
        offset = there - (before + clock.now()) // 2
        return offset if abs(offset) > _SAME else 0

    def pending(self) -> int:
        """Return how many timeouts are stored."""
        return self._store.statistics().pending

    def waiting(self) -> int:
        """Return how many messages wait in the queues of consumer and timeout manager."""
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
            with closing(self._transport.session()) as session:
                session.delete_queues(self._scene.queues)
        finally:
            # Also when the broker is away; what cannot be removed there is named by the error.
            self.close()
            for url in {self._scene.store, *self._sql_broker()}:
                _drop_tables(url, self._scene.prefix)

    def close(self) -> None:
        """Let go of connections; twice is fine."""
        self.deliveries.close()
        self._transport.close()
        self._persistence.close()

    def _count(self, *queues: str) -> int:
        with closing(self._transport.session()) as session:
            return sum(session.count(queue) for queue in queues)

    def _sql_broker(self) -> list[str]:
        return [self._scene.broker] if self._scene.broker_is_database else []


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
