"""Listener for PostgreSQL's NOTIFY, on its own connection and thread."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import select
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import text

from timeoutmgr.database.engine import Database
from timeoutmgr.message.redaction import on_one_line

logger = logging.getLogger(__name__)

NOTIFY: Final = text("SELECT pg_notify(:channel, :payload)")
_RECONNECT_PAUSE: Final = 1.0
_WAKES: Final = 4096


def channel_of(name: str) -> str:
    """Return the channel for *name*, which is short, however long the name."""
    return "timeoutmgr_" + hashlib.sha256(name.encode()).hexdigest()[:20]


@dataclass(frozen=True, slots=True, eq=False)
class NotificationListener:
    """Calls *hear* with each payload of *channel*, in a thread that a database's listeners share.

    The thread calls *missed* whenever a connection begins to listen, because an earlier NOTIFY was
    not received. While the thread has no connection, its owner has to poll. If several listeners
    have the same function as *hear* or *missed*, it is called once.
    """

    database: Database
    channel: str
    hear: Callable[[str], None] = field(kw_only=True)
    missed: Callable[[], None] = field(kw_only=True)

    def start(self) -> None:
        """Start listening, in the background; idempotent."""
        self.database.part(Listening).add(self)

    def stop(self) -> None:
        """Stop listening, and return when no call is running; idempotent."""
        self.database.part(Listening).remove(self)


class Listening:
    """A daemon thread with a connection, for all listeners of this process to a database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        # Held while a listener is called: a listener is never called after its removal.
        self._calls = threading.RLock()
        # Replaced, never changed, so that the thread can read it without the lock.
        self._listeners: frozenset[NotificationListener] = frozenset()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._is_failing = False
        self._is_elsewhere = False
        self._wake_read = self._wake_write = -1

    def add(self, listener: NotificationListener) -> None:
        """Call *listener* from now on; idempotent."""
        with self._lock:
            if listener in self._listeners:
                return
            if self._thread is None:
                self._start()
            self._listeners |= {listener}
            os.write(self._wake_write, b".")

    def remove(self, listener: NotificationListener) -> None:
        """Stop calling *listener*; idempotent."""
        with self._lock:
            if listener not in self._listeners:
                return
            with self._calls:
                self._listeners -= {listener}
            os.write(self._wake_write, b".")
            if not self._listeners:
                self._end()

    def reconnect(self) -> None:
        """Listen on a new connection, because new connections reach another server."""
        with self._lock:
            self._is_elsewhere = True
            if self._thread is not None:
                os.write(self._wake_write, b".")

    def after_fork(self) -> None:
        """Leave thread and connection to the parent."""

    def _start(self) -> None:
        self._stop.clear()
        self._wake_read, self._wake_write = os.pipe()
        thread = threading.Thread(target=self._run, name="timeoutmgr-listener", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no more threads
            self._close_pipe()
            raise
        self._thread = thread

    def _end(self) -> None:
        thread, self._thread = self._thread, None
        self._stop.set()
        os.write(self._wake_write, b".")
        if thread is not None:
            thread.join()
        self._close_pipe()

    def _close_pipe(self) -> None:
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._connect_and_listen()
            except Exception as error:
                # Any error of a driver: this thread only saves time. Logged once per outage.
                level = logging.DEBUG if self._is_failing else logging.WARNING
                where = self._database.describe()
                logger.log(
                    level,
                    "listener receives no NOTIFY from %s and polls instead: %s",
                    where,
                    on_one_line(error),
                    extra={"event": "listener_failed"},
                )
                self._is_failing = True
            self._stop.wait(_RECONNECT_PAUSE)

    def _connect_and_listen(self) -> None:
        self._is_elsewhere = False
        held = self._database.apart.raw_connection()
        connection: Any = held.driver_connection
        held.detach()
        try:
            if not callable(getattr(connection, "notifies", None)):
                logger.info(
                    "listener polls instead: the driver of %s cannot LISTEN",
                    self._database.describe(),
                    extra={"event": "listener_unsupported"},
                )
                while not self._stop.is_set():
                    os.read(self._wake_read, _WAKES)  # a full pipe would block the caller
                return
            connection.autocommit = True
            self._listen(connection)
        finally:
            with contextlib.suppress(Exception):  # it may have just broken
                connection.close()

    def _listen(self, connection: Any) -> None:
        followed: frozenset[NotificationListener] = frozenset()
        while not (self._stop.is_set() or self._is_elsewhere):
            followed = self._follow(connection, followed)
            self._is_failing = False
            poll = select.poll()  # select() refuses a process with more than 1,024 open files
            for descriptor in (connection.fileno(), self._wake_read):
                poll.register(descriptor, select.POLLIN)
            if self._wake_read in dict(poll.poll()):
                os.read(self._wake_read, _WAKES)
            connection.pgconn.consume_input()
            while (notice := connection.pgconn.notifies()) is not None:
                self._hear(notice.relname.decode(), notice.extra.decode(errors="replace"))

    def _follow(
        self, connection: Any, followed: frozenset[NotificationListener]
    ) -> frozenset[NotificationListener]:
        """Listen for the present listeners, no longer for *followed*; return the present."""
        listeners = self._listeners
        if listeners == followed:
            return followed
        before, after = _channels(followed), _channels(listeners)
        statements = [f"LISTEN {channel}" for channel in sorted(after - before)]
        statements += [f"UNLISTEN {channel}" for channel in sorted(before - after)]
        # Before psycopg 3.2.4 the generator omits a notice that comes with an answer.
        connection.add_notify_handler(self._heard)
        try:
            for statement in statements:
                connection.execute(statement)
        finally:
            connection.remove_notify_handler(self._heard)
        with self._calls:
            for missed in {listener.missed for listener in listeners - followed}:
                missed()
        return listeners

    def _heard(self, notice: Any) -> None:
        self._hear(notice.channel, notice.payload)

    def _hear(self, channel: str, payload: str) -> None:
        with self._calls:
            for hear in {one.hear for one in self._listeners if one.channel == channel}:
                hear(payload)


def _channels(listeners: Iterable[NotificationListener]) -> set[str]:
    return {listener.channel for listener in listeners}
