"""The one writer that a SQLite file has in a process: none during a fork, none of a lost file."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sqlalchemy import Connection

from timeoutmgr.errors import StorageConflict, StorageUnavailable

FILE: Final = "timeoutmgr_file"
"""In the information of a connection: device and inode of its file when it was opened."""
_FORK_WAIT: Final = 5.0
"""Seconds for which a fork waits for the end of a write: a handler may hold a transaction long."""
_stuck: Final[set[str]] = set()
"""The files for which SQLite, in this process, has a transaction of the parent open for good."""


class _OfThread(threading.local):
    """State of one thread."""

    is_writing = False


class SqliteWriters:
    """Admits one writer at a time: threads wait here instead of polling the file *names*.

    A symbolic link is one name, its target another. *where* is the name in errors.

    SQLite keeps the locks of a process in memory that a child inherits. Where a thread of the
    parent writes at the moment of a fork, its lock is never released in the child, where the
    thread is not: no connection of the child can write into that file.

    A connection goes on in a file that was removed or renamed. What it wrote there, no other
    process would see, and the system deletes it with the last connection.
    """

    def __init__(self, where: str, names: Collection[str]) -> None:
        self._where: Final = where
        self._names: Final = names
        self._file: tuple[int, int] | None = None
        """Device and inode of the file that this process opened first."""
        self._lock = threading.Lock()
        self._own: Final = _OfThread()
        self._forking: int | None = None
        """The thread that holds the lock while it forks."""

    @contextmanager
    def one(self, wait: float) -> Iterator[None]:
        """Be the writer; raise StorageUnavailable if that takes longer than *wait* seconds.

        Without any *wait* it raises StorageConflict.
        """
        if self._where in _stuck:
            raise StorageUnavailable(
                f"{self._where} cannot be written by this process: it was forked while a thread of "
                "its parent wrote there, and SQLite waits for that thread for ever; fork before "
                "the parent sends, or start the process anew (multiprocessing's spawn)"
            )
        lock, acquired = self._lock, list[bool]()
        try:
            _acquire(lock, wait, acquired)
            if not acquired[0]:
                raise self._busy(wait)
            self._own.is_writing = True
            yield
        finally:
            if acquired and acquired[0]:
                lock.release()
                self._own.is_writing = False

    def _busy(self, wait: float) -> StorageConflict | StorageUnavailable:
        if not wait:
            return StorageConflict(f"{self._where} has another writer")
        return StorageUnavailable(
            f"{self._where} had no turn to write for {wait:g} s; "
            "a transaction of this process is held open that long (does a handler send "
            "through the endpoint instead of its context?)"
        )

    def renew(self, connection: Connection) -> None:
        """Replace a *connection* to a file that had the name for a time, and has it no more."""
        if file_at(self._names) == self._file != connection.info[FILE]:
            connection.invalidate()

    def require_file(self, connection: Connection) -> None:
        """Raise StorageUnavailable unless *connection* is to the first file, and that has the name.

        Another file may have had the name for a time, and connections of its own.
        """
        own = connection.info[FILE]
        self._file = self._file or own
        if not own == self._file == file_at(self._names):
            raise StorageUnavailable(
                f"the file of {self._where} was removed, renamed or replaced while this process "
                "had it open; put that file back, or stop every process of it and start them anew"
            )

    def forget_file(self) -> None:
        """Admit another file of the name from now on: no connection of this process is open."""
        self._file = None

    def before_fork(self) -> None:
        """Wait until no other thread writes, and admit none."""
        me, acquired = threading.get_ident(), list[bool]()
        try:
            if not self._own.is_writing:
                _acquire(self._lock, _FORK_WAIT, acquired)
        finally:
            if acquired and acquired[0]:
                self._forking = me

    def after_fork_in_parent(self) -> None:
        """Admit the next writer."""
        if self._forking == threading.get_ident():
            self._forking = None
            self._lock.release()

    def after_fork(self) -> None:
        """Begin anew, in a child."""
        if self._lock.locked() and self._forking != threading.get_ident():
            _stuck.add(self._where)
        self._lock, self._forking, self._own.is_writing = threading.Lock(), None, False


def file_at(names: Iterable[str | Path]) -> tuple[int, int] | None:
    """Return device and inode of the file that has all *names* now, None without such a file."""
    try:
        found = {(each.st_dev, each.st_ino) for each in map(os.stat, names)}
    except OSError:
        return None
    return found.pop() if len(found) == 1 else None


def _acquire(lock: threading.Lock, wait: float, acquired: list[bool]) -> None:
    """Add to *acquired* whether *lock* was free within *wait* seconds.

    In one call of the interpreter: a signal's handler, or an exception that another thread sets,
    comes before both or after both. Between them the lock would have no owner, and stay locked.
    """
    acquired.extend(map(lock.acquire, (True,), (wait,)))
