"""Wakeups of waiting receivers: in this process, and in other processes by NOTIFY."""

import json
import logging
import threading
from collections.abc import Iterable, Sequence
from typing import Final
from weakref import WeakValueDictionary

from sqlalchemy import Connection

from timeoutmgr.database import Database
from timeoutmgr.database.notifications import NOTIFY, NotificationListener


class Wakeup:
    """The wakeup of one queue; its count reveals a notification without a waiting thread."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._count = 0

    @property
    def count(self) -> int:
        """Number of notifications; read it before a query, and pass it to ``wait`` after."""
        return self._count

    def notify(self) -> None:
        """Wake all waiting threads."""
        with self._condition:
            self._count += 1
            self._condition.notify_all()

    def wait(self, count: int, timeout: float) -> bool:
        """Return True as soon as the count differs from *count*, False after *timeout* s."""
        with self._condition:
            return self._condition.wait_for(lambda: self._count != count, timeout)


class QueueWakeups:
    """The wakeups of one queue table: shared by all transports of this process that use it."""

    _shared: Final[WeakValueDictionary[tuple[str, str], "QueueWakeups"]] = WeakValueDictionary()
    _shared_lock: Final = threading.Lock()

    def __init__(self) -> None:
        self.any: Final = Wakeup()
        """Notified with every other, for threads that wait on several queues."""
        self._lock = threading.Lock()
        self._wakeups: dict[str, Wakeup] = {}

    @classmethod
    def of(cls, database: Database, table: str) -> "QueueWakeups":
        """Return the wakeups of *table* in *database*."""
        where = database.url.render_as_string(hide_password=False)
        if database.path is not None:
            where = str(database.path.resolve())
        with cls._shared_lock:
            wakeups = cls._shared.get((where, table))
            if wakeups is None:
                wakeups = cls._shared[where, table] = cls()
            return wakeups

    def wakeup(self, queue: str) -> Wakeup:
        """Return the wakeup of *queue*."""
        with self._lock:
            return self._wakeups.setdefault(queue, Wakeup())

    def notify(self, queues: Iterable[str]) -> None:
        """Wake the receivers of *queues*; a queue without receivers is fine."""
        with self._lock:
            wakeups = [self._wakeups[queue] for queue in queues if queue in self._wakeups]
        for wakeup in (*wakeups, self.any):
            wakeup.notify()

    def notify_all(self) -> None:
        """Wake every receiver: something may have happened unheard."""
        with self._lock:
            wakeups = list(self._wakeups.values())
        for wakeup in (*wakeups, self.any):
            wakeup.notify()


logger = logging.getLogger(__name__)

_LONGEST_PAYLOAD: Final = 7900
_ALL: Final = "*"


def notify(connection: Connection, channel: str, queues: Sequence[str]) -> None:
    """Tell listeners of *queues* when the transaction of *connection* commits; one NOTIFY."""
    payload = json.dumps(sorted(queues))
    if len(payload) > _LONGEST_PAYLOAD:
        payload = _ALL
    connection.execute(NOTIFY, {"channel": channel, "payload": payload})


class Listener(NotificationListener):
    """Notifies the receivers of the queues in each NOTIFY of PostgreSQL."""

    def __init__(self, database: Database, channel: str, wakeups: QueueWakeups) -> None:
        super().__init__(
            database,
            channel,
            hear=self._hear,
            missed=wakeups.notify_all,
            thread="timeoutmgr-queue-listener",
        )
        self._wakeups = wakeups

    def _hear(self, payload: str) -> None:
        if payload == _ALL:
            self._wakeups.notify_all()
            return
        try:
            queues = [str(queue) for queue in json.loads(payload)]
        except (ValueError, TypeError, RecursionError):
            logger.warning(
                "listener ignores an unknown NOTIFY on %s: %.80r",
                self._channel,
                payload[:80],
                extra={"event": "notify_unknown"},
            )
            return
        self._wakeups.notify(queues)
