"""Our own queue: durable, leased, transactional, in tables of a SQL database."""

import uuid
from typing import Any, Final

from sqlalchemy.engine import URL

from timeoutmgr import plugins
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Clock, TransactionMode, Transport, TransportCapabilities
from timeoutmgr.contracts.transports import SettleExpired
from timeoutmgr.database import Database, checked_identifier
from timeoutmgr.database import upgrade as upgrades
from timeoutmgr.database.notifications import channel_of
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.field_types import settings_of
from timeoutmgr.transport.sql.expiry import ExpiredMessages
from timeoutmgr.transport.sql.leases import LeaseRenewer, Leases
from timeoutmgr.transport.sql.owned_queues import OwnedQueues
from timeoutmgr.transport.sql.pipelined_leases import PipelinedLeases
from timeoutmgr.transport.sql.queues import PostgreSQLMessageRows, SqlQueues
from timeoutmgr.transport.sql.receiver import SqlReceiver
from timeoutmgr.transport.sql.session import SqlSession
from timeoutmgr.transport.sql.settings import SqlQueueSettings
from timeoutmgr.transport.sql.split import SplitSession
from timeoutmgr.transport.sql.statements import (
    FrontStatements,
    as_transport,
    lease_statements,
    queue_statements,
)
from timeoutmgr.transport.sql.tables import QueueTables, tables
from timeoutmgr.transport.sql.wakeups import FileVersion, QueueWakeups, Watch
from timeoutmgr.transport.unsettled_messages import ByteBudget

MIGRATIONS: Final = "timeoutmgr.transport.sql:migrations"
_LONGEST_OWNER: Final = 64
_WITHOUT_TRANSACTION: Final = frozenset({TransactionMode.NONE, TransactionMode.RECEIVE_ONLY})


