"""How the processes of one endpoint ask each other for a poll: NOTIFY, or a file's time.

MySQL and MariaDB have no such way: there a poller finds the timeouts of another process up to one
interval later. To wait for the end of the other process' session lock was tried and left (ADR 19):
on PostgreSQL a statement that waits for an advisory lock keeps its snapshot, so that no dead row
of the database could be vacuumed while two processes live.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from timeoutmgr.contracts import Wakeups
from timeoutmgr.database.notifications import NOTIFY, NotificationListener, channel_of
from timeoutmgr.database.session_locks import owner_folder
from timeoutmgr.errors import StorageUnavailable

from .context import StoreContext


def wakeups_of(
    context: StoreContext, wake: Callable[[], None], has_others: Callable[[], bool]
) -> Wakeups | None:
    """Return the wake-ups of the endpoint; *has_others* says whether another process lives."""
    name = f"stored in {context.tables.timeouts.fullname} for {context.endpoint}"
    if context.database.is_sqlite:
        return FileWakeups(owner_folder(context.database) / channel_of(name), wake)
    if context.database.dialect.name == "postgresql":
        return NotifyWakeups(context, channel_of(name), wake, has_others)
    return None


class NotifyWakeups:
    """PostgreSQL's NOTIFY. A process that is alone opens no connection to listen on."""

    def __init__(
        self,
        context: StoreContext,
        channel: str,
        wake: Callable[[], None],
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

    def __init__(self, path: Path, wake: Callable[[], None]) -> None:
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
