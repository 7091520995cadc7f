"""Stores by name: what travels in options and plans is never an address with a password."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from timeoutmgr import plugins
from timeoutmgr.contracts import BulkTables, HasBulkTables, Persistence
from timeoutmgr.database import Database
from timeoutmgr.errors import CombinationRefused, ConfigurationError, SchemaMissing
from timeoutmgr.settings_keys import STORE_PREFIX

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """An opened store: its *name* as it was given, its database and its tables."""

    name: str
    persistence: Persistence
    database: Database
    tables: BulkTables

    @property
    def is_postgresql(self) -> bool:
        """Whether it is read and written through COPY."""
        return self.database.dialect.name == "postgresql"

    def require_tables(self) -> None:
        """Raise SchemaMissing where ``timeoutmgr install`` is needed."""
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
    """Return the store called *name*: a settings file's, or an environment variable's.

    ``sales.toml`` is the persistence of that file, ``main`` the database whose URL is in
    TIMEOUTMGR_STORE_MAIN (*schema* and *prefix* are its tables'), and an empty name what the
    environment's own settings say. Raises ConfigurationError where there is no such store, or
    where settings that say what their tables are called are given others; nothing is connected to.
    """
    if name and not name.endswith(".toml"):
        persistence = _of_variable(name, environ, schema, prefix)
    elif schema is not None or prefix is not None:
        raise ConfigurationError(
            f"{name or 'the environment'} says itself what its tables are called; leave prefix and "
            "schema out"
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
        name=name, persistence=persistence, database=database, tables=persistence.bulk_tables
    )


def url_of(name: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the URL that stands in the environment variable of *name*."""
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


def _of_settings(name: str, environ: Mapping[str, str]) -> Persistence:
    from timeoutmgr.settings_file import configuration_from

    settings = configuration_from(Path(name) if name else None, environ).settings()
    settings.transport.close()
    if settings.persistence is None:
        raise ConfigurationError(
            f"{name or 'the environment'} names no persistence; set persistence = "
            '"postgresql+psycopg://…", or name another store'
        )
    return settings.persistence
