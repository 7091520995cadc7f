"""An owner's life is a held lock, so that what a killed process held is free at once.

Claims and leases name their owner. Asking whether an owner lives is asking whether its lock is
held: a PostgreSQL advisory lock or MySQL's GET_LOCK on a connection of its own, or a locked file
beside a SQLite database. The operating system or the server lets go of the lock when the process
dies, however it dies. A connection pooler that shares sessions between clients breaks this, and is
refused at start (``proof``).
"""

import contextlib
import fcntl
import os
import re
import select
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final, Protocol

from sqlalchemy import Connection, exc, text

from timeoutmgr.database.engine import Database
from timeoutmgr.database.failures import unavailable
from timeoutmgr.database.session_locks import (
    SESSION_LOCK_PREFIX,
    SESSION_LOCKS,
    lock_name,
    lock_number,
    lock_text,
)
from timeoutmgr.errors import StorageUnavailable


class OwnerLives:
    """The owners of this process, and whether others live. Safe for many threads."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._mine: dict[str, _Life] = {}

    def begin(self, owner: str) -> None:
        """Start the life of *owner*; twice is fine. Raises StorageUnavailable."""
        with self._lock:
            if owner not in self._mine:
                self._mine[owner] = _life(self._database, owner)

    def end(self, owner: str) -> None:
        """End the life of *owner*; what it still held is free. Twice is fine."""
        with self._lock:
            life = self._mine.pop(owner, None)
        if life is not None:
            life.end()

    def holds(self, owner: str) -> bool:
        """Ask the server whether the lock of our *owner* is still held, and still ours."""
        with self._lock:
            life = self._mine.get(owner)
        return life is not None and life.holds()

    def is_unbroken(self, owner: str) -> bool:
        """Return whether the lock of our *owner* is held, as far as its connection tells.

        A server that ends a session closes the connection, so that only a connection with
        something to read is asked: this takes no round trip as a rule. A pooler may keep the
        connection, so that behind a pooler the server is asked each time.
        """
        with self._lock:
            life = self._mine.get(owner)
        return life is not None and (life.is_quiet() or life.holds())

    def renew(self, owner: str) -> None:
        """Take the lock again where the connection that held it was lost."""
        if not self.holds(owner):
            self.end(owner)
            self.begin(owner)

    def gone(self, owners: Collection[str]) -> set[str]:
        """Return those of *owners* whose lock nobody holds. Raises StorageUnavailable."""
        with self._lock:
            others = set(owners) - self._mine.keys()
        if not others:
            return set()
        if self._database.is_sqlite:
            return {owner for owner in others if not _is_held(_file(self._database, owner))}
        with self._database.read() as connection:
            if self._database.dialect.name == "postgresql":
                held = set(connection.execute(text(_POSTGRESQL_HELD)).scalars())
                return {owner for owner in others if lock_number(owner) not in held}
            return {
                owner
                for owner in others
                if connection.execute(
                    text("SELECT IS_USED_LOCK(:name)"), {"name": lock_text(owner)}
                ).scalar()
                is None
            }


_POSTGRESQL_HELD: Final = (
    "SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks WHERE locktype = 'advisory' "
    "AND objsubid = 1 AND granted "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


_SWEPT: Final = 100
"""Files of the dead that a life which begins removes at most: it is not to wait for all of them."""
_IS_LIFE: Final = re.compile(SESSION_LOCK_PREFIX + "[0-9a-f]{40}")


class _Life(Protocol):
    """A held lock."""

    def holds(self) -> bool: ...

    def is_quiet(self) -> bool: ...

    def end(self) -> None: ...


def _life(database: Database, owner: str) -> _Life:
    return _FileLife(database, owner) if database.is_sqlite else _SessionLife(database, owner)


class _SessionLife:
    """A lock of a database session, on a connection outside the pool.

    It may begin in a transaction that holds the last connection of the pool.
    """

    def __init__(self, database: Database, owner: str) -> None:
        sql, name = SESSION_LOCKS[database.dialect.name], lock_name(database.dialect.name, owner)
        self._is_pooled = database.settings.pooler is not None
        self._release = text(f"SELECT {sql.release}").bindparams(name=name)
        self._is_ours = text(f"SELECT {sql.is_ours}").bindparams(name=name)
        self._lock = threading.Lock()
        try:
            self._connection: Connection = database.apart.connect().execution_options(
                isolation_level="AUTOCOMMIT"
            )
            if database.dialect.name != "postgresql":
                # An idle session would be closed after wait_timeout, and its locks with it.
                self._connection.execute(text("SET SESSION wait_timeout = 31536000"))
            held = self._connection.execute(text(f"SELECT {sql.take}"), {"name": name}).scalar()
            self._descriptor = _descriptor(self._connection)
        except exc.SQLAlchemyError as error:
            raise unavailable(error, database.describe()) from error
        if not held:
            self.end()
            raise StorageUnavailable(
                f"the life of owner {owner!r} is held by another session of "
                f"{database.describe()}; an owner's name is used once"
            )

    def holds(self) -> bool:
        try:
            with self._lock:
                return bool(self._connection.execute(self._is_ours).scalar())
        except exc.SQLAlchemyError:
            return False

    def is_quiet(self) -> bool:
        if self._is_pooled or self._connection.invalidated:
            return False
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return not poll.poll(0)

    def end(self) -> None:
        # A connection that is lost already has let go of its lock. Of one that is closed the server
        # hears a little later, and the next of that name would be refused.
        with self._lock, contextlib.suppress(exc.SQLAlchemyError):
            self._connection.execute(self._release)
        with contextlib.suppress(exc.SQLAlchemyError):
            self._connection.close()


def _descriptor(connection: Connection) -> int:
    driver: Any = connection.connection.driver_connection
    if hasattr(driver, "fileno"):
        return int(driver.fileno())
    return int(driver._sock.fileno())  # PyMySQL's


class _FileLife:
    """An exclusive lock on a file of the owner's own, beside the database."""

    def __init__(self, database: Database, owner: str) -> None:
        self._path = _file(database, owner)
        folder = self._path.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Locked before it gets its name: nobody may find it there and not yet locked.
        draft = self._path.with_suffix(".new")
        self._descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        # One at a time: the name may be that of a dead one, whose file is just being removed.
        with _locked(folder, fcntl.LOCK_EX):
            draft.rename(self._path)
            _sweep(folder)

    def holds(self) -> bool:
        return self._path.exists()

    def is_quiet(self) -> bool:
        return False  # to look for the file takes no round trip

    def end(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def _sweep(folder: Path) -> None:
    """Remove files of the dead, after whom nobody may ever ask."""
    swept = 0
    with os.scandir(folder) as files:
        for file in files:
            # What is another user's, say, is no reason not to live.
            with contextlib.suppress(OSError):
                if _IS_LIFE.fullmatch(file.name) and not _is_held(file.path):
                    os.unlink(file.path)
                    swept += 1
            if swept == _SWEPT:
                return


def _is_held(path: str | Path) -> bool:
    try:
        # Shared: who else looks at this moment is no holder.
        with _locked(path, fcntl.LOCK_SH | fcntl.LOCK_NB):
            return False
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True


@contextlib.contextmanager
def _locked(path: str | Path, how: int) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, how)
        try:
            yield
        finally:
            # To close it is not enough: a child that was forked meanwhile has it open too.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _file(database: Database, owner: str) -> Path:
    assert database.path is not None, "only an embedded database has owner files"
    folder = database.path.with_name(database.path.name + "-owners")
    return folder / lock_text(owner)
