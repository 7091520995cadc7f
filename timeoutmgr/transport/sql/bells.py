"""Bells wake the receivers of a queue that wait in this process."""

import threading
from collections.abc import Iterable
from typing import Final
from weakref import WeakValueDictionary

from timeoutmgr.database import Database


class Bell:
    """One queue's bell. A ring that comes while nobody waits is noticed by its number."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._rings = 0

    @property
    def rings(self) -> int:
        """How often it rang; to be read before looking, and given to ``wait`` after."""
        return self._rings

    def ring(self) -> None:
        """Wake all who wait."""
        with self._condition:
            self._rings += 1
            self._condition.notify_all()

    def wait(self, rings: int, timeout: float) -> bool:
        """Return True as soon as it rang more than *rings* times, False after *timeout* s."""
        with self._condition:
            return self._condition.wait_for(lambda: self._rings != rings, timeout)


class Bells:
    """The bells of one queue table: shared by all transports of this process that use it."""

    _shared: Final[WeakValueDictionary[tuple[str, str], "Bells"]] = WeakValueDictionary()
    _shared_lock: Final = threading.Lock()

    def __init__(self) -> None:
        self.any: Final = Bell()
        """Rings with every other, for who waits on several queues."""
        self._lock = threading.Lock()
        self._bells: dict[str, Bell] = {}

    @classmethod
    def of(cls, database: Database, table: str) -> "Bells":
        """Return the bells of *table* in *database*."""
        where = database.url.render_as_string(hide_password=False)
        if database.path is not None:
            where = str(database.path.resolve())
        with cls._shared_lock:
            bells = cls._shared.get((where, table))
            if bells is None:
                bells = cls._shared[where, table] = cls()
            return bells

    def bell(self, queue: str) -> Bell:
        """Return the bell of *queue*."""
        with self._lock:
            return self._bells.setdefault(queue, Bell())

    def ring(self, queues: Iterable[str]) -> None:
        """Wake the receivers of *queues*; a queue that nobody listens to is fine."""
        with self._lock:
            bells = [self._bells[queue] for queue in queues if queue in self._bells]
        for bell in (*bells, self.any):
            bell.ring()

    def ring_all(self) -> None:
        """Wake every receiver: something may have happened unheard."""
        with self._lock:
            bells = list(self._bells.values())
        for bell in (*bells, self.any):
            bell.ring()
