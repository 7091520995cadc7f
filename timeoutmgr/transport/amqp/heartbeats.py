"""Heartbeats for connections whose thread is busy elsewhere: a slow handler, an idle sender."""

from __future__ import annotations

import logging
import threading
import weakref
from datetime import timedelta

from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.resilience.after_fork import begin_anew_after_fork
from timeoutmgr.transport.amqp.connection import AmqpConnection

logger = logging.getLogger(__name__)


class Heartbeats:
    """Keeps the connections of one transport alive while no thread uses them.

    A broker takes a connection for dead after two missed heartbeats, and delivers again the
    messages that its consumer is still working on. A connection in use is left to its user.
    """

    def __init__(self, interval: timedelta) -> None:
        self._pause = interval.total_seconds() / 4
        self._connections: weakref.WeakSet[AmqpConnection] = weakref.WeakSet()
        self._guard = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        begin_anew_after_fork(self)

    def after_fork(self) -> None:
        """Leave the parent's connections to it; its thread is not here."""
        self._guard, self._thread = threading.Lock(), None
        self._connections = weakref.WeakSet()

    def add(self, connection: AmqpConnection) -> None:
        """Look after *connection* for as long as it lives."""
        if not self._pause:
            return
        with self._guard:
            self._connections.add(connection)
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(
                    target=self._run, name="timeoutmgr-heartbeats", daemon=True
                )
                self._thread.start()

    def beat(self) -> None:
        """Send and read the heartbeats of every idle connection."""
        with self._guard:
            connections = list(self._connections)
        for connection in connections:
            if not connection.lock.acquire(blocking=False):
                continue
            try:
                if connection.broken is None and not connection.is_alive():
                    logger.info(
                        "transport lost an idle connection: %s",
                        on_one_line(connection.broken),
                        extra={"event": "connection_lost"},
                    )
            finally:
                connection.lock.release()

    def close(self) -> None:
        """Stop; the connections are their owners' to close."""
        self._stopped.set()
        thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._pause):
            self.beat()
            with self._guard:
                if all(connection.broken is not None for connection in self._connections):
                    self._thread = None  # the next connection starts another
                    return
