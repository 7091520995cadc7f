"""Wake waiting receivers: in this process directly, in other processes by NOTIFY."""

import contextlib
import json
import logging
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final
from weakref import WeakValueDictionary

from sqlalchemy import Connection, exc

from timeoutmgr.database import Database
from timeoutmgr.database.failures import unavailable
from timeoutmgr.database.notifications import NOTIFY, NotificationListener
from timeoutmgr.database.sqlite_writers import SQLITE
from timeoutmgr.resilience.after_fork import begin_anew_after_fork, of_parent

logger = logging.getLogger(__name__)


class Wakeup:
    """The wakeup of one queue; its count also shows a notification that no thread waited for."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._count = 0
        self._subscribers: frozenset[Callable[[], None]] = frozenset()

    @property
    def count(self) -> int:
        """Number of notifications; read it before a query, and pass it to ``wait`` afterwards."""
        return self._count

    def notify(self) -> None:
        """Wake all waiting threads, and call all subscribers."""
        with self._condition:
            self._count += 1
            self._condition.notify_all()
            for call in self._subscribers:
                call()

    def subscribe(self, call: Callable[[], None]) -> None:
        """Call *call* at each notification, in the notifying thread; it must not wait."""
        with self._condition:
            self._subscribers |= {call}

    def unsubscribe(self, call: Callable[[], None]) -> None:
        """Undo ``subscribe``; no call is under way when this returns."""
        with self._condition:
            self._subscribers -= {call}

    def wait(self, count: int, timeout: float) -> bool:
        """Return True as soon as the count differs from *count*, False after *timeout* s."""
        with self._condition:
            return self._condition.wait_for(lambda: self._count != count, timeout)


class QueueWakeups:
    """The wakeups of one queue table: shared by all transports of this process that use it."""

    _shared: Final[WeakValueDictionary[tuple[str, str], "QueueWakeups"]] = WeakValueDictionary()
    _shared_lock = threading.Lock()

    def __init__(self) -> None:
        self.any: Final = Wakeup()
        """Notified together with each queue's wakeup, for threads that wait on several queues."""
        self._wakeups: dict[str, Wakeup] = {}
        self._signature = f"!{secrets.token_hex(6)}"

    @classmethod
    def of(cls, database: Database, table: str) -> "QueueWakeups":
        """Return the wakeups of *table* in *database*."""
        where = str(database.path or database.url.render_as_string(hide_password=False))
        with cls._shared_lock:
            wakeups = cls._shared.get((where, table))
            if wakeups is None:
                wakeups = cls._shared[where, table] = cls()
            return wakeups

    @classmethod
    def after_fork(cls) -> None:
        """Replace the locks: other threads of the parent may have acquired them."""
        cls._shared_lock = threading.Lock()
        for wakeups in list(cls._shared.values()):
            for wakeup in (wakeups.any, *wakeups._wakeups.values()):
                wakeup._condition = threading.Condition()

    def wakeup(self, queue: str) -> Wakeup:
        """Return the wakeup of *queue*; it is never removed."""
        return self._wakeups.setdefault(queue, Wakeup())

    def notify(self, queues: Iterable[str]) -> None:
        """Wake the receivers of *queues*; a queue without receivers is fine."""
        wakeups = [self._wakeups[queue] for queue in queues if queue in self._wakeups]
        for wakeup in (*wakeups, self.any):
            wakeup.notify()

    def notify_all(self) -> None:
        """Wake every receiver: a notification may have been missed."""
        self.notify(tuple(self._wakeups))

    def payload_of_own(self, *queues: str) -> str:
        """Return the payload of a NOTIFY for all listeners of *queues* but our own.

        The caller wakes the receivers of this process itself. A second wakeup, some moments later,
        would cost each receiver a query that finds nothing.
        """
        return payload_of((*queues, self._own_signature()))

    def _own_signature(self) -> str:
        return f"{self._signature}.{os.getpid()}"  # a forked child also listens to its parent

    def listener(self, database: Database, channel: str) -> NotificationListener:
        """Return a listener that notifies the receivers of the queues in each NOTIFY."""
        return NotificationListener(database, channel, hear=self._hear, missed=self.notify_all)

    def _hear(self, payload: str) -> None:
        if payload == _ALL:
            self.notify_all()
            return
        try:
            queues = [str(queue) for queue in json.loads(payload)]
        except (ValueError, TypeError, RecursionError):
            fields = {"event": "notify_unknown"}
            logger.warning("listener ignores an unknown NOTIFY: %.80r", payload[:80], extra=fields)
            return
        if self._own_signature() not in queues:
            self.notify(queues)


