"""Timeouts of all endpoints in one SQL database."""

from typing import Final

from timeoutmgr.contracts import Clock, StoreCapabilities
from timeoutmgr.database import Database
from timeoutmgr.database import upgrade as migrations
from timeoutmgr.errors import CombinationRefused

from .lives import Lives
from .settings import SqlSettings
from .store import SqlTimeoutStore
from .tables import tables

_MIGRATIONS: Final = "timeoutmgr.persistence:sql/migrations"


class SqlPersistence:
    """Keeps timeouts in SQLite, PostgreSQL, MySQL or MariaDB.

    *url* may be a Database that is used elsewhere too; with a URL, the process' shared one is
    taken. *schema* and *prefix* keep installations apart in one database. Raises
    ConfigurationError where they are no plain identifiers.
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
        self._schema, self._prefix = schema, prefix
        self._version_table: Final = f"{prefix}timeouts_version"
        self._settings: Final = settings or SqlSettings()
        self._lives: Final = Lives(self._database)
        if schema is not None and self._database.is_sqlite:
            raise CombinationRefused(
                f"schema {schema!r} on SQLite",
                "a schema there is another, attached file, which no transaction spans safely",
                "Use a prefix.",
            )

    @property
    def capabilities(self) -> StoreCapabilities:
        """What the database can keep."""
        row_locks = self._database.dialect.row_locks
        return StoreCapabilities(
            name=self._database.dialect.name,
            durable=True,
            row_locks=row_locks,
            note="" if row_locks else "one host; a pause longer than a claim can repeat a message",
        )

    @property
    def database(self) -> Database:
        """The database it lives in."""
        return self._database

    def install(self) -> None:
        """Create or upgrade the tables; twice and concurrently is fine."""
        migrations.upgrade(
            self._database, _MIGRATIONS, self._version_table, self._schema, self._attributes()
        )

    def ddl(self) -> str:
        """Return the statements that ``install`` would run on an empty database."""
        return migrations.ddl(
            self._database, _MIGRATIONS, self._version_table, self._schema, self._attributes()
        )

    def check(self) -> None:
        """Raise SchemaMissing where ``timeoutmgr install`` is needed."""
        migrations.check(self._database, _MIGRATIONS, self._version_table, self._schema)

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
            lives=self._lives,
            atomic_dispatch=atomic_dispatch,
        )

    def close(self) -> None:
        """End the lives of the owners that claimed here, and let go of idle connections."""
        self._lives.end_all()
        self._database.leave(self)

    def _attributes(self) -> dict[str, str]:
        return {"prefix": self._prefix}
