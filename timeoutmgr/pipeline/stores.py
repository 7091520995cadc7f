"""Stores by name, so that options and plans contain no address with a password."""

import gc
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from sqlalchemy import text

from timeoutmgr import plugins
from timeoutmgr.contracts import Persistence
from timeoutmgr.database import Database, as_database
from timeoutmgr.database.places import server_of
from timeoutmgr.database.row_moves import BulkTables, HasBulkTables
from timeoutmgr.endpoint.configuration import EndpointSettings
from timeoutmgr.errors import CombinationRefused, ConfigurationError, SchemaMissing
from timeoutmgr.message.validation import Limits
from timeoutmgr.settings.schema import STORE_PREFIX

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """An opened store: its *name* as given, its database and its tables."""

    name: str
    persistence: Persistence
    database: Database
    tables: BulkTables

    @property
    def is_postgresql(self) -> bool:
        """Whether the store is in PostgreSQL, which is read and written through COPY."""
        return self.database.dialect.name == "postgresql"

    def require_tables(self) -> None:
        """Raise SchemaMissing if ``timeoutmgr install`` is needed."""
        path = self.database.path
        if path is not None and not path.exists():  # to connect would create it
            raise SchemaMissing(f"there is no file {path}; run `timeoutmgr install`")
        self.persistence.check()


def variable_of(name: str) -> str:
    """Return the environment variable that holds the URL of the store *name*."""
    return STORE_PREFIX + name.upper().replace("-", "_")


def open_store(
    name: str,
    environ: Mapping[str, str] = os.environ,
    *,
    schema: str | None = None,
    prefix: str | None = None,
) -> Store:
    """Return the store *name*, from a settings file or an environment variable, unconnected.

    ``sales.toml`` is the persistence of that file, ``main`` the database whose URL is in
    TIMEOUTMGR_STORE_MAIN (with its tables' *schema* and *prefix*), and an empty name the store of
    the environment's own settings. Raises ConfigurationError if the store is unknown, or if
    *schema* or *prefix* is given with settings, which define these themselves.
    """
    if _is_variable(name):
        persistence = _of_variable(name, environ, schema, prefix)
    elif schema is not None or prefix is not None:
        raise ConfigurationError(
            f"{name or 'the environment'} names its tables itself; leave out prefix and schema"
        )
    else:
        persistence = _of_settings(name, environ)
    database = persistence.database
    if database is None or not isinstance(persistence, HasBulkTables):
        raise CombinationRefused(
            f"the store {name!r} in the data pipeline",
            f"{persistence.capabilities.name} keeps no tables that could be read in parts",
            "Name a store in SQLite, PostgreSQL, MySQL or MariaDB.",
        )
    return Store(
        name=name,
        persistence=persistence,
        database=as_database(database),
        tables=persistence.bulk_tables,
    )


def url_of(name: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the URL in the environment variable of the store *name*."""
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            "a store is named by a word or by a settings file, so that no password is in a plan or "
            "a log; put the URL into TIMEOUTMGR_STORE_<NAME> and give <name>, or give a .toml file"
        )
    variable = variable_of(name)
    url = environ.get(variable)
    if not url:
        raise ConfigurationError(
            f"there is no store {name!r}: the environment variable {variable} is not set; set it "
            "to the URL of its database, also where Spark's workers run"
        )
    return url


def _of_variable(
    name: str, environ: Mapping[str, str], schema: str | None, prefix: str | None
) -> Persistence:
    url = url_of(name, environ)
    scheme = url.partition("://")[0].partition("+")[0]
    options = {"schema": schema, "prefix": prefix}
    given = {key: value for key, value in options.items() if value is not None}
    made: Persistence = plugins.load(plugins.PERSISTENCE, scheme)(url, **given)
    return made


def limits_of(name: str) -> Limits:
    """Return the limits of messages in the settings *name*, or defaults for a variable's store."""
    return Limits() if _is_variable(name) else _settings(name, os.environ).limits


def _is_variable(name: str) -> bool:
    return bool(name) and not name.endswith(".toml")


def _settings(name: str, environ: Mapping[str, str]) -> EndpointSettings:
    from timeoutmgr.settings.file import configuration_from

    settings = configuration_from(Path(name) if name else None, environ).settings()
    settings.transport.close()
    return settings


def _of_settings(name: str, environ: Mapping[str, str]) -> Persistence:
    settings = _settings(name, environ)
    if settings.persistence is None:
        raise ConfigurationError(
            f"{name or 'the environment'} names no persistence; set persistence = "
            '"postgresql+psycopg://…", or name another store'
        )
    return settings.persistence


_kept: dict[object, Store] = {}
"""The stores that this process has opened by name, with their connections: a worker of Spark runs
many tasks in turn."""


@dataclass(frozen=True, slots=True)
class NamedStore:
    """The name of a store: workers get it, and open the store themselves."""

    name: str
    schema: str | None = None
    prefix: str | None = None

    @classmethod
    def of(cls, store: str | Store) -> "NamedStore":
        """Return the name by which workers find *store*, an opened store or a name."""
        if isinstance(store, str):
            return cls(store)
        if not store.name or store.name.endswith(".toml"):
            return cls(store.name)  # the settings have all the rest
        table = store.tables.timeouts
        return cls(store.name, table.schema, table.name.removesuffix("timeouts"))

    def open(self) -> Store:
        """Return the store, always the same object in this process; see ``open_store``."""
        # With another file or URL, the same name is another store.
        path, url = Path(self.name), os.environ.get(variable_of(self.name))
        key = (self, url, path.stat().st_mtime_ns if path.is_file() else None)
        if key not in _kept:
            _kept[key] = open_store(self.name, schema=self.schema, prefix=self.prefix)
        return _kept[key]


@cache
def keep_modules() -> None:
    """Exclude the imported modules from garbage collection, once per process.

    A worker of Spark collects after each task, and would visit every object of every module: 80 ms
    of processor time, while a small table is read in 20 ms.
    """
    gc.freeze()


# The server knows the schema of a table, and the database behind a pooler's name.
_INSIDE: Final = (
    "SELECT current_database(), (SELECT n.nspname FROM pg_class c JOIN pg_namespace n "
    "ON n.oid = c.relnamespace WHERE c.oid = to_regclass(:table))"
)


def identity(store: Store) -> str:
    """Return the name of *store* in history tables.

    The name does not depend on the user, the driver, the environment or the spelling of the URL.

    On PostgreSQL the server is asked. Raises StorageUnavailable.
    """
    url, table = store.database.url, store.tables.history
    if not store.is_postgresql:
        return f"{server_of(url, table.schema)} {table.name}"
    asked = store.database.engine.dialect.identifier_preparer.format_table(table)
    with store.database.read() as connection:
        database, schema = connection.execute(text(_INSIDE), {"table": asked}).one()
    named = schema or table.schema
    return f"{server_of(url, database, {})} {f'{named}.' if named else ''}{table.name}"
