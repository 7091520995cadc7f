"""Session locks prove that an owner is alive, so that the claims of a killed process are freed.

Claims and leases name their owner. An owner is alive while its lock is held: a PostgreSQL advisory
lock, MySQL's GET_LOCK or SQL Server's sp_getapplock on a connection that all owners of a process
share, or a locked file beside a SQLite database. The operating system or the server releases the
lock when the process dies, however it dies. A connection pooler that shares sessions between
clients breaks this, and is refused at start (``proof``).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from uuid import uuid4

from sqlalchemy import Connection, exc, text

from timeoutmgr.database.engine import Database
from timeoutmgr.database.failures import unavailable
from timeoutmgr.database.idle_connections import descriptor_of, has_something_to_read
from timeoutmgr.database.notifications import Listening
from timeoutmgr.errors import StorageUnavailable

logger = logging.getLogger(__name__)

SESSION_LOCK_PREFIX: Final = "timeoutmgr-"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLockSql:
    """Statements (*acquire*, *release*) and expressions, with the lock's name as ``:name``.

    The server releases a session lock when its session ends. If a pooler shares sessions between
    clients, the lock stays with the session while its client continues in another.

    *is_ours* checks the lock's name, and the session that runs the statement.
    """

    acquire: str
    release: str
    session: str
    is_ours: str
    is_held: str


_POSTGRESQL_HELD: Final = (
    "SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks WHERE locktype = 'advisory' "
    "AND objsubid = 1 AND granted "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_POSTGRESQL: Final = SessionLockSql(
    acquire="SELECT pg_try_advisory_lock(:name)",
    release="SELECT pg_advisory_unlock(:name)",
    session="pg_backend_pid()",
    is_ours=f":name IN ({_POSTGRESQL_HELD} AND pid = pg_backend_pid())",
    is_held=f":name IN ({_POSTGRESQL_HELD})",
)
_MYSQL: Final = SessionLockSql(
    acquire="SELECT GET_LOCK(:name, 0)",
    release="SELECT RELEASE_LOCK(:name)",
    session="CONNECTION_ID()",
    is_ours="IS_USED_LOCK(:name) = CONNECTION_ID()",
    is_held="IS_USED_LOCK(:name) IS NOT NULL",
)


def applock(procedure: str, owner: str, more: str = "") -> str:
    """Return the batch that calls SQL Server's *procedure* for a lock, and selects 1 for success.

    *owner* is ``Session`` or ``Transaction``. A procedure is not an expression. NOCOUNT makes the
    answer the first result, and is then turned off again, because later statements of the
    connection would count no rows.
    """
    return (
        "SET NOCOUNT ON; DECLARE @answer int; "
        f"EXEC @answer = {procedure} @Resource = :name, @LockOwner = '{owner}'{more}; "
        "SET NOCOUNT OFF; SELECT CASE WHEN @answer >= 0 THEN 1 ELSE 0 END"
    )


_MSSQL: Final = SessionLockSql(
    acquire=applock("sp_getapplock", "Session", ", @LockMode = 'Exclusive', @LockTimeout = 0"),
    release=applock("sp_releaseapplock", "Session"),
    session="@@SPID",
    is_ours="CASE APPLOCK_MODE('public', :name, 'Session') WHEN 'Exclusive' THEN 1 ELSE 0 END",
    is_held="1 - APPLOCK_TEST('public', :name, 'Exclusive', 'Session')",
)
SESSION_LOCKS: Final = MappingProxyType(
    {"postgresql": _POSTGRESQL, "mysql": _MYSQL, "mariadb": _MYSQL, "mssql": _MSSQL}
)
"""By the name of the dialect; SQLite has no entry."""


def lock_name(dialect: str, owner: str) -> int | str:
    """Return the name of the lock of *owner* on the server of *dialect*."""
    return lock_number(owner) if dialect == "postgresql" else lock_text(owner)


def lock_number(name: str) -> int:
    """Return the number of the lock of an owner, or of another *name*, on PostgreSQL."""
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def lock_text(owner: str) -> str:
    """Return the name of the lock of *owner* on MySQL, and of its file beside SQLite."""
    return SESSION_LOCK_PREFIX + hashlib.sha256(owner.encode()).hexdigest()[:40]


class SessionLocks:
    """The session locks of this process, and checks whether other owners are alive.

    Safe for many threads.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.after_fork()
        Database.inherited.add(self)

    def after_fork(self) -> None:
        """Forget all locks: the parent's locks prove that the parent is alive, not this child."""
        self._lock = threading.Lock()
        self._mine: dict[str, _ServerSession | _FileLock] = {}

    def acquire(self, owner: str) -> None:
        """Acquire the lock of *owner*; idempotent. Raises StorageUnavailable."""
        with self._lock:
            if owner not in self._mine:
                self._mine[owner] = (
                    _FileLock(self._database, owner)
                    if self._database.is_sqlite
                    else self._database.part(_ServerLocks).acquire(owner)
                )

    def release(self, owner: str) -> None:
        """Release the lock of *owner*, which frees its claims; idempotent."""
        with self._lock:
            lock = self._mine.pop(owner, None)
        if lock is not None:
            lock.release(owner)

    def holds(self, owner: str) -> bool:
        """Ask the server whether the lock of our *owner* is still held, and still ours."""
        with self._lock:
            lock = self._mine.get(owner)
        return lock is not None and lock.holds(owner)

    def is_unbroken(self, owner: str) -> bool:
        """Return whether the lock of our *owner* is held, as far as its connection shows.

        A server that ends a session closes the connection, so a query is needed only if the
        connection has something to read: usually this takes no round trip. A pooler may keep the
        connection open, so behind a pooler each check queries the server.
        """
        with self._lock:
            lock = self._mine.get(owner)
        return lock is not None and (lock.is_quiet() or lock.holds(owner))

    def renew(self, owner: str) -> None:
        """Acquire the lock again if the connection that held it was lost."""
        if not self.holds(owner):
            self.release(owner)
            self.acquire(owner)

    def dead_owners(self, owners: Collection[str]) -> set[str]:
        """Return the members of *owners* whose lock is free. Raises StorageUnavailable."""
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
            is_held = text(f"SELECT {SESSION_LOCKS[self._database.dialect.name].is_held}")
            return {
                owner
                for owner in others
                if not connection.execute(is_held, {"name": lock_text(owner)}).scalar()
            }