begin_anew_after_fork(QueueWakeups)

_LONGEST_PAYLOAD: Final = 7900
_ALL: Final = "*"


def notify(connection: Connection, channel: str, queues: Sequence[str]) -> None:
    """Notify listeners of *queues* by one NOTIFY when the transaction of *connection* commits."""
    connection.execute(NOTIFY, {"channel": channel, "payload": payload_of(queues)})


def payload_of(queues: Sequence[str]) -> str:
    """Return the payload of a NOTIFY for listeners of *queues*."""
    payload = json.dumps(sorted(queues))
    return _ALL if len(payload) > _LONGEST_PAYLOAD else payload


# --- when an idle receiver queries next: at a wakeup, a change of the file, or after a pause ------


class FileVersion:
    """The version of a SQLite database, which changes whenever anyone commits to it.

    Reading it touches no table and takes no lock. It is valid on one connection only: each
    connection counts anew, perhaps to the same number. So a connection is kept outside the pool
    until a fork. Safe for many threads.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._connection: Any = None
        self._opened = 0
        SQLITE.add(self)
        begin_anew_after_fork(self)

    def after_fork(self) -> None:
        """Keep the parent's connection, unused: SQLite allows no use in a child."""
        of_parent.append(self._connection)
        self._lock, self._connection = threading.Lock(), None

    def read(self) -> tuple[int, int]:
        """Return the number of connections opened, and the version. Raises StorageUnavailable."""
        with SQLITE.one(), self._lock:
            try:
                if self._connection is None:
                    held = self._database.apart.raw_connection()
                    self._connection = held.driver_connection
                    held.detach()
                    self._opened += 1
                row = self._connection.execute("PRAGMA data_version").fetchone()
                return self._opened, int(row[0])
            except exc.SQLAlchemyError as error:
                raise unavailable(error, self._database.describe()) from error
            except sqlite3.Error as error:
                self._drop()
                wrapped = exc.OperationalError("PRAGMA data_version", None, error)
                raise unavailable(wrapped, self._database.describe()) from error

    def close_idle(self) -> None:
        """Close the connection; the next ``read`` opens another."""
        with SQLITE.one(), self._lock:
            self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()


class Watch:
    """What a receiver knows about its queue since the last query. Used by one thread."""

    def __init__(
        self,
        wakeup: Wakeup,
        version: FileVersion | None,
        polling: tuple[float, float],
        owner_check: float,
    ) -> None:
        self._wakeup = wakeup
        self._version = version
        self._shortest, self._longest = polling
        self._owner_check: Final = owner_check
        self._pause = self._shortest
        self._count = -1
        self._file: tuple[int, int] | None = None
        self._next_query = 0.0

    def before_query(self) -> None:
        """Note the state before a query, so that no message in between is missed."""
        self._count = self._wakeup.count
        if self._version is not None:
            self._file = self._version.read()

    def found(self, *, is_last: bool = False) -> None:
        """Note that the query found something; more may be there unless *is_last*.

        The query may have skipped a row that another transaction had locked. If that transaction is
        rolled back, nothing announces the row: so after the last row pause, and then query again.
        """
        self._pause = self._shortest
        self._next_query = time.monotonic() + self._pause if is_last else 0.0

    def found_nothing(self, left: bool) -> None:
        """Note that the query found nothing; *left* says that other consumers hold rows."""
        if self._version is None:
            # The table must be queried again, less and less often.
            self._next_query = time.monotonic() + self._pause
            self._pause = min(self._pause * 2, self._longest)
        else:
            # Neither a dead owner nor an expired lease changes the file.
            self._next_query = time.monotonic() + self._owner_check if left else float("inf")

    def is_known_empty(self) -> bool:
        """Return whether the queue held no row at the last query and nothing came since."""
        return self._next_query == float("inf") and not self.may_have_messages()

    def may_have_messages(self) -> bool:
        """Return whether anything may have come since the last query."""
        if self._wakeup.count != self._count or time.monotonic() >= self._next_query:
            return True
        return self._version is not None and self._version.read() != self._file

    def rest(self, until: float) -> None:
        """Wait for the wakeup, or for the next query; at most *until* (monotonic)."""
        now = time.monotonic()
        pause = min(until - now, self._next_query - now)
        if self._version is not None:
            pause = min(pause, self._pause)
        if pause > 0 and not self._wakeup.wait(self._count, pause) and self._version is not None:
            self._pause = min(self._pause * 2, self._longest)
