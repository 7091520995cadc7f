"""The context that the parts of one endpoint's store share."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    bindparam,
    func,
    literal,
    literal_column,
    select,
    text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.sql.selectable import Select

from timeoutmgr.contracts import Clock, Key
from timeoutmgr.database import Database
from timeoutmgr.database.batch_inserts import can_copy
from timeoutmgr.database.commits import LAZILY, set_locally
from timeoutmgr.database.session_locks import Liveness, lock_number
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.field_types import check_field_types
from timeoutmgr.message.instants import Micros
from timeoutmgr.resilience.after_fork import cached_property
from timeoutmgr.resilience.recovery import LONGEST_WAIT

from .batch_writes import BatchWrites, PostgreSQLBatchWrites, insert_missing
from .tables import TimeoutTables

# --- settings of the SQL stores ---------------------------------------------------------------

_LEAST_TOMBSTONES: Final = timedelta(days=7)
_HISTORY: Final = ("outcomes", "full", "none")
_CLOCKS: Final = ("database", "host")
_PARTITIONS: Final = ("auto", "convert", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlSettings:
    """How timeouts are kept.

    *claim_time* is how long a claim lasts if its owner neither closes it nor dies. *history* says
    which events are recorded: ``outcomes``, ``full`` (also scheduled and rescheduled) or ``none``.
    *tombstone_retention* is how long a dispatched or cancelled id is remembered, so that a
    redelivered store message cannot bring it back. *clock* is the clock for due times; SQLite has
    only the host's. *max_in_flight* limits the ids that are claimed and not yet dispatched: they
    wait in the dispatcher's queue, and a crash leaves them behind. *copy* writes batches to
    PostgreSQL by COPY and as arrays; without it, they are written statement by statement, as on
    every database. *partitions* is also for PostgreSQL: with ``off``, one partition holds all
    pending timeouts; ``auto`` keeps pending timeouts of a new installation in ranges of due times;
    ``convert`` also cuts an existing partition into ranges while it is in use.
    """

    claim_time: timedelta = timedelta(seconds=60)
    history: str = "outcomes"
    history_retention: timedelta = timedelta(days=30)
    tombstone_retention: timedelta = timedelta(days=30)
    clock: str = "database"
    max_in_flight: int = 5_000
    copy: bool = True
    partitions: str = "off"

    def __post_init__(self) -> None:
        """Check every value."""
        check_field_types(self)
        if self.history not in _HISTORY:
            raise ConfigurationError(f"history must be in {_HISTORY}, got {self.history!r}")
        if self.clock not in _CLOCKS:
            raise ConfigurationError(f"clock must be in {_CLOCKS}, got {self.clock!r}")
        if self.partitions not in _PARTITIONS:
            raise ConfigurationError(
                f"partitions must be in {_PARTITIONS}, got {self.partitions!r}"
            )
        for name in ("claim_time", "history_retention", "tombstone_retention"):
            given = getattr(self, name)
            if not timedelta(0) < given <= LONGEST_WAIT:
                raise ConfigurationError(f"{name} is over 0, up to {LONGEST_WAIT}, got {given}")
        if self.max_in_flight < 1:
            raise ConfigurationError(f"max_in_flight must be positive, got {self.max_in_flight}")
        if self.tombstone_retention < _LEAST_TOMBSTONES:
            raise ConfigurationError(
                f"tombstone_retention must be at least {_LEAST_TOMBSTONES}, since a broker may "
                f"redeliver that late; got {self.tombstone_retention}"
            )


class _OpenRead(threading.local):
    """The connection of this thread's shared read, and when it was opened.

    *searched_since* is the monotonic time at which its first search began.
    """

    connection: Connection | None = None
    now: Micros = 0
    searched_since: float | None = None


@dataclass(frozen=True, kw_only=True)
class StoreContext:
    """One endpoint in one database.

    *atomic*: queue and store share database and transaction, so a dispatch that was not closed was
    not sent. *me* is the owner name of this store.
    """

    endpoint: str
    database: Database
    tables: TimeoutTables
    settings: SqlSettings
    clock: Clock
    liveness: Liveness
    atomic: bool
    node: str
    me: str
    _open: _OpenRead = field(default_factory=_OpenRead, init=False, repr=False, compare=False)

    @contextmanager
    def one_read(self) -> Iterator[None]:
        """Let all ``reading`` of this thread inside the block share a transaction and the time.

        A separate read takes four round trips, of which its statement is only one.
        """
        with self.database.read() as connection:
            go_by_key(connection)
            self._open.now = self.now(connection)
            self._open.connection = connection
            try:
                yield
            finally:
                self._open.connection = self._open.searched_since = None

    def searched_since(self, now: float) -> float:
        """Return when the searches of the read began: inside ``one_read`` they share the time."""
        if self._open.connection is None:
            return now
        if self._open.searched_since is None:
            self._open.searched_since = now
        return self._open.searched_since

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a read in key order; inside ``one_read`` it is part of that read."""
        if self._open.connection is not None:
            yield self._open.connection
            return
        with self.database.read() as connection:
            go_by_key(connection)
            yield connection

    @cached_property
    def writing(self) -> BatchWrites:
        """The way to write batches to this database."""
        if self.settings.copy and can_copy(self.database.engine):
            return PostgreSQLBatchWrites(self.tables, self.endpoint)
        is_mysql = self.database.dialect.name in {"mysql", "mariadb"}
        return BatchWrites(self.tables, self.endpoint, upserts=is_mysql)

    @cached_property
    def claims(self) -> Select[tuple[Any, ...]]:
        """The statement for all claims of the endpoint, ended ones too; built once: it is hot.

        Their columns are in the order in which ``claims_of`` reads them.
        """
        claims = self.tables.claims.c
        ends = claims.from_due, claims.from_id, claims.to_due, claims.to_id
        columns = claims.token, *ends, claims.owner, claims.claimed_until, claims.size
        return select(*columns, claims.taken_by).where(claims.endpoint == self.endpoint)

    @property
    def has_database_clock(self) -> bool:
        """Whether due times are compared with the database's clock, not the host's."""
        return self.settings.clock == "database" and self.database.dialect.now is not None

    @property
    def locks_what_it_reads(self) -> bool:
        """Whether an UPDATE or DELETE locks (and waits for) each row that its plan reads.

        MySQL and SQL Server do, and we cannot choose the plan: while other transactions lock rows,
        only statements on a whole primary key cannot deadlock.
        """
        return self.database.dialect.name in {"mysql", "mariadb", "mssql"}

    @property
    def now_column(self) -> ColumnElement[int]:
        """The database's clock as a column; an ignored zero if the host's clock counts."""
        now = self.database.dialect.now if self.has_database_clock else None
        return literal_column(now or "0").label("now")

    @property
    def now_or_parameter(self) -> ColumnElement[int]:
        """The time that counts, in a statement: the parameter ``now`` for the host's clock."""
        host: ColumnElement[int] = bindparam("now", type_=BigInteger)
        return self.now_column.element if self.has_database_clock else host

    @property
    def now_value(self) -> ColumnElement[int]:
        """The time that counts, as a value to be written."""
        return self.now_column.element if self.has_database_clock else literal(self.clock.now())

    def now(self, connection: Connection) -> Micros:
        """Return the time that counts."""
        if not self.has_database_clock:
            return self.clock.now()
        if connection is self._open.connection:
            return self._open.now
        return int(connection.execute(select(self.now_column)).scalar_one())

    def now_alone(self) -> Micros:
        """Return the time that counts, without a transaction unless this thread shares a read."""
        if not self.has_database_clock:
            return self.clock.now()
        if self._open.connection is not None:
            return self._open.now
        return self.database.now(self.clock)


