"""PostgreSQL's NOTIFY, which wakes receivers in other processes."""

import contextlib
import hashlib
import json
import logging
import os
import select
import threading
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection, text

from timeoutmgr.database import Database
from timeoutmgr.transport.sql.bells import Bells

logger = logging.getLogger(__name__)

_LONGEST_PAYLOAD: Final = 7900
_ALL: Final = "*"
_RECONNECT_PAUSE: Final = 1.0
_NOTIFY: Final = text("SELECT pg_notify(:channel, :payload)")


def channel_of(table: str) -> str:
    """Return the channel of *table*; short, whatever the table is called."""
    return "timeoutmgr_" + hashlib.sha256(table.encode()).hexdigest()[:20]


def notify(connection: Connection, channel: str, queues: Sequence[str]) -> None:
    """Tell listeners of *queues* when the transaction of *connection* commits; one NOTIFY."""
    payload = json.dumps(sorted(queues))
    if len(payload) > _LONGEST_PAYLOAD:
        payload = _ALL
    connection.execute(_NOTIFY, {"channel": channel, "payload": payload})


class Listener:
    """One daemon thread on one connection that rings the bells of what was notified.

    While it has no connection, receivers find messages by polling.
    """

    def __init__(self, database: Database, channel: str, bells: Bells) -> None:
        self._database = database
        self._channel = channel
        self._bells = bells
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
                self._thread = threading.Thread(
                    target=self._run, name="timeoutmgr-queue-listener", daemon=True
                )
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
                # Whatever a driver raises: this thread only makes things faster. Once an outage.
                level = logging.DEBUG if self._is_failing else logging.WARNING
                where = self._database.describe()
                logger.log(level, "no NOTIFY from %s, polling instead: %s", where, error)
                self._is_failing = True
            self._stop.wait(_RECONNECT_PAUSE)

    def _listen(self) -> None:
        held = self._database.apart.raw_connection()
        connection: Any = held.driver_connection
        held.detach()
        try:
            if not callable(getattr(connection, "notifies", None)):
                logger.info("the driver of %s cannot listen", self._database.describe())
                self._stop.wait()
                return
            connection.autocommit = True
            connection.execute(f"LISTEN {self._channel}")
            self._is_failing = False
            # What was sent before LISTEN took hold went unheard.
            self._bells.ring_all()
            while not self._stop.is_set():
                select.select([connection.fileno(), self._wake_read], [], [])
                if self._stop.is_set():
                    return
                for notice in connection.notifies(timeout=0):
                    self._ring(notice.payload)
        finally:
            with contextlib.suppress(Exception):  # it may be what just broke
                connection.close()

    def _ring(self, payload: str) -> None:
        if payload == _ALL:
            self._bells.ring_all()
            return
        try:
            queues = [str(queue) for queue in json.loads(payload)]
        except (ValueError, TypeError, RecursionError):
            logger.warning("a strange NOTIFY on %s: %.80r", self._channel, payload[:80])
            return
        self._bells.ring(queues)
