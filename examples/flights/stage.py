"""The queues and tables of a run: created before it, read during it, and removed after it."""

from contextlib import closing
from typing import Final

from scene import Scene

from chaos.resources import delete_queues, drop_tables
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import TimeoutStore
from timeoutmgr.satellites import TimeoutManager


class Stage:
    """The queues and tables of the run, as seen from outside the endpoints."""

    def __init__(self, scene: Scene) -> None:
        self._scene: Final = scene
        self._transport: Final = scene.transport()
        self._persistence: Final = scene.persistence()
        self._transport.install()
        self._persistence.install()
        self.store: Final[TimeoutStore] = self._persistence.timeouts(scene.flights, SystemClock())

    @property
    def allowed_by_the_kill(self) -> int:
        """Maximum notices that the killed process may have sent, and another sends again.

        Zero if sending and removing are one transaction; otherwise the chunk that it had claimed.
        """
        return 0 if self._scene.one_database else TimeoutManager().chunk

    def waiting(self) -> int:
        """Return how many messages wait in the board's queue."""
        return self._count(self._scene.board)

    def left(self) -> dict[str, int]:
        """Return counts of leftovers after the run, by place."""
        return {
            "still stored": self.store.statistics().pending,
            "left in the board's queue": self.waiting(),
            "in the error queue": self._count(self._scene.errors),
        }

    def clear(self) -> None:
        """Delete the queues and tables of this run."""
        try:
            delete_queues(self._transport, self._scene.queues)
        finally:
            # Also if the broker is down: the error names the queues that remain.
            self._transport.close()
            self._persistence.close()
            drop_tables(self._scene.urls, self._scene.prefix)

    def _count(self, queue: str) -> int:
        with closing(self._transport.session()) as session:
            return session.count(queue)
