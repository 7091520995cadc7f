"""ADBC's connections to PostgreSQL: their errors are ours, and a worker keeps one between tasks."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, urlencode

from sqlalchemy.dialects import postgresql

from timeoutmgr.database import Database
from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.pipeline.errors import PipelineUnavailable, SnapshotGone
from timeoutmgr.redaction import MASK

_GONE: Final = ("22023", "55000", "42P01", "25001")
"""What PostgreSQL says of a snapshot, or of a partition, that is no more."""
_AWAY: Final = ("08", "53", "57")
"""Classes of what it says when it cannot be reached, is full or shuts down."""
_SECRETS: Final = ("password", "sslpassword")

_POSTGRESQL: Final[Any] = postgresql.dialect()  # type: ignore[no-untyped-call]  # SQLAlchemy has no types there


@contextmanager
def postgresql_connection(database: Database) -> Iterator[Any]:
    """Open a connection of ADBC to *database*, in a transaction; its errors become ours."""
    with _told(database), _open(database) as connection:
        yield connection


@contextmanager
def reading_connection(database: Database) -> Iterator[Any]:
    """Lend a connection in a transaction that reads; where this process keeps one, that.

    A new one costs the server up to as much as the rows of a part: it is a process of its own, and
    has yet to map each page of the memory that they share.
    """
    with _told(database):
        if _kept is None:
            with _begun(database) as connection:
                yield connection
            return
        url = _libpq(database)
        connection = _kept.take(url) or _begun(database)
        try:
            yield connection
            # Out of the transaction: waiting in one would hold back the vacuum.
            connection.adbc_connection.set_autocommit(True)
        except BaseException:
            # Whatever state it is in, that of a COPY half read say: nobody else is to find out.
            connection.close()
            raise
        _kept.put(url, connection)


def _begun(database: Database) -> Any:
    connection = _open(database)
    try:
        _begin(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _begin(connection: Any) -> None:
    connection.adbc_connection.set_autocommit(False)
    with connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")


class _Kept:
    """At most one connection, to the database that was read last."""

    def __init__(self) -> None:
        self._url: str | None = None
        self._connection: Any = None

    def take(self, url: str) -> Any:
        """Return the connection to *url*, in a transaction; None where there is none that lives."""
        from adbc_driver_manager import Error

        connection, self._connection = self._connection, None
        if connection is None:
            return None
        if self._url == url:
            try:
                _begin(connection)
            except Error:  # the server ended it, or was ended: another one will tell
                pass
            else:
                return connection
        connection.close()
        return None

    def put(self, url: str, connection: Any) -> None:
        """Keep *connection*, which is in no transaction; of two, the last."""
        if self._connection is not None:
            self._connection.close()
        self._url, self._connection = url, connection


_kept: _Kept | None = None


def keep_connections() -> None:
    """Have this process keep a connection for the next task; Spark ends it when it has none."""
    global _kept
    _kept = _Kept()


@contextmanager
def _told(database: Database) -> Iterator[None]:
    try:
        from adbc_driver_manager import Error, OperationalError
    except ModuleNotFoundError as error:
        raise no_driver("adbc-driver-postgresql") from error
    try:
        yield
    except Error as error:
        _mask(error, database)
        state = getattr(error, "sqlstate", None) or ""
        if state in _GONE:
            raise SnapshotGone(
                "the snapshot, or a partition that it was to see, went away while the run was "
                f"reading ({_plain(error)}); run it again"
            ) from error
        if isinstance(error, OperationalError) and (not state or state[:2] in _AWAY):
            raise StorageUnavailable(
                f"{database.describe()} cannot be reached: {_plain(error)}"
            ) from error
        raise


def _open(database: Database) -> Any:
    try:
        from adbc_driver_manager import AdbcConnection
        from adbc_driver_manager.dbapi import Connection as AdbcSession
        from adbc_driver_postgresql import connect
    except ModuleNotFoundError as error:
        raise no_driver("adbc-driver-postgresql") from error
    server: Any = _server(connect, _libpq(database))  # it has all that is asked of a database
    return AdbcSession(server, AdbcConnection(server.database))


def no_driver(package: str) -> PipelineUnavailable:
    """Return the error that says how to get *package*."""
    return PipelineUnavailable(
        f"the pipeline needs {package}; install it with: pip install 'timeoutmgr[spark]'"
    )


@dataclass(frozen=True, slots=True)
class _Server:
    """What the driver learnt of a server: its types. It holds no connection."""

    database: Any

    def close(self) -> None:
        """Do nothing: the connection that ends is not the last."""


# To ask a server for its types takes the driver a connection of its own, and longer than to read
# a small table.
@lru_cache(maxsize=8)
def _server(connect: Callable[[str], Any], url: str) -> _Server:
    return _Server(connect(url))


def _libpq(database: Database) -> str:
    # As parameters, all that psycopg gets. SQLAlchemy's own text of the URL is not for libpq: in it
    # spaces stay, at which libpq tells the password, and those of the query become "+".
    return f"postgresql://?{urlencode(_parameters(database), quote_via=quote)}"


def _parameters(database: Database) -> dict[str, object]:
    return {
        "connect_timeout": database.settings.connect_timeout,
        **_POSTGRESQL.create_connect_args(database.url)[1],
        "application_name": "timeoutmgr-pipeline",
    }


def _mask(error: Exception, database: Database) -> None:
    """Take passwords out of *error* itself: with what it leads to, Spark logs it as the cause."""
    given = _parameters(database)
    secrets = {str(given[name]) for name in _SECRETS if given.get(name)}
    forms = secrets | {quote(one, safe="") for one in secrets}
    if forms:
        # The longest first: one may be the begin of another.
        known = re.compile("|".join(map(re.escape, sorted(forms, key=len, reverse=True))))
        error.args = tuple(known.sub(MASK, str(one)) for one in error.args)


def _plain(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