_SWEPT: Final = 100
"""Maximum files of dead owners that an acquisition removes, so that it does not take long."""
_IS_LOCK_FILE: Final = re.compile(SESSION_LOCK_PREFIX + "[0-9a-f]{40}")


class _ServerLocks:
    """The session locks of this process at one server. Safe for many threads.

    The locks follow the pool to another server (after a switch-over that leaves the old server up,
    or behind a proxy): otherwise the old session would stay, and on the new server each owner would
    seem dead. Each connection is compared with the session before it is first lent, so that no
    lease, and no answer about other owners, comes from a server without our locks.

    Each process moves when it needs its first new connection. To a process that has moved, owners
    of a slower process seem dead, and it frees their leases, even during a handler: such a message
    is handled twice. It is not repeated further: the slower process can write a lease on the new
    server only by a connection that has moved its locks first.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.RLock()
        self._session: _ServerSession | None = None
        database.checks.append(self._compare)

    def acquire(self, owner: str) -> _ServerSession:
        """Acquire the lock of *owner*; return the session that holds it."""
        with self._lock:
            if self._session is None or not self._session.answers():
                self._session = _ServerSession(self._database, self._lock)
            self._session.acquire(owner)
            return self._session

    def _compare(self, driver_connection: Any, notes: dict[Any, Any], is_new: bool) -> None:
        """Move the locks to the server of a new connection; have an older connection replaced.

        The newer of connection and session is on the right server. No owner may release its lock
        meanwhile: it would seem to be on another server.
        """
        if notes.get(self) is self._place():
            return
        where = self._database.describe()
        with self._lock:
            session = self._session
            is_elsewhere = session is not None and not session.is_seen_by(driver_connection)
            if session is not None and is_elsewhere and is_new:
                logger.warning(
                    "session locks follow a new connection to another server of %s",
                    where,
                    extra={"event": "session_lock_lost"},
                )
                session.move()
            if is_new or not is_elsewhere:
                notes[self] = self._place()
        if is_elsewhere:  # not under the lock, because the listener has its own lock
            self._database.part(Listening).reconnect()
            if not is_new:
                raise exc.InvalidatePoolError(f"the session locks left this server of {where}")

    def _place(self) -> Connection | None:
        """Return the connection of the session, if any; it identifies the session."""
        session = self._session
        return session.connection if session is not None and session.is_open else None

    def after_fork(self) -> None:
        if self._session is not None:
            self._session.after_fork()


class _ServerSession:
    """A database session with session locks, on a connection outside the pool.

    It is outside because a lock may be acquired in a transaction with the pool's last connection. A
    session that failed once stays closed, so that each owner notices the loss of its lock, even if
    another owner has already opened the next session.
    """

    def __init__(self, database: Database, lock: threading.RLock) -> None:
        self._database = database
        self._sql = SESSION_LOCKS[database.dialect.name]
        self._process = os.getpid()
        self._lock = lock
        self._owners: set[str] = set()
        self._is_closed = False
        self._open()

    def _open(self) -> None:
        database = self._database
        try:
            self.connection: Connection = database.apart.connect().execution_options(
                isolation_level="AUTOCOMMIT"
            )
            if database.dialect.name in {"mysql", "mariadb"}:
                # An idle session would end after wait_timeout, with its locks.
                self.connection.execute(text("SET SESSION wait_timeout = 31536000"))
            self._descriptor = descriptor_of(self.connection.connection.driver_connection)
        except exc.SQLAlchemyError as error:
            raise unavailable(error, database.describe()) from error

    def is_seen_by(self, driver_connection: Any) -> bool:
        """Return whether the server of *driver_connection* has the locks of this session."""
        if not (self.answers() and self._owners):
            return True
        name = lock_name(self._database.dialect.name, next(iter(self._owners)))
        with contextlib.closing(driver_connection.cursor()) as cursor:
            # The syntax of parameters in all drivers of these servers.
            cursor.execute(f"SELECT {self._sql.is_held.replace(':name', '%s')}", (name,))
            [is_seen] = cursor.fetchone()
        driver_connection.rollback()
        return bool(is_seen)

    def move(self) -> None:
        """End the session and acquire its locks in a new session; if that fails, they are lost."""
        owners, self._owners = self._owners, set()
        self.connection.invalidate()  # without a statement: the server might never answer it
        try:
            self._open()
            for owner in owners:
                self.acquire(owner)
        except StorageUnavailable:
            self._close()

    @property
    def is_open(self) -> bool:
        # A forked child shares the socket, and must not use it.
        return not self._is_closed and self._process == os.getpid()

    def answers(self) -> bool:
        """Return whether the session still exists, as far as its connection shows."""
        if self.is_quiet():
            return True
        with self._lock:
            return self._ask("SELECT 1") is not None

    def acquire(self, owner: str) -> None:
        """Acquire the lock of *owner*. The server would let one session acquire it twice."""
        with self._lock:
            try:
                is_ours = owner not in self._owners and self._execute(self._sql.acquire, owner)
            except exc.SQLAlchemyError as error:
                self._close()
                raise unavailable(error, self._database.describe()) from error
            if is_ours:
                self._owners.add(owner)
                return
            self._close_if_unused()
        raise StorageUnavailable(
            f"the session lock of owner {owner!r} is held by another session of "
            f"{self._database.describe()}; an owner's name is used once"
        )

    def release(self, owner: str) -> None:
        """Release the lock of *owner*; the last owner closes the connection.

        A lost connection has released its locks. The server notices a closed connection a little
        later, and until then would refuse the next lock of that name.
        """
        if not self.is_open:
            return
        with self._lock:
            self._ask(self._sql.release, owner)
            self._owners.discard(owner)
            self._close_if_unused()

    def holds(self, owner: str) -> bool:
        """Ask the server whether the lock of *owner* is held by this session."""
        if not self.is_open:
            return False
        with self._lock:
            return bool(self._ask(f"SELECT {self._sql.is_ours}", owner))

    def is_quiet(self) -> bool:
        """Return whether the connection is surely unbroken; an answer under way looks broken."""
        if self._database.settings.pooler is not None or self._descriptor is None:
            return False
        is_silent = not has_something_to_read(self._descriptor)
        # Checked afterwards: another file may have the number of a socket closed meanwhile.
        return is_silent and self.is_open and not self.connection.invalidated

    def after_fork(self) -> None:
        """Close the socket, with which this child would keep the locks of a dead parent."""
        if self._descriptor is not None and not self._is_closed:
            os.close(self._descriptor)  # first: the process may have no number left
            nothing = os.open(os.devnull, os.O_RDWR)
            if nothing != self._descriptor:
                # The driver still has the number, and closes it later.
                os.dup2(nothing, self._descriptor, inheritable=False)
                os.close(nothing)
            with contextlib.suppress(exc.SQLAlchemyError):
                self.connection.detach()  # otherwise the garbage collector would roll it back

    def _ask(self, sql: str, owner: str | None = None) -> Any:
        """Return the answer of the server, or None and close the session if it cannot answer."""
        try:
            return self._execute(sql, owner) if self.is_open else None
        except exc.SQLAlchemyError:
            self._close()
            return None

    def _execute(self, sql: str, owner: str | None = None) -> Any:
        given = {"name": lock_name(self._database.dialect.name, owner)} if owner else {}
        return self.connection.execute(text(sql), given).scalar()

    def _close_if_unused(self) -> None:
        if not self._owners:
            self._close()

    def _close(self) -> None:
        self._is_closed = True
        with contextlib.suppress(exc.SQLAlchemyError):
            self.connection.close()


class _FileLock:
    """An exclusive lock on the owner's own file, beside the database."""

    def __init__(self, database: Database, owner: str) -> None:
        self._path = _file(database, owner)
        self._descriptor: int | None = None
        Database.inherited.add(self)
        folder = self._path.parent
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._acquire(folder)
        except BaseException as error:
            self.after_fork()  # a draft that stays open keeps our next attempt waiting for ever
            if not isinstance(error, OSError):
                raise
            raise StorageUnavailable(
                f"the processes of {database.describe()} meet in the folder {str(folder)!r}, which "
                f"cannot be written: {error.strerror}; let this user write there, or put the file "
                "into a folder of its own"
            ) from error

    def _acquire(self, folder: Path) -> None:
        # Locked before it gets its name, so that no process can find it unlocked.
        draft = self._path.with_suffix(".new")
        self._descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        # In turn, because another process may be removing a dead owner's file of this name.
        with _locked(folder, fcntl.LOCK_EX):
            draft.rename(self._path)
            _sweep(folder)

    def holds(self, _owner: str) -> bool:
        return self._descriptor is not None and self._path.exists()

    def is_quiet(self) -> bool:
        return False  # a check of the file takes no round trip

    def release(self, _owner: str) -> None:
        if self._descriptor is not None:
            self._path.unlink(missing_ok=True)
            self.after_fork()

    def after_fork(self) -> None:
        """Close the file without removing it: a child would keep its parent's file locked."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _sweep(folder: Path) -> None:
    """Remove files of dead owners, about which a process may never ask."""
    swept = 0
    with os.scandir(folder) as files:
        for file in files:
            # The file of another user must not prevent our lock.
            with contextlib.suppress(OSError):
                if _IS_LOCK_FILE.fullmatch(file.name) and not _is_held(file.path):
                    os.unlink(file.path)
                    swept += 1
            if swept == _SWEPT:
                return


def _is_held(path: str | Path) -> bool:
    try:
        # A shared lock: a process that only checks must not look like an owner.
        with _locked(path, fcntl.LOCK_SH | fcntl.LOCK_NB):
            return False
    except FileNotFoundError:
        return False
    except (BlockingIOError, PermissionError):
        # The file of another user cannot be checked: that owner's claims end by their time-out.
        return True


@contextlib.contextmanager
def _locked(path: str | Path, how: int) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, how)
        try:
            yield
        finally:
            # Closing it is not enough: a child that was forked meanwhile has it open too.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _file(database: Database, owner: str) -> Path:
    return owner_folder(database) / lock_text(owner)


def owner_folder(database: Database) -> Path:
    """Return the folder beside an embedded database in which its processes meet."""
    assert database.path is not None, "only an embedded database has owner files"
    return database.path.with_name(database.path.name + "-owners")


class Liveness:
    """Gives each owner a session lock of a unique name.

    Acquiring a held lock would wait: for another persistence or the SQL queue of this process, or
    for a server that has not yet noticed that our connection broke. So every lock has its own name,
    the owner's with a suffix, which is also in claims. Thread-safe.
    """

    def __init__(self, database: Database) -> None:
        self._locks = SessionLocks(database)
        self.after_fork()
        Database.inherited.add(self)

    def after_fork(self) -> None:
        """Forget the owners: the owners that claimed before the fork are the parent's."""
        self._lock = threading.RLock()
        self._names: dict[str, str] = {}

    def name_of(self, owner: str) -> str:
        """Return the name of the session lock of *owner*, which is then held.

        A missing lock is acquired, and a lost lock is replaced by a lock with another name.
        """
        with self._lock:
            self.renew(owner)
            name = self._names.get(owner)
            if name is None:
                name = f"{owner[:200]}#{uuid4().hex[:12]}"
                self._locks.acquire(name)
                self._names[owner] = name
            return name

    def renew(self, owner: str) -> None:
        """Release a lock that was lost with its connection; its claims are free."""
        with self._lock:
            name = self._names.get(owner)
            if name is not None and not self._locks.is_unbroken(name):
                logger.warning(
                    "owner %s lost its session lock and acquires a new lock",
                    name,
                    extra={"event": "session_lock_lost"},
                )
                self.release(owner)

    def dead_owners(self, names: set[str]) -> set[str]:
        """Return the members of *names* that are dead, in this process or another."""
        return self._locks.dead_owners(names) if names else set()

    def release(self, owner: str) -> None:
        """Release the lock of *owner*, if any."""
        with self._lock:
            name = self._names.pop(owner, None)
        if name is not None:
            self._locks.release(name)

    def release_all(self) -> None:
        """Release the locks of all owners; they may acquire new locks."""
        with self._lock:
            for owner in list(self._names):
                self.release(owner)
