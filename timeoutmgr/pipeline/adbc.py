"""ADBC connections to PostgreSQL; their errors are translated into timeoutmgr's errors."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, urlencode

from sqlalchemy.dialects import postgresql

from timeoutmgr.database import Database
from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.message.redaction import MASK
from timeoutmgr.pipeline.errors import PipelineUnavailable, SnapshotEnded

_ENDED: Final = ("22023", "55000", "42P01", "25001")
"""PostgreSQL's error codes for a snapshot or partition that no longer exists."""
_AWAY: Final = ("08", "53", "57")
"""Classes of error codes of a server that is unreachable, full or shutting down."""
_SECRETS: Final = ("password", "sslpassword")

_POSTGRESQL: Final[Any] = postgresql.dialect()  # type: ignore[no-untyped-call]  # SQLAlchemy has no types there


@contextmanager
def postgresql_connection(database: Database) -> Iterator[Any]:
    """Open an ADBC connection to *database*, in a transaction; translate its errors."""
    with _our_errors(database), _open(database) as connection:
        yield connection


@contextmanager
def reading_connection(database: Database) -> Iterator[Any]:
    """Open an ADBC connection to *database*, in a read-only transaction; translate its errors."""
    with postgresql_connection(database) as connection:
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield connection


@contextmanager
def _our_errors(database: Database) -> Iterator[None]:
    try:
        import adbc_driver_postgresql  # noqa: F401  # for _open
        from adbc_driver_manager import Error, OperationalError
    except ModuleNotFoundError as error:
        raise PipelineUnavailable(
            "the pipeline needs adbc-driver-postgresql; install it with: pip install "
            "'timeoutmgr[spark]'"
        ) from error
    try:
        yield
    except Error as error:
        _mask(error, database)
        state = getattr(error, "sqlstate", None) or ""
        if state in _ENDED:
            raise SnapshotEnded(
                "the snapshot, or a partition that it covers, disappeared during the run "
                f"({_plain(error)}); run it again"
            ) from error
        if isinstance(error, OperationalError) and (not state or state[:2] in _AWAY):
            raise StorageUnavailable(
                f"{database.describe()} cannot be reached: {_plain(error)}"
            ) from error
        raise


@contextmanager
def _open(database: Database) -> Iterator[Any]:
    from adbc_driver_manager import AdbcConnection
    from adbc_driver_manager.dbapi import Connection as AdbcSession
    from adbc_driver_postgresql import connect

    free = _free_servers(url := _libpq(database))
    try:
        server: Any = free.pop()
    except IndexError:
        server = _Server(connect(url))
    try:
        with AdbcSession(server, AdbcConnection(server.database)) as connection:
            yield connection
    finally:
        free.append(server)


@dataclass(frozen=True, slots=True)
class _Server:
    """A server, with its types as the driver has read them; stands in for a driver's database."""

    database: Any

    def close(self) -> None:
        """Do nothing: later connections use the server again."""


@lru_cache(maxsize=8)
def _free_servers(url: str) -> list[_Server]:
    """Return the servers of *url* that no connection uses.

    Querying a server's types takes the driver longer than reading a small table, so servers are
    kept. Each serves one connection at a time: the driver counts connections without a lock, so two
    threads could lose a count, and then each close of a connection would fail.
    """
    return []


def _libpq(database: Database) -> str:
    # All parameters that psycopg gets. SQLAlchemy's text of the URL does not suit libpq: it keeps
    # spaces, at which libpq shows the password, and turns the spaces of the query into "+".
    return f"postgresql://?{urlencode(_parameters(database), quote_via=quote)}"


def _parameters(database: Database) -> dict[str, object]:
    return {
        "connect_timeout": database.settings.connect_timeout,
        **_POSTGRESQL.create_connect_args(database.url)[1],
        "application_name": "timeoutmgr-pipeline",
    }


def _mask(error: Exception, database: Database) -> None:
    """Mask passwords in *error* itself: Spark logs it as the cause of our error."""
    given = _parameters(database)
    secrets = {str(given[name]) for name in _SECRETS if given.get(name)}
    forms = secrets | {quote(one, safe="") for one in secrets}
    if forms:
        # Longest first: a secret may begin with another secret.
        known = re.compile("|".join(map(re.escape, sorted(forms, key=len, reverse=True))))
        error.args = tuple(known.sub(MASK, str(one)) for one in error.args)


def _plain(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