@dataclass(frozen=True, slots=True)
class Interval:
    """Keys from *first* to *last*, both included."""

    first: Key
    last: Key

    def covers(self, key: Key) -> bool:
        """Return whether *key* lies inside."""
        return self.first <= key <= self.last


# --- the order in which transactions lock keys and rows ---------------------------------------
# A dispatcher locks *rows* of ``timeouts`` with ``FOR UPDATE SKIP LOCKED``: it skips rows that are
# already locked, so many dispatchers run side by side. It keeps the locks during the publish, and
# locks the *keys* (``timeout_keys``) only to close. A change of a timeout (cancel, reschedule)
# first locks its key, with waiting, and then its row, without waiting. So no transaction ever waits
# for a row; many keys are locked in the order of ids, and there is no deadlock. (In MySQL, SKIP
# LOCKED does wait, for a moment. There, a change takes the endpoint's lock, then its row, then its
# key, like a dispatcher.) SQLite has no row locks: its single writer is the lock, and SQLAlchemy
# omits these clauses.
#
# Claims of one endpoint are made one after another, under the endpoint's lock.

PATIENCE: Final = "5s"
"""How long a claim's process may be silent while all other claims wait for it."""

BY_KEY: Final = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "max_parallel_workers_per_gather": "0",
    "plan_cache_mode": "force_generic_plan",
}
"""Settings that have PostgreSQL read in the order of the key.

Until a table has statistics, the planner assumes that an endpoint has few rows, and would read and
sort them all for the first hundred. A plan from when the table was nearly empty would later read
all of it. A parallel worker takes 10 ms to start, longer than such a read. And planning over dozens
of partitions takes longer than running a plan that prunes most of them at run time.
"""

