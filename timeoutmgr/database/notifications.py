"""A connection that waits for PostgreSQL's NOTIFY, in a thread of its own."""

import contextlib
import hashlib
import logging
import os
import select
import threading
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import text

from timeoutmgr.database.engine import Database

logger = logging.getLogger(__name__)

NOTIFY: Final = text("SELECT pg_notify(:channel, :payload)")
_RECONNECT_PAUSE: Final = 1.0


def channel_of(name: str) -> str:
    """Return the channel of *name*; short, however long the name is."""
    return "timeoutmgr_" + hashlib.sha256(name.encode()).hexdigest()[:20]


class NotificationListener:
    """One daemon thread on one connection that calls *hear* with each payload of *channel*.

    The thread calls *missed* whenever a connection begins to listen, since a NOTIFY from before
    went unheard. While the thread has no connection, its owner finds out by polling.
    """

    def __init__(
        self,
        database: Database,
        channel: str,
        *,
        hear: Callable[[str], None],
        missed: Callable[[], None],
        thread: str,
    ) -> None:
        self._database = database
        self._channel = channel
        self._hear = hear
        self._missed = missed
        self._name = thread
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._is_failing = False
        self._wake_read = self._wake_write = -1

    def start(self) -> None:
        """Start listening, in the background; twice is fine."""
        with self._lock:
            if self._thread is None:
                self._stop.clear()
                self._wake_read, self._wake_write = os.pipe()
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Stop listening, and return when the thread is gone; twice is fine."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is None:
                return
            self._stop.set()
            os.write(self._wake_write, b".")
            thread.join()
            os.close(self._wake_read)
            os.close(self._wake_write)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._listen()
            except Exception as error:
                # Any error of a driver: this thread only makes things faster. Once an outage.
                level = logging.DEBUG if self._is_failing else logging.WARNING
                where = self._database.describe()
                logger.log(
                    level,
                    "listener receives no NOTIFY from %s and polls instead: %s",
                    where,
                    error,
                    extra={"event": "listener_failed"},
                )
                self._is_failing = True
            self._stop.wait(_RECONNECT_PAUSE)

    def _listen(self) -> None:
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
                self._stop.wait()
                return
            connection.autocommit = True
            connection.execute(f"LISTEN {self._channel}")
            self._is_failing = False
            self._missed()
            while not self._stop.is_set():
                select.select([connection.fileno(), self._wake_read], [], [])
                if self._stop.is_set():
                    return
                for notice in connection.notifies(timeout=0):
                    self._hear(notice.payload)
        finally:
            with contextlib.suppress(Exception):  # it may have just broken
                connection.close()
