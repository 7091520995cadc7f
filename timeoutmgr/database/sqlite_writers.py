"""Guards for SQLite: one writer per file, no writes to a lost file, and no use during a fork."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

from sqlalchemy import Connection
from sqlalchemy.pool import NullPool, Pool

from timeoutmgr.database.fair_pool import FairPool
from timeoutmgr.errors import StorageConflict, StorageUnavailable

FILE: Final = "timeoutmgr_file"
"""Key in a connection's info: device and inode of its file when it was opened."""
_FORK_WAIT: Final = 5.0
"""Seconds for which a fork waits for uses to end: a handler may keep a transaction for long."""


class HasIdle(Protocol):
    """An owner of idle connections."""

    def close_idle(self) -> None:
        """Close the idle connections; the owner opens new connections when necessary."""
        ...


class SqliteUse:
    """The uses of SQLite in this process, for which a fork waits. Thread-safe.

    A child inherits the memory of SQLite. A mutex that another thread of the parent had locked
    stays locked in the child, for all files: each call there would hang. With a connection of the
    parent, open or idle, the child also inherits the record of a lock on the file, but not the
    lock: the parent's last close would delete the log into which the child commits. So a fork waits
    until no connection is in use, admits no new use, and closes the idle connections.

    There is no lock around uses, because the garbage collector may return a connection at any line.
    """

    def __init__(self) -> None:
        self.uses: dict[object, int] = {}
        """The thread that began each use; for a lent connection, by the record of its pool."""
        self._idle: Final[WeakValueDictionary[object, HasIdle]] = WeakValueDictionary()
        self._inherited: Final[list[object]] = []
        """Kept in a child, because the garbage collector would call SQLite for them."""
        self._gate = threading.RLock()
        self._forking: int | None = None
        self._is_closed = False
        self.is_refused = False
        """Whether this process was forked during a use."""

    def add(self, owner: HasIdle) -> None:
        """Close the idle connections of *owner* before each fork."""
        self._idle[object()] = owner

    def refusal(self, path: Path) -> StorageUnavailable:
        """Return the error for a process that was forked during a use."""
        return StorageUnavailable(
            f"{path} cannot be used by this process: it was forked while its parent used a "
            "connection to SQLite, whose locks nothing releases here; fork before the parent "
            "sends, or start the process anew (multiprocessing's spawn)"
        )

    @contextmanager
    def one(self, returned: object = None) -> Iterator[None]:
        """Use SQLite, after waiting for a fork by another thread; a nested use never waits.

        The use replaces the use of the record *returned*, which another thread may have begun.
        """
        me, use = threading.get_ident(), object()
        try:
            # A use is counted before it checks for a fork, and a fork begins before it counts uses.
            self.uses[use] = me
            while returned is None and self._forking not in (None, me):
                if list(self.uses.values()).count(me) > 1:
                    break
                del self.uses[use]
                with self._gate:
                    self.uses[use] = me
            # Before the pool gets the record back, because another thread may then borrow it.
            self.uses.pop(returned, None)
            yield
        finally:
            self.uses.pop(use, None)

    def before_fork(self) -> None:
        """Wait until no other thread uses SQLite, admit no use, and close idle connections.

        A thread that forks within its own use does not wait for itself.
        """
        self._gate.acquire()
        self._forking = me = threading.get_ident()
        deadline = time.monotonic() + _FORK_WAIT
        while (threads := list(self.uses.values())) and me not in threads:
            if time.monotonic() > deadline:
                return
            time.sleep(0.001)
        if not threads:
            for reference in self._idle.valuerefs():
                if (owner := reference()) is not None:
                    owner.close_idle()
            self._is_closed = self._forking == me  # not after a fork by a signal handler

    def after_fork_in_parent(self) -> None:
        """Admit uses again."""
        self._is_closed, self._forking = False, None
        with suppress(RuntimeError):  # an exception came before the gate was acquired
            self._gate.release()

    def after_fork(self) -> None:
        """Reset all state, in a child."""
        if not self._is_closed:
            self.is_refused = True
            self._inherited.extend([*self.uses, *self._idle.values()])
        self._gate, self.uses = threading.RLock(), {}
        self._is_closed, self._forking = False, None


SQLITE: Final = SqliteUse()
"""For the whole process, because SQLite has a single mutex for all files."""


class _CountedPool(Pool):
    """A pool of connections to SQLite, for whose uses a fork waits."""

    def _do_get(self) -> Any:
        with SQLITE.one():
            record = super()._do_get()
            SQLITE.uses[record] = threading.get_ident()
        return record

    def _do_return_conn(self, record: Any) -> None:
        with SQLITE.one(returned=record):
            super()._do_return_conn(record)


class SqlitePool(_CountedPool, FairPool):
    """The fair pool for connections to SQLite."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        SQLITE.add(self)

    def close_idle(self) -> None:
        """Close the idle connections; the pool stays usable."""
        with SQLITE.one():
            super().close_idle()


class SqliteApart(_CountedPool, NullPool):
    """No pool: each connection to SQLite is opened for its use."""

    _sqla_logger_namespace = "sqlalchemy.pool.impl.NullPool"


class SqliteWriters:
    """Admits one writer at a time: threads wait here instead of polling the file *names*.

    A symbolic link is one name, its target another. *where* is the name in errors.

    A connection still works in a file that was removed or renamed. No other process would see its
    writes, and the system deletes them with the last connection.
    """

    def __init__(self, where: str, names: Collection[str]) -> None:
        self._where: Final = where
        self._names: Final = names
        self._file: tuple[int, int] | None = None
        """Device and inode of the file that this process opened first."""
        self._lock = threading.Lock()

    @contextmanager
    def one(self, wait: float) -> Iterator[None]:
        """Become the writer; raise StorageUnavailable if that takes longer than *wait* seconds.

        If *wait* is 0, it raises StorageConflict.
        """
        lock, acquired = self._lock, list[bool]()
        try:
            # Both in a single call: a signal handler, or an exception that another thread sets,
            # comes before both or after both. Between them the lock has no owner.
            acquired.extend(map(lock.acquire, (True,), (wait,)))
            if not acquired[0]:
                raise self._busy(wait)
            yield
        finally:
            if acquired and acquired[0]:
                lock.release()

    def _busy(self, wait: float) -> StorageConflict | StorageUnavailable:
        if not wait:
            return StorageConflict(f"{self._where} has another writer")
        return StorageUnavailable(
            f"{self._where} had no turn to write for {wait:g} s; "
            "a transaction of this process is held open that long (does a handler send "
            "through the endpoint instead of its context?)"
        )

    def renew(self, connection: Connection) -> None:
        """Replace a *connection* to a file that had the name for a time and no longer has it."""
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
        """Admit another file with the name from now on, as this process has no open connection."""
        self._file = None

    def after_fork(self) -> None:
        """Reset all state, in a child: a thread of the parent may have acquired the lock."""
        self._lock = threading.Lock()


def file_at(names: Iterable[str | Path]) -> tuple[int, int] | None:
    """Return device and inode of the file that has all *names* now, or None."""
    found = set[tuple[int, int]]()
    with suppress(OSError):
        found = {(each.st_dev, each.st_ino) for each in map(os.stat, names)}
    return found.pop() if len(found) == 1 else None
