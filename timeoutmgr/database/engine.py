"""The Database: its connections and their settings, transactions, and the database's clock."""

import logging
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, TypeVar
from weakref import WeakSet

import sqlalchemy
from sqlalchemy import Connection, Engine, create_engine, event, exc, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.pool import NullPool, Pool, QueuePool

from timeoutmgr.contracts import Clock, SharedDatabase, Transaction
from timeoutmgr.contracts.answers import Answers
from timeoutmgr.database.deadlines import bound_answers
from timeoutmgr.database.dialects import (
    MARIADB,
    Dialect,
    dialect_of,
    refuse_lookalikes,
    remedy_for_missing,
    require_experimental,
)
from timeoutmgr.database.failures import Failure, classify, conflict, unavailable
from timeoutmgr.database.fair_pool import FairPool
from timeoutmgr.database.idle_connections import Check, replace_closed, replace_unusable
from timeoutmgr.database.places import UnqualifiedTables, make_private, refuse_unsafe_file
from timeoutmgr.database.round_trips import (
    DriverStatement,
    PipelinedTransaction,
    can_pipeline,
    execute_alone,
    pipelined,
)
from timeoutmgr.database.sqlite_writers import (
    FILE,
    SQLITE,
    SqliteApart,
    SqlitePool,
    SqliteWriters,
    file_at,
)
from timeoutmgr.errors import CombinationRefused, ConfigurationError
from timeoutmgr.message.field_types import check_field_types, settings_of
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.redaction import on_one_line, redact

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Part = TypeVar("Part", bound="ProcessPart")

_BEGIN: Final = "timeoutmgr_begin"
_CONFLICT_TRIES: Final = 8
_MOST: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseSettings:
    """Settings of the connections to a database.

    *sqlite_synchronous* FULL survives a power cut, NORMAL a killed process. *write_wait* is how
    long a SQLite writer waits for other writers, in seconds. *pooler* "session" admits a connection
    pooler that keeps one server session for each client. Without *prepared_statements* psycopg
    prepares none. *single_writer* says that all processes write to one node of a Galera cluster.
    *experimental* admits Microsoft SQL Server.
    """

    sqlite_synchronous: str = "FULL"
    sqlite_cache_mb: int = 16
    write_wait: float = 20.0
    pool_size: int = 20
    connect_timeout: int = 5
    pooler: str | None = None
    prepared_statements: bool = True
    single_writer: bool = False
    experimental: bool = False

    def __post_init__(self) -> None:
        """Check every value."""
        check_field_types(self)
        if self.sqlite_synchronous not in {"FULL", "NORMAL", "EXTRA"}:
            raise ConfigurationError(
                f"sqlite_synchronous is FULL, NORMAL or EXTRA, got {self.sqlite_synchronous!r}"
            )
        if self.pooler not in {None, "session"}:
            raise ConfigurationError(
                f'pooler is "session" or not set, got {self.pooler!r}; a pooler that shares '
                "sessions between clients cannot keep the locks of their owners"
            )
        for name in ("sqlite_cache_mb", "write_wait", "pool_size", "connect_timeout"):
            if not 0 < (given := getattr(self, name)) <= _MOST:
                raise ConfigurationError(f"{name} must be positive, at most {_MOST}, got {given!r}")


@dataclass(slots=True)
class Proved:
    """Proofs of a server at start (``timeoutmgr.database.proof``)."""

    server: bool = False
    rows: bool = False
    durable: bool = False


class ProcessPart(Protocol):
    """A resource of one process at one database, which every user in the process shares."""

    def after_fork(self) -> None:
        """Abandon the parent's connection, in a child that uses its own part."""
        ...


