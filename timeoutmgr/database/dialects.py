"""Abilities of each supported database, in a table; other databases are refused."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import Engine, event
from sqlalchemy.engine import URL

from timeoutmgr.errors import CombinationRefused

# --- servers that imitate PostgreSQL or MySQL: refused by their own names ------------------------
# A version number proves nothing: TiDB reports MySQL 8.0.11, CockroachDB a recent PostgreSQL. A
# server's own name is in its greeting, so that reading it takes no round trip.


@dataclass(frozen=True, slots=True)
class Lookalike:
    """A kind of server, its sign in the greeting, and why it is not supported."""

    name: str
    sign: re.Pattern[str]
    reason: str


LOOKALIKES: Final = (
    Lookalike(
        "CockroachDB",
        re.compile("CockroachDB"),
        "its SKIP LOCKED also passes by rows that are free, and it has no LISTEN",
    ),
    Lookalike(
        "YugabyteDB",
        re.compile("-YB-"),
        "its pg_locks has not been proved here to show the session locks of living owners",
    ),
    Lookalike(
        "TiDB",
        re.compile("TiDB"),
        "its SKIP LOCKED can let go of the very lock that it takes, so that messages go twice",
    ),
    Lookalike(
        "Vitess",
        re.compile("Vitess|PlanetScale"),
        "its GET_LOCK and its SKIP LOCKED have not been proved here across shards",
    ),
)
_REMEDY: Final = "Use PostgreSQL, MySQL or MariaDB itself."
_POSTGRESQL_PARAMETERS: Final = ("crdb_version", "server_version")


def refuse_lookalikes(engine: Engine) -> None:
    """Make each new connection of *engine* raise CombinationRefused for such a server."""

    # Before SQLAlchemy reads the version, which fails if it cannot parse the text.
    @event.listens_for(engine, "connect", insert=True)
    def detect(driver: Any, _record: Any) -> None:
        found = lookalike(greeting_of(driver))
        if found is not None:
            driver.close()
            raise CombinationRefused(f"{found.name} as a database", found.reason, _REMEDY)


def lookalike(greeting: Mapping[str, str]) -> Lookalike | None:
    """Return the kind of server that *greeting*, by parameter, reveals; None if it is supported."""
    said = " ".join(greeting.values())
    return next((kind for kind in LOOKALIKES if kind.sign.search(said)), None)


def greeting_of(driver: Any) -> dict[str, str]:
    """Return the server's greeting, as far as the driver keeps it.

    Of PostgreSQL's drivers psycopg keeps the parameters; PyMySQL keeps the version.
    """
    if hasattr(driver, "get_server_info"):
        return {"version": str(driver.get_server_info())}
    if not hasattr(driver, "info"):
        return {}
    values = {name: driver.info.parameter_status(name) for name in _POSTGRESQL_PARAMETERS}
    return {name: value for name, value in values.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """Abilities of a database, and their SQL.

    *now* is an SQL expression for its clock in UTC microseconds at the moment it is evaluated (not
    at the start of the transaction), None if the host's clock is the only clock. *skip_locked* is
    the suffix of a SELECT that locks rows and skips locked rows.
    """

    name: str
    row_locks: bool
    now: str | None
    skip_locked: str
    minimum: tuple[int, ...]


SQLITE: Final = Dialect(name="sqlite", row_locks=False, now=None, skip_locked="", minimum=(3, 35))
POSTGRESQL: Final = Dialect(
    name="postgresql",
    row_locks=True,
    now="CAST(floor(extract(epoch FROM clock_timestamp()) * 1000000) AS bigint)",
    skip_locked=" FOR UPDATE SKIP LOCKED",
    minimum=(13,),
)
# SYSDATE is the moment of evaluation, the others the start of the statement: it counts at least, if
# a caller's zone falls back meanwhile. UNIX_TIMESTAMP guesses in the hour that the zone repeats.
_MYSQL_NOW: Final = (
    "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
    " + GREATEST(TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)), 0))"
)
MYSQL: Final = Dialect(
    name="mysql",
    row_locks=True,
    now=_MYSQL_NOW,
    skip_locked=" FOR UPDATE SKIP LOCKED",
    minimum=(8, 0, 1),
)
MARIADB: Final = replace(MYSQL, name="mariadb", minimum=(10, 6))

# Version 13 is SQL Server 2016. ``sqlserver`` gives its SELECTs their hints.
MSSQL: Final = Dialect(
    name="mssql",
    row_locks=True,
    now="DATEDIFF_BIG(MICROSECOND, '19700101', SYSUTCDATETIME())",
    skip_locked="",
    minimum=(13,),
)
_MSSQL_DRIVER: Final = "pymssql"

DIALECTS: Final = MappingProxyType(
    {dialect.name: dialect for dialect in (SQLITE, POSTGRESQL, MYSQL, MARIADB, MSSQL)}
)


def dialect_of(name: str) -> Dialect:
    """Return the Dialect for SQLAlchemy's dialect *name*; refuse others with CombinationRefused."""
    try:
        return DIALECTS[name]
    except KeyError:
        raise CombinationRefused(
            f"database {name!r}",
            "its locking and clock have not been proved here",
            "Use sqlite, postgresql+psycopg, mysql+pymysql or mariadb+pymysql.",
        ) from None


def require_experimental(url: URL, experimental: bool) -> None:
    """Raise CombinationRefused for a URL of SQL Server without the setting, or of another driver.

    The URL of another database passes.
    """
    if url.get_backend_name() != MSSQL.name:
        return
    if not experimental:
        raise CombinationRefused(
            "Microsoft SQL Server",
            "its locks (READPAST, UPDLOCK) and its clock have not been proved on a server here, "
            "and a lock that does not hold sends messages twice",
            "Use PostgreSQL, MariaDB, MySQL or SQLite; or set database.experimental = true.",
        )
    if url.get_driver_name() != _MSSQL_DRIVER:
        raise CombinationRefused(
            f"the driver {url.get_driver_name()} for Microsoft SQL Server",
            "its counts of rows and its time-outs have not been examined here",
            f"Begin the URL with mssql+{_MSSQL_DRIVER}://",
        )


_EXTRAS: Final = {
    "postgresql": ("postgresql", "postgresql+psycopg"),
    "mysql": ("mysql", "mysql+pymysql"),
    "mariadb": ("mysql", "mariadb+pymysql"),
    MSSQL.name: ("sqlserver", f"mssql+{_MSSQL_DRIVER}"),
}
"""Extra with the driver of a database, and the beginning of its URL."""


def remedy_for_missing(url: URL) -> str:
    """Return what to do if the driver of *url* is not installed."""
    found = _EXTRAS.get(url.get_backend_name())
    if found is None:
        return "install the driver that it names"
    extra, begins = found
    return f"run pip install 'timeoutmgr[{extra}]', and begin the URL with {begins}://"