class SqlTransport:
    """Queues in SQLite, PostgreSQL, MySQL or MariaDB, as ``contracts.Transport`` says.

    Given the Database that a store uses, one transaction spans receiving, storing and sending.
    *owner* is the name that this transport's leases carry; two living transports must not share it.
    *destinations*, a transport or a URL, is the broker to which messages with a route go; without
    it, their exchanges and queues are in these tables too.
    """

    def __init__(
        self,
        database: str | URL | Database,
        *,
        schema: str | None = None,
        prefix: str = "timeoutmgr_",
        owner: str | None = None,
        clock: Clock | None = None,
        settings: SqlQueueSettings | None = None,
        destinations: str | Transport | None = None,
    ) -> None:
        self._database = database if isinstance(database, Database) else Database.shared(database)
        self._database.used_by(self)
        self.clock: Final[Clock] = clock or SystemClock()
        self.settings: Final = settings_of(SqlQueueSettings, settings)
        self.budget: Final = ByteBudget(self.settings.buffer_bytes)
        checked_identifier("prefix", prefix)
        self._version_table, self._attributes = f"{prefix}queue_version", {"prefix": prefix}
        self._schema = None if schema is None else checked_identifier("schema", schema)
        self._revisions = MIGRATIONS, self._version_table, schema
        self._database.refuse_attached(schema, "Use a prefix.")
        if not self._database.url.database:
            raise ConfigurationError(
                f"{self._database.describe()} names no database; add its name behind the slash"
            )
        self._destinations = _other_broker(destinations)
        self._tables = tables(self._schema, prefix)
        self._database.unqualified.add(self._tables.messages)
        dialect = self._database.dialect
        statements = queue_statements(self._tables, dialect)
        table = self._tables.messages.fullname
        channel = channel_of(table) if dialect.name == "postgresql" else None
        self._notify_channel = channel if self.settings.notify else None
        self.wakeups: Final = QueueWakeups.of(self._database, table)
        self.lease_statements: Final = lease_statements(self._tables, dialect)
        self.queues: Final = SqlQueues(
            self._database, statements, self.wakeups, self.clock, self._notify_channel
        )
        self._leases = (PipelinedLeases if self._database.can_pipeline else Leases)(
            self._database,
            self.lease_statements,
            _checked_owner(owner or uuid.uuid4().hex),
            self.clock,
            self.settings,
            self._notify_channel,
        )
        self._renewer = LeaseRenewer(
            self._leases,
            self.wakeups,
            self.settings.lease.total_seconds(),
            self.settings.owner_check.total_seconds(),
        )
        self.owned_queues: Final = OwnedQueues(
            self._database, self._tables, self._leases, self._renewer, self.clock
        )
        self._listener = self.wakeups.listener(self._database, channel) if channel else None
        self._version = FileVersion(self._database) if self._database.is_sqlite else None

    @property
    def capabilities(self) -> TransportCapabilities:
        """All modes: queues and store can share one transaction, but without another broker."""
        there = self._destinations
        return TransportCapabilities(
            name="sql",
            modes=frozenset(TransactionMode) if there is None else _WITHOUT_TRANSACTION,
            durable=True,
            forgets_markers=there is not None and not there.capabilities.durable,
            note=f"leases in {self._database.dialect.name}, freed when their owner dies",
        )

    @property
    def owner(self) -> str:
        """The name that this transport's leases carry; a forked child has a name of its own."""
        return self._leases.owner

    @property
    def database(self) -> Database:
        """The database that holds the queues."""
        return self._database

    @property
    def tables(self) -> QueueTables:
        """The tables of the queues."""
        return self._tables

    def describe(self) -> str:
        """Return the URL with every secret masked."""
        here = self._database.describe()
        there = self._destinations
        return here if there is None else f"{here} with destinations at {there.describe()}"

    def install(self) -> None:
        """Create or upgrade the tables; twice and concurrently is fine."""
        with as_transport(self._database):
            upgrades.upgrade(self._database, *self._revisions, self._attributes)

    def is_installed(self) -> bool:
        """Return whether tables of any revision exist."""
        with as_transport(self._database):
            return upgrades.current(self._database, self._version_table, self._schema) is not None

    def ddl(self) -> str:
        """Return the statements that ``install`` would run on an empty database."""
        return upgrades.ddl(self._database, *self._revisions, self._attributes)

    def check(self) -> None:
        """Raise SchemaMissing where ``install`` is needed."""
        with as_transport(self._database):
            upgrades.check(self._database, *self._revisions)

    def message_rows(self) -> PostgreSQLMessageRows | None:
        """Return the table of messages, into which rows of the same database can be moved."""
        if self._database.dialect.name != "postgresql" or self._destinations is not None:
            return None
        return PostgreSQLMessageRows(self._tables, self.wakeups, self._notify_channel)

    def remove_expired(self, limit: int, settle: SettleExpired) -> int:
        """Settle and delete up to *limit* expired messages; return how many."""
        with as_transport(self._database):
            return ExpiredMessages(self._database, self._tables, self.clock).remove(limit, settle)

    def session(self) -> SqlSession:
        """Return a new session."""
        parts: dict[str, Any] = {
            "database": self._database,
            "tables": self._tables,
            "queues": self.queues,
            "clock": self.clock,
            "transport": self,
        }
        if self._destinations is None:
            return SqlSession(**parts)
        return SplitSession(**parts, destinations=self._destinations)

    def make_receiver(
        self, queue: str, prefetch: int, front: FrontStatements | None = None
    ) -> SqlReceiver:
        """Return a consumer of the existing *queue*, in the order of *front*."""
        if self._listener is not None:
            self._listener.start()
        wakeup = self.wakeups.wakeup(queue)
        owner_check = self.settings.owner_check.total_seconds()
        return SqlReceiver(
            queue,
            prefetch,
            database=self._database,
            leases=self._leases,
            renewer=self._renewer,
            wakeup=wakeup,
            watch=Watch(
                wakeup,
                self._version,
                self.settings.polling(self._database.dialect.name),
                owner_check,
            ),
            owner_check=owner_check,
            # Consumers of kombu limit their unacknowledged messages by prefetch.
            budget=self.budget if prefetch else ByteBudget(None),
            front=front,
        )

    def close(self) -> None:
        """Release the session lock, end all threads; the owner's leases are free."""
        self._renewer.stop()
        if self._listener is not None:
            self._listener.stop()
        if self._version is not None:
            self._version.close_idle()
        self._database.leave(self)
        if self._destinations is not None:
            self._destinations.close()


def _checked_owner(owner: str) -> str:
    if not isinstance(owner, str) or len(owner) > _LONGEST_OWNER:
        raise ConfigurationError(
            f"an owner is text of at most {_LONGEST_OWNER} characters, got {owner!r:.80}"
        )
    return owner


def _other_broker(given: str | Transport | None) -> Transport | None:
    """Return the transport of destinations; it may lose messages, since it is not our queue."""
    if not isinstance(given, str):
        if given is not None and not hasattr(given, "capabilities"):
            raise ConfigurationError(f"destinations is a URL or a transport, got {given!r:.80}")
        return given
    url = given.removeprefix("timeoutmgr+")
    if plugins.knows(plugins.TRANSPORTS, url.partition("://")[0].partition("+")[0]):
        return SqlTransport(url)
    from timeoutmgr.transport.kombu_transport import KombuTransport

    return KombuTransport(url, accept_loss=True)