_BY_KEY: Final = "; ".join(f"SET LOCAL {name} = {value}" for name, value in BY_KEY.items())
_ADVISORY_LOCK: Final = text("SELECT pg_advisory_xact_lock(:key)")


def go_by_key(connection: Connection) -> None:
    """Make PostgreSQL read in key order, by cached plans, in this transaction."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(_BY_KEY)


def find_each_by_key(connection: Connection) -> None:
    """Make PostgreSQL find several single keys by bitmaps; otherwise it would read all keys."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL enable_bitmapscan = on")


class ClaimLock:
    """The endpoint's lock, as a claim acquires it."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        # PostgreSQL prepares a claim by a single statement, since round trips dominate its cost: it
        # locks, sets reads in key order, and limits how long a stopped process can keep the lock,
        # for which all other claims wait.
        settings = BY_KEY | {"idle_in_transaction_session_timeout": PATIENCE}
        if context.atomic:
            # If a crash of the server undoes the claim, nothing has left the database. Otherwise
            # the claim must record that its timeouts may have been sent.
            settings |= LAZILY
        self._at_once = select(
            func.pg_advisory_xact_lock(bindparam("key", type_=BigInteger)),
            *set_locally(settings),
            context.now_column,
        )
        self._key = _lock_key(context)

    def wait(self, connection: Connection, now: Micros) -> Micros:
        """Acquire the lock until the transaction ends.

        Return the time that counts, read under the lock: the host's *now* or the database's clock.
        """
        context = self._context
        if context.database.dialect.name == "postgresql":
            found = connection.execute(self._at_once, {"key": self._key}).one()
            return int(found.now) if context.has_database_clock else now
        lock_endpoint(connection, context)
        return context.now(connection) if context.has_database_clock else now


def lock_endpoint(connection: Connection, context: StoreContext) -> None:
    """Acquire the endpoint's lock until the transaction ends."""
    dialect = context.database.dialect.name
    if dialect == "postgresql":
        connection.execute(_ADVISORY_LOCK, {"key": _lock_key(context)})
    elif context.locks_what_it_reads:
        endpoints = context.tables.endpoints
        row = select(endpoints.c.endpoint).where(endpoints.c.endpoint == context.endpoint)
        if connection.execute(row.with_for_update()).first() is not None:
            return
        # The first claim ever.
        if dialect == "mssql":
            # The insert locks the key, even if another process has inserted the row.
            insert_missing(connection, endpoints, [{"endpoint": context.endpoint}])
        else:
            # An insert that meets another process' row must wait for an exclusive lock: IGNORE
            # would leave each waiting insert a shared lock, and a deadlock when they need more.
            first = mysql.insert(endpoints).values(endpoint=context.endpoint)
            connection.execute(first.on_duplicate_key_update(endpoint=endpoints.c.endpoint))


def _lock_key(context: StoreContext) -> int:
    return lock_number(f"{context.tables.claims.fullname} {context.endpoint}")