class Database:
    """A SQL database, as an object of this process. Thread-safe.

    ``Database.shared`` gives one object per URL, so that a queue and a store which name the same
    database get the same engine, and one transaction can span both.
    """

    _shared: ClassVar[dict[str, "Database"]] = {}
    _shared_lock = threading.RLock()
    _all: ClassVar[WeakSet["Database"]] = WeakSet()
    inherited: ClassVar[WeakSet[ProcessPart]] = WeakSet()

    def __init__(
        self,
        url: str | URL,
        settings: DatabaseSettings | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic: Final = monotonic
        self._given: Final = _parsed(url)
        self.url: Final = _located(self._given)
        self.settings: Final = settings_of(DatabaseSettings, settings)
        require_experimental(self.url, self.settings.experimental)
        self.dialect: Final[Dialect] = dialect_of(self.url.get_backend_name())
        self.unanswered: Final = Answers()
        self.checks: Final[list[Check]] = []
        """Checks of a connection before the pool lends it."""
        self.engine: Final[Engine] = self._made()
        self.apart: Final[Engine] = self._made(apart=True)
        """For long-lived connections, which never use the pool or wait for it."""
        self.can_pipeline: Final = can_pipeline(self.engine)
        """Whether this database supports ``run_pipelined`` and ``run_alone``."""
        # Not at first use: two threads would make two, or a fork would leave its lock acquired.
        self._alone: Final = self._made(alone=True) if self.can_pipeline else self.engine
        """For ``run_alone``. The settings are set for its sessions: a statement that is sent alone
        is planned before it could set them."""
        self._engines: Final = {self.engine, self.apart, self._alone}
        names = {os.path.abspath(self._given.database or ""), str(self.path)}
        self._writers: Final = SqliteWriters(self.describe(), names) if self.is_sqlite else None
        self._one_writer: Final[Callable[[float], AbstractContextManager[None]]] = (
            self._writers.one if self._writers is not None else lambda _wait: nullcontext()
        )
        self.unqualified: Final = UnqualifiedTables()
        self._users: Final[WeakSet[object]] = WeakSet()
        self.proved: Final = Proved()
        self._parts: dict[Callable[[Database], ProcessPart], Any] = {}
        self._parts_lock = threading.Lock()
        with self._shared_lock:
            self._all.add(self)

    def _made(self, **kind: bool) -> Engine:
        return _engine(self.url, self.settings, self.unanswered, self.checks, **kind)

    def part(self, make: Callable[["Database"], Part]) -> Part:
        """Return the part that *make* makes once per process; a forked child makes its own."""
        with self._parts_lock:
            if make not in self._parts:
                self._parts[make] = make(self)
            part: Part = self._parts[make]
            return part

    @classmethod
    def shared(cls, url: str | URL, settings: DatabaseSettings | None = None) -> "Database":
        """Return this process' one Database for *url*; the first caller's *settings* count."""
        key = _parsed(url).render_as_string(hide_password=False)
        if _parsed(url).get_backend_name() == "sqlite":
            key = f"sqlite:{Path(_parsed(url).database or '').resolve()}"
        with cls._shared_lock:
            if key not in cls._shared:
                cls._shared[key] = cls(url, settings)
            return cls._shared[key]

    @classmethod
    def require_own_tables(cls, what: str, connection: Connection) -> None:
        """Raise CombinationRefused if *connection*, of our engines, has other tables or roles."""
        with cls._shared_lock:  # another thread may add a database
            owners = [one for one in cls._all if one.engine is connection.engine]
        for database in owners:
            database.unqualified.require(what, connection, database.own_tables, role=True)

    def own_tables(self) -> Sequence[object]:
        """Read what ``unqualified`` sees; beside the pool, whose connections may all be lent."""
        with self.connect_apart() as connection:
            return self.unqualified.seen_by(connection)

    @classmethod
    def after_fork(cls) -> None:
        """Forget the shared databases: a child must not use its parent's connections.

        Other threads of the parent, which do not exist in the child, may have acquired the locks.
        """
        SQLITE.after_fork()
        cls._shared, cls._shared_lock = {}, threading.RLock()
        for database in list(cls._all):
            for engine in database._engines:
                engine.dispose(close=False)
            database.unanswered.after_fork()
            if database._writers is not None:
                database._writers.after_fork()
            database.checks.clear()
            parts, database._parts = database._parts, {}
            database._parts_lock = threading.Lock()
            for part in parts.values():
                part.after_fork()
        for each in list(cls.inherited):
            each.after_fork()

    def refuse_attached(self, schema: str | None, remedy: str) -> None:
        """Raise CombinationRefused for a *schema* on SQLite."""
        if schema is not None and self.is_sqlite:
            raise CombinationRefused(
                f"schema {schema!r} on SQLite",
                "a schema there is another, attached file, which no transaction spans safely",
                remedy,
            )

    @property
    def is_sqlite(self) -> bool:
        """Whether this is the embedded database: one file, one writer, the host's clock."""
        return self.dialect.name == "sqlite"

    @property
    def path(self) -> Path | None:
        """The file of an embedded database."""
        return Path(self.url.database) if self.is_sqlite and self.url.database else None

    def describe(self) -> str:
        """Return the URL without password and query, fit for logs."""
        return self._given.set(query={}).render_as_string(hide_password=True)

    def connections(self) -> tuple[int, int]:
        """Return how many connections of the pools are used, and how many are idle."""
        every = (engine.pool for engine in self._engines)
        pools = [pool for pool in every if isinstance(pool, QueuePool)]
        return sum(pool.checkedout() for pool in pools), sum(pool.checkedin() for pool in pools)

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """Open a write transaction; commit at the end, roll back on any error.

        Raises StorageUnavailable if the database is out of reach or the result of the commit is
        unknown, StorageConflict if another transaction was in conflict.
        """
        with self._translated(), self._writer(self.settings.write_wait) as connection:
            yield connection

    @contextmanager
    def connect_apart(self) -> Iterator[Connection]:
        """Open a connection outside of the pool, without a transaction; its errors are ours."""
        with self._translated(), self.apart.connect() as connection:
            yield connection

    @contextmanager
    def read(self, isolation: str | None = None) -> Iterator[Connection]:
        """Open a read-only transaction; it waits for no writer. SQLite has only one *isolation*."""
        with self._translated(), self.engine.connect() as connection:
            if self._writers is not None:
                self._writers.renew(connection)
            elif isolation is not None:
                connection = connection.execution_options(isolation_level=isolation)
            with connection.begin():
                if self._writers is not None:
                    self._writers.require_file(connection)
                yield connection

    def run(self, work: Callable[[Connection], Result], *, patient: bool = True) -> Result:
        """Run *work* in a write transaction and return its result; try again after a conflict.

        *work* must be repeatable: it must have no effect outside of the transaction. If not
        *patient*, raise StorageConflict at once while SQLite has another writer, which may be
        waiting for this thread.
        """
        wait = self.settings.write_wait if patient else 0.0

        def attempt() -> Result:
            with self._writer(wait) as connection:
                return work(connection)

        return self._tried(attempt, patient)

    def run_pipelined(self, work: Callable[[PipelinedTransaction], Result]) -> Result:
        """Run *work* as ``run`` does, in as few round trips as its reads allow."""

        def attempt() -> Result:
            with pipelined(self.engine) as transaction:
                return work(transaction)

        return self._tried(attempt)

    def run_alone(self, statement: DriverStatement, given: Mapping[str, Any]) -> Any:
        """Execute *statement* as ``run`` does, in its own transaction; return its rows.

        It uses an index wherever possible (``BY_INDEX``).
        """
        return self._tried(lambda: execute_alone(self._alone, statement, given))

    def _tried(self, attempt_once: Callable[[], Result], patient: bool = True) -> Result:
        deadline = self._monotonic() + self.settings.write_wait
        for attempt in range(1, _CONFLICT_TRIES + 1):
            try:
                return attempt_once()
            except exc.SQLAlchemyError as error:
                failure = classify(error)
                if failure is Failure.STATEMENT:
                    raise
                if failure is Failure.CONFLICT and not patient:
                    raise conflict(error, self.describe()) from error
                # On SQLite an attempt may have used the whole time.
                is_late = self.is_sqlite and self._monotonic() > deadline
                if failure is Failure.AWAY or is_late or attempt == _CONFLICT_TRIES:
                    raise unavailable(error, self.describe()) from error
                logger.debug(
                    "database %s undid a transaction in attempt %d: %s",
                    self.describe(),
                    attempt,
                    on_one_line(error),
                    extra={"event": "transaction_conflict", "attempt": attempt},
                )
                time.sleep(random.uniform(0.001, 0.005) * attempt)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def now(self, clock: Clock) -> Micros:
        """Return the database's time, or the time of *clock* if the database has no clock."""
        if self.dialect.now is None:
            return clock.now()
        with self._translated(), self.engine.connect() as connection:
            if self.dialect.name == "postgresql":
                # One round trip; with a transaction it would take three.
                connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            return self.now_in(connection)

    def now_of_host(self, clock: Clock) -> dict[str, Micros]:
        """Return the parameter *now*, which statements need if the database has no clock."""
        return {"now": clock.now()} if self.dialect.now is None else {}

    def now_in(self, connection: Connection, clock: Clock | None = None) -> Micros:
        """Return the database's clock as *connection* reads it; where it has none, *clock*'s."""
        if self.dialect.now is None and clock is not None:
            return clock.now()
        return int(connection.execute(text(f"SELECT {self.dialect.now}")).scalar_one())

    def ping(self) -> None:
        """Return if the database answers; raise StorageUnavailable if not.

        Raises CombinationRefused if it answers and its version is too old.
        """
        with self.read() as connection:
            connection.execute(text("SELECT 1"))
        self._require_version()

    def write_anew(self) -> bool:
        """Make SQLite rewrite its file and empty its log; return whether the log is empty.

        It waits for other writers; a process that reads at the same time keeps the log.
        """
        begin = ("PRAGMA secure_delete=ON", "VACUUM")  # outside of any transaction of ours
        with self._translated(), self._writer(self.settings.write_wait, begin) as connection:
            emptied = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
            return not emptied.one()[0]

    def used_by(self, user: object) -> None:
        """Note that *user* (a queue, a store) uses this database; it must call ``leave``."""
        self._users.add(user)

    def leave(self, user: object) -> None:
        """Note that *user* is done; idle connections are closed after the last user. Idempotent.

        Not sooner: connections in use would return to a pool that is never closed.
        """
        self._users.discard(user)
        if not self._users:
            self.dispose()

    def dispose(self) -> None:
        """Close idle connections; the object stays usable."""
        (lent, _idle) = self.connections()
        for engine in self._engines:
            engine.dispose()
        if self._writers is not None and not lent:
            self._writers.forget_file()

    def _require_version(self) -> None:
        found = getattr(self.engine.dialect, "server_version_info", None)
        is_mariadb = getattr(self.engine.dialect, "is_mariadb", False)
        needed = MARIADB if is_mariadb else self.dialect
        if found is not None and tuple(found) < needed.minimum:
            raise CombinationRefused(
                f"{needed.name} {'.'.join(map(str, found))}",
                "its locking and functions have not been proved here",
                f"Use at least {needed.name} {'.'.join(map(str, needed.minimum))}.",
            )

    @contextmanager
    def _writer(
        self, wait: float, begin: Sequence[str] = ("BEGIN IMMEDIATE",)
    ) -> Iterator[Connection]:
        with self._one_writer(wait), self.engine.connect() as connection:
            # Not an option of the engine: before SQLAlchemy 2.1 its connections take no listener.
            connection = connection.execution_options(**{_BEGIN: begin})
            with self._begun(connection, wait):
                yield connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except exc.SQLAlchemyError as error:
            match classify(error):
                case Failure.STATEMENT:
                    raise
                case Failure.CONFLICT if not self.is_sqlite:
                    raise conflict(error, self.describe()) from error
                case _:
                    # On SQLite it has already waited as long as it may.
                    raise unavailable(error, self.describe()) from error

    @contextmanager
    def _begun(self, connection: Connection, wait: float) -> Iterator[None]:
        if self._writers is None:
            with connection.begin():
                yield
            return
        self._writers.renew(connection)
        deadline = self._monotonic() + wait
        while True:
            # For writers in other processes: short waits with jitter, because SQLite's own back-off
            # grows to 100 ms and would make timeouts late.
            try:
                transaction = connection.begin()
                break
            except exc.OperationalError as error:
                if classify(error) is not Failure.CONFLICT or self._monotonic() > deadline:
                    raise
                connection.rollback()
                time.sleep(random.uniform(0.0005, 0.004))
        with transaction:
            self._writers.require_file(connection)
            yield
            self._writers.require_file(connection)  # a commit to another file would be lost


os.register_at_fork(
    before=SQLITE.before_fork,
    after_in_parent=SQLITE.after_fork_in_parent,
    after_in_child=Database.after_fork,
)


def as_database(shared: SharedDatabase) -> Database:
    """Return *shared* if it is a Database; otherwise raise ConfigurationError."""
    if not isinstance(shared, Database):
        raise ConfigurationError(
            f"the database of a store or transport is a timeoutmgr.database.Database, got "
            f"{shared!r:.80}; make it with Database.shared(url)"
        )
    return shared


def as_connection(transaction: Transaction) -> Connection:
    """Return *transaction* if it is a connection; otherwise raise ConfigurationError."""
    if not isinstance(transaction, Connection):
        raise ConfigurationError(
            "a transaction in a SQL database is an open SQLAlchemy Connection, got "
            f"{transaction!r:.80}; for an ORM session give session.connection()"
        )
    return transaction


def count_inserted(connection: Connection, statement: Any, parameters: Any) -> int:
    """Execute the INSERT *statement*, and return how many rows it inserted.

    SQLAlchemy loses the count with the cursor unless told to keep it, which needs 2.0.28.
    """
    if _KEEPS_COUNTS:
        options = {"preserve_rowcount": True}
        return connection.execute(statement, parameters, execution_options=options).rowcount
    counts: list[int] = []

    def note(_connection: Any, cursor: Any, *_: Any) -> None:
        counts.append(cursor.rowcount)

    event.listen(connection, "after_cursor_execute", note)
    try:
        connection.execute(statement, parameters)
    finally:
        event.remove(connection, "after_cursor_execute", note)
    return sum(counts)


_KEEPS_COUNTS: Final = tuple(map(int, re.findall(r"\d+", sqlalchemy.__version__)[:3])) >= (2, 0, 28)


def execute_many(connection: Connection, statement: Any, rows: Sequence[dict[str, Any]]) -> int:
    """Execute *statement* for each row, in one round trip if the driver can; return rowcount."""
    if connection.dialect.name == "mssql":
        # The driver returns the count of only the last row.
        return sum(connection.execute(statement, row).rowcount for row in rows)
    return connection.execute(statement, rows).rowcount if rows else 0


def _parsed(url: str | URL) -> URL:
    try:
        parsed = make_url(url)
    except (exc.ArgumentError, ValueError):  # the latter for a port that is not a number
        raise ConfigurationError(
            f"{redact(str(url))!r} is no database URL; expected such as sqlite:///timeoutmgr.db or "
            "postgresql+psycopg://host/name"
        ) from None
    if "@" in (parsed.host or ""):
        # SQLAlchemy ends a password at its first "@"; drivers would show the rest as the host.
        shown = redact(parsed.render_as_string(hide_password=True))
        raise ConfigurationError(
            f"{shown!r} has a raw '@' in its password; quote '@' of a password as %40"
        )
    return parsed


def _located(url: URL) -> URL:
    """Return *url* with the absolute path of a SQLite file: a handler may change the folder.

    Links are resolved: otherwise processes would use different folders beside the file.
    """
    file = url.database or ":memory:"
    if url.get_backend_name() != "sqlite" or file.startswith((":", "file:")):
        return url
    return url.set(database=os.path.realpath(os.path.abspath(file)))


_NO_TEXTS: Final = {"autocommit", "prepare_threshold", "context", "cursor_factory", "row_factory"}
"""Arguments of psycopg. It takes any text for a true *autocommit*, which commits each statement."""
BY_INDEX: Final = {f"enable_{way}": "off" for way in ("seqscan", "bitmapscan", "sort")}
"""PostgreSQL's settings with which each statement uses an index."""
_PLANNED_ONCE: Final = {"plan_cache_mode": "force_generic_plan"}
_READ_COMMITTED: Final = {"default_transaction_isolation": "'read committed'"}
"""Claims and locks are proved with this level. With SERIALIZABLE as a database's default, the
record of a send could fail to serialize, and the message was sent again."""
_STAYS_IDLE: Final = (
    "SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'idle_session_timeout'"
)
"""For long-lived sessions. PostgreSQL has the setting, and the limit, since 14."""
_NOT_COMPILED: Final = {"jit": "off"}
"""The planner estimates the limit of a generic plan as a tenth of the table, and an interval of
keys as a share of it. Above some millions of rows it would compile each poll again: 12 functions
for 16 rows, 273 with 27 partitions, and 676 ms instead of 12."""


def _engine(
    url: URL,
    settings: DatabaseSettings,
    answers: Answers,
    checks: Sequence[Check],
    *,
    apart: bool = False,
    alone: bool = False,
) -> Engine:
    backend = url.get_backend_name()
    if backend == "sqlite":
        return _sqlite_engine(url, settings, apart)
    _refuse_arguments(url)
    arguments: dict[str, Any] = {"connect_timeout": settings.connect_timeout}
    options: dict[str, Any] = {}
    if backend == "postgresql":
        # A silent network must cause an error, or an outage would look like a slow query.
        arguments |= {"keepalives_idle": 10, "tcp_user_timeout": 30_000}
        # A role or a database may have another encoding, which cannot represent every text.
        arguments |= {"application_name": "timeoutmgr", "client_encoding": "utf8"}
        if not settings.prepared_statements and url.get_driver_name() == "psycopg":
            arguments |= {"prepare_threshold": None}
        if alone:
            options |= {"isolation_level": "AUTOCOMMIT", "pool_reset_on_return": None}
    elif backend == "mssql":
        from timeoutmgr.database import sqlserver  # its part of SQLAlchemy is large

        arguments = sqlserver.connect_arguments(settings.connect_timeout)
        options |= {"isolation_level": "READ COMMITTED", "deprecate_large_types": True}
    else:
        arguments |= {"init_command": _MYSQL_SESSION}
        options |= {"isolation_level": "READ COMMITTED"}
    given = url.query.keys() - {"client_encoding"}  # not each of which can represent every text
    engine = _created(
        url,
        # Arguments in the URL take precedence.
        connect_args={name: arguments[name] for name in arguments.keys() - given},
        **options,
        **_pool(settings, apart, pool_timeout=settings.connect_timeout * 2),
    )
    bound_answers(engine, settings.connect_timeout, answers, has_pooler=settings.pooler is not None)
    if not apart:
        replace_closed(engine, checks)
        replace_unusable(engine)
    if backend == "postgresql":
        own = BY_INDEX | _PLANNED_ONCE if alone else {}
        more = [_STAYS_IDLE] if apart else []
        _set_at_connect(engine, _READ_COMMITTED | _NOT_COMPILED | own, more)
    if backend == "mssql":
        sqlserver.prepare_engine(engine)
    refuse_lookalikes(engine)
    return engine


def _refuse_arguments(url: URL) -> None:
    """Raise ConfigurationError for an argument of *url* that would break sessions."""
    unusable = sorted(_NO_TEXTS & url.query.keys())
    if unusable and url.get_backend_name() == "postgresql":
        raise ConfigurationError(
            f"{', '.join(unusable)} in a database's URL reaches the driver as text, which it "
            "cannot use; leave it out (in place of prepare_threshold set "
            "database.prepared_statements = false)"
        )
    if "init_command" in url.query:
        raise ConfigurationError(
            "init_command in a database's URL would replace the statement that sets UTC and "
            "the strict mode for the session, on which due times rely; leave it out"
        )


def _created(url: URL, **options: Any) -> Engine:
    try:
        if url.get_dialect().is_async:
            raise ConfigurationError(
                f"{redact(str(url))!r} names a driver for asyncio; begin the URL with another, as "
                "postgresql+psycopg:// (an AsyncSession of yours keeps its driver)"
            )
        return create_engine(url, hide_parameters=True, **options)
    except (ImportError, exc.NoSuchModuleError) as error:
        raise ConfigurationError(
            f"{redact(str(url))!r} cannot be used: {error}; {remedy_for_missing(url)}"
        ) from error


def _set_at_connect(engine: Engine, settings: Mapping[str, str], more: Sequence[str]) -> None:
    """Make sessions of *engine* on PostgreSQL begin with *settings*, and *more* statements."""
    statements = [*(f"SET {name} = {value}" for name, value in settings.items()), *more]

    @event.listens_for(engine, "connect")
    def set_each(connection: Any, _record: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("; ".join(statements))
        connection.commit()  # a rollback would undo the setting
        # What SQLAlchemy goes back to after AUTOCOMMIT; it has asked before the settings were made.
        engine.dialect.default_isolation_level = "READ COMMITTED"


def _pool(
    settings: DatabaseSettings,
    apart: bool,
    kinds: tuple[type[Pool], type[Pool]] = (FairPool, NullPool),
    **options: Any,
) -> dict[str, Any]:
    if apart:
        return {"poolclass": kinds[1]}
    size = settings.pool_size
    return {"poolclass": kinds[0], "pool_size": size, "max_overflow": size, **options}


_MYSQL_SESSION: Final = (
    "SET time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'"
)


def _sqlite_engine(url: URL, settings: DatabaseSettings, apart: bool) -> Engine:
    if not url.database or url.database.startswith((":memory:", "file:")):
        raise ConfigurationError(
            "an in-memory SQLite database is lost on exit and not shared between threads, and "
            "processes do not meet beside a file that a URI names; name a file by its path "
            "(sqlite:///timeoutmgr.db), or use MemoryPersistence in tests"
        )
    path = Path(url.database)
    refuse_unsafe_file(path)
    engine = _created(
        url,
        # Our own begin loop waits; the driver's wait is only for a checkpoint or recovery.
        connect_args={"timeout": 0.02, "check_same_thread": False},
        **_pool(settings, apart, (SqlitePool, SqliteApart)),
    )

    @event.listens_for(engine, "do_connect")
    def require_private(*_given: Any) -> None:
        if SQLITE.is_refused:
            raise SQLITE.refusal(path)
        make_private(path)

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, record: Any) -> None:
        record.info[FILE] = file_at([path])
        # The driver must not begin by itself: we issue BEGIN, see below.
        connection.isolation_level = None
        cursor = connection.cursor()
        deadline = time.monotonic() + settings.connect_timeout
        while time.monotonic() < deadline:
            try:
                cursor.execute("PRAGMA journal_mode = WAL")
                break
            except Exception as error:
                # WAL needs the file alone for a moment. If our caller has it, a later try succeeds.
                if "locked" not in str(error):
                    raise
                time.sleep(random.uniform(0.001, 0.01))
        cursor.execute(f"PRAGMA synchronous = {settings.sqlite_synchronous}")
        cursor.execute(f"PRAGMA cache_size = -{settings.sqlite_cache_mb * 1024}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        for statement in connection.get_execution_options().get(_BEGIN, ("BEGIN",)):
            connection.exec_driver_sql(statement).close()  # a pragma returns rows

    return engine
