"""Timeouts of all endpoints in one SQL database."""

from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, func, select

from timeoutmgr.contracts import Clock, EndpointReport, Layout, StoreCapabilities, StoreMarker
from timeoutmgr.crashpoints import reach
from timeoutmgr.database import Database
from timeoutmgr.database import upgrade as migrations
from timeoutmgr.database.row_moves import BulkTables
from timeoutmgr.database.session_locks import Liveness
from timeoutmgr.message.field_types import settings_of

from .context import SqlSettings
from .maintenance import all_tables, forget
from .markers import Markers
from .partitions.catalog import Whole
from .partitions.upkeep import first_ranges, lay_out, layout
from .store import SqlTimeoutStore
from .tables import TimeoutTables, tables

if TYPE_CHECKING:
    from timeoutmgr.migration import MigrationLedger, Source, Target

_MIGRATIONS: Final = "timeoutmgr.persistence:sql/migrations"


class SqlPersistence:
    """Keeps timeouts in SQLite, PostgreSQL, MySQL or MariaDB.

    *url* may be a Database that is also used elsewhere; for a URL, the process' shared Database is
    used. *schema* and *prefix* separate installations in one database. Raises ConfigurationError if
    they are not plain identifiers.
    """

    def __init__(
        self,
        url: str | Database,
        *,
        schema: str | None = None,
        prefix: str = "timeoutmgr_",
        settings: SqlSettings | None = None,
    ) -> None:
        self._database: Final = url if isinstance(url, Database) else Database.shared(url)
        self._database.used_by(self)
        self._tables: Final = tables(schema, prefix)
        self._database.unqualified.add(self._tables.timeouts)
        self._markers: Final = Markers(self._database, self._tables.endpoints)
        self._schema, self._prefix = schema, prefix
        self._version_table: Final = f"{prefix}timeouts_version"
        self._revisions: Final = _MIGRATIONS, self._version_table, schema
        self._attributes: Final = {"prefix": prefix}
        self._settings: Final = settings_of(SqlSettings, settings)
        self._liveness: Final = Liveness(self._database)
        self._whole: Final = Whole(self._database, self._tables.timeouts)
        self._database.refuse_attached(schema, "Use a prefix.")

    @property
    def capabilities(self) -> StoreCapabilities:
        """Capabilities of the database."""
        row_locks = self._database.dialect.row_locks
        return StoreCapabilities(
            name=self._database.dialect.name,
            durable=True,
            row_locks=row_locks,
            note="" if row_locks else "one host; a pause longer than a claim can repeat a message",
        )

    @property
    def database(self) -> Database:
        """The database of the tables."""
        return self._database

    @property
    def bulk_tables(self) -> BulkTables:
        """The tables, for the data pipeline."""
        return BulkTables(
            timeouts=self._tables.timeouts,
            keys=self._tables.keys,
            history=self._tables.history,
            labels=self._tables.labels,
            runs=self._tables.runs,
            batches=self._tables.batches,
            history_kept=self._settings.history,
        )

    def install(self) -> None:
        """Create or upgrade the tables; twice and concurrently is fine.

        On PostgreSQL, partitions are created if no timeouts are stored yet.
        """
        migrations.upgrade(self._database, *self._revisions, self._attributes)
        if self._has_ranges:
            lay_out(self._whole)

    def ddl(self) -> str:
        """Return the statements that ``install`` would run on an empty database now."""
        revisions = migrations.ddl(self._database, *self._revisions, self._attributes)
        return revisions + (first_ranges(self._whole) if self._has_ranges else "")

    def check(self) -> None:
        """Raise SchemaMissing if ``timeoutmgr install`` is needed."""
        migrations.check(self._database, *self._revisions)

    def uninstall(self, endpoint: str, *, force: bool = False) -> bool:
        """Remove all data of *endpoint*; drop tables that no other endpoint uses; return whether.

        Raises FeatureRefused while it has pending timeouts, unless *force* gives them up.
        """
        if not forget(self._database, self._tables, endpoint, force=force):
            return False
        reach("uninstall.rows_deleted")
        migrations.remove(
            self._database, self._version_table, self._schema, all_tables(self._tables)
        )
        return True

    def marker(self, endpoint: str) -> StoreMarker | None:
        """Return the marker of *endpoint*, or None."""
        return self._markers.read(endpoint)

    def propose_marker(self, endpoint: str, word: str, broker: str) -> StoreMarker:
        """Store *word*, unconfirmed, unless there is a marker; return the stored marker."""
        return self._markers.propose(endpoint, word, broker)

    def confirm_marker(self, endpoint: str, word: str, broker: str) -> None:
        """Store *word* as the marker that *broker* bears."""
        self._markers.confirm(endpoint, word, broker)

    def layout(self) -> Layout | None:
        """Return how PostgreSQL partitions the pending timeouts; None for other databases."""
        if self._database.dialect.name != "postgresql":
            return None
        return layout(self._whole, self._settings)

    def endpoints(self) -> list[EndpointReport]:
        """Return the endpoints that have pending timeouts in these tables, by name."""
        return with_pending(self._database, self._tables)

    def timeouts(
        self, endpoint: str, clock: Clock, *, atomic_dispatch: bool = False
    ) -> SqlTimeoutStore:
        """Return the timeout store of *endpoint*."""
        return SqlTimeoutStore(
            endpoint,
            clock,
            database=self._database,
            tables=self._tables,
            settings=self._settings,
            liveness=self._liveness,
            atomic_dispatch=atomic_dispatch,
        )

    def migration_source(
        self, endpoint: str, clock: Clock, *, queues_only: bool = False
    ) -> "Source":
        """Return the pending timeouts of *endpoint*, as ``MigrationPlaces`` says."""
        from .migration import SqlSource

        return SqlSource(self.timeouts(endpoint, clock).context, self._name, queues_only)

    def migration_target(self, endpoint: str, clock: Clock) -> "Target":
        """Return the store of *endpoint*, as the target of a migration."""
        from .migration import SqlTarget

        return SqlTarget(self.timeouts(endpoint, clock).context, self._name)

    def migration_ledger(self, endpoint: str, clock: Clock) -> "MigrationLedger":
        """Return the ledger of the migrations of *endpoint*."""
        from .migration import SqlMigrationLedger

        return SqlMigrationLedger(self.timeouts(endpoint, clock).context)

    def close(self) -> None:
        """Release the session locks of the owners that claimed here, and close idle connections."""
        self._liveness.release_all()
        self._database.leave(self)

    @property
    def _name(self) -> str:
        place = f"{self._schema}.{self._prefix}" if self._schema else self._prefix
        path = self._database.path
        # A run may be continued from another folder.
        file = self._database.describe() if path is None else f"sqlite:///{path.resolve()}"
        return f"{file} {place}"

    @property
    def _has_ranges(self) -> bool:
        is_postgresql = self._database.dialect.name == "postgresql"
        return is_postgresql and self._settings.partitions != "off"


def with_pending(database: Database, tables: TimeoutTables) -> list[EndpointReport]:
    """Return the endpoints that have pending timeouts, by name.

    One probe of the primary key finds the next endpoint; a DISTINCT would read every row.
    """
    timeouts, processes = tables.timeouts, tables.processes
    found: list[EndpointReport] = []
    with database.read() as connection:
        name = _next(connection, tables, "")
        while name is not None:
            earliest = select(func.min(timeouts.c.due)).where(timeouts.c.endpoint == name)
            seen = select(func.max(processes.c.heartbeat)).where(processes.c.endpoint == name)
            due = connection.execute(earliest).scalar()
            if due is not None:  # its last timeout may just have been sent
                last = connection.execute(seen).scalar() or 0
                found.append(EndpointReport(endpoint=name, earliest=due, last_heartbeat=last))
            name = _next(connection, tables, name)
    return found


def _next(connection: Connection, tables: TimeoutTables, behind: str) -> str | None:
    endpoint = tables.timeouts.c.endpoint
    statement = select(endpoint).where(endpoint > behind).order_by(endpoint).limit(1)
    name: str | None = connection.execute(statement).scalar()
    return name
