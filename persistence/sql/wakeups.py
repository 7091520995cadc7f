"""How a poller hears of the timeouts that the endpoint's other processes store.

A process asks the others for a poll: by NOTIFY, or by a file's time. A question that was never
asked, since its process died, and a server without NOTIFY are made up for by a peek at the next due
time while another process lives. To wait for the end of the other process' session lock was tried
and left (ADR 19): on PostgreSQL a statement that waits for an advisory lock keeps its snapshot, so
that no dead row of the database could be vacuumed while two processes live.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from timeoutmgr.contracts import WakePoller, Wakeups
from timeoutmgr.database.notifications import NOTIFY, NotificationListener, channel_of
from timeoutmgr.database.session_locks import owner_folder
from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.redaction import on_one_line

from .claim.due_keys import DueKeys, go_by_key
from .context import StoreContext

logger = logging.getLogger(__name__)

PEEK_EVERY: Final = 1.0
"""Seconds between two peeks on a server without NOTIFY."""
PEEK_SELDOM: Final = 5.0
"""Seconds between two peeks where the other processes ask: only an unasked question is missed."""
_COMMIT: Final = 1_000_000
"""Microseconds that a commit may take: the next peek still sees a timeout due meanwhile."""


def wakeups_of(context: StoreContext, wake: WakePoller, has_others: Callable[[], bool]) -> Wakeups:
    """Return the wake-ups of the endpoint; *has_others* says whether another process lives."""
    name = f"stored in {context.tables.timeouts.fullname} for {context.endpoint}"
    way: Wakeups | None = None
    if context.database.is_sqlite:
        way = FileWakeups(owner_folder(context.database) / channel_of(name), wake)
    elif context.database.dialect.name == "postgresql":
        way = NotifyWakeups(context, channel_of(name), wake, has_others)
    return DuePeek(context, wake, has_others, way)


class DuePeek:
    """A thread that reads the next due time now and then, beside the *way* to ask, if there is one.

    So the poller learns when the next timeout is due, whichever process stored it and whatever
    became of that process. While no other process lives the thread reads nothing.
    """

    def __init__(
        self,
        context: StoreContext,
        wake: WakePoller,
        has_others: Callable[[], bool],
        way: Wakeups | None = None,
    ) -> None:
        self._context: Final = context
        self._keys: Final = DueKeys(context)
        self._wake = wake
        self._has_others = has_others
        self._way = way
        self._every: Final = PEEK_EVERY if way is None else PEEK_SELDOM
        self._seen: Micros = context.clock.now()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def notify(self) -> None:
        """Ask all other processes for a poll; without a way, their peeks find the timeout."""
        if self._way is not None:
            self._way.notify()

    def check(self) -> None:
        """Start peeking if there is another process; the heartbeat has told."""
        if self._way is not None:
            self._way.check()
        if self._has_others() and self._thread is None:
            self._stop.clear()
            self._thread = threading.Thread(
                target=self._run, name="timeoutmgr-due-peek", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Stop peeking and listening; return when the thread is gone."""
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        if self._way is not None:
            self._way.close()

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            if not self._has_others():
                continue
            try:
                self._peek()
            except Exception as error:
                # Any error of a driver: the poller itself tells of an outage.
                logger.debug(
                    "due peek of %s did not read the next due time: %s",
                    self._context.endpoint,
                    on_one_line(error),
                    extra={"event": "due_peek_failed", "endpoint": self._context.endpoint},
                )

    def _peek(self) -> None:
        """Read the first due time that had not passed at the peek before, and wake the poller."""
        with self._context.database.read() as connection:
            go_by_key(connection)
            now, due = self._keys.upcoming(connection, self._seen - _COMMIT)
        self._seen = now if self._context.has_database_clock else self._context.clock.now()
        if due is not None:
            self._wake(due)


class NotifyWakeups:
    """PostgreSQL's NOTIFY. A process that is alone opens no connection to listen on."""

    def __init__(
        self,
        context: StoreContext,
        channel: str,
        wake: WakePoller,
        has_others: Callable[[], bool],
    ) -> None:
        self._database: Final = context.database
        self._parameters: Final = {"channel": channel, "payload": context.me}
        self._wake = wake
        self._has_others = has_others
        self._listener: Final = NotificationListener(
            context.database,
            channel,
            hear=self._hear,
            missed=wake,
            thread="timeoutmgr-wake-listener",
        )

    def notify(self) -> None:
        """Ask all other processes for a poll, whether or not this process knows of another."""
        self._database.run(lambda connection: connection.execute(NOTIFY, self._parameters))

    def check(self) -> None:
        """Listen if there is another process; the heartbeat has told."""
        if self._has_others():
            self._listener.start()

    def close(self) -> None:
        """Stop listening."""
        self._listener.stop()

    def _hear(self, payload: str) -> None:
        if payload != self._parameters["payload"]:
            self._wake()


class FileWakeups:
    """The time of a file beside a SQLite database, set by the process that asks."""

    def __init__(self, path: Path, wake: WakePoller) -> None:
        self._path: Final = path
        self._wake = wake
        self._seen = self._time()

    def notify(self) -> None:
        """Ask all other processes for a poll."""
        self.check()  # another process may have asked, and our time will cover its time
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            at = time.time_ns()
            os.utime(self._path, ns=(at, at))
        except OSError as error:
            raise StorageUnavailable(f"{self._path} could not be touched: {error}") from error
        self._seen = self._time()

    def check(self) -> None:
        """Ask the file system for the time; it takes no statement."""
        now = self._time()
        if now != self._seen:
            self._seen = now
            self._wake()

    def close(self) -> None:
        """Need no closing."""

    def _time(self) -> int | None:
        try:
            return self._path.stat().st_mtime_ns
        except OSError:
            return None
