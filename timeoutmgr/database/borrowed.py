"""Use of a caller's driver connection as an SQLAlchemy connection, in the caller's transaction.

The store and the queue run their usual statements on it. Begin, commit, rollback and close are left
to the caller.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, exc
from sqlalchemy.engine import Dialect as SqlDialect
from sqlalchemy.pool import NullPool

from timeoutmgr.database.commits import follow_by
from timeoutmgr.database.drivers import Driver, DriverConnection, driver_of
from timeoutmgr.database.engine import Database
from timeoutmgr.database.failures import Failure, classify, unavailable
from timeoutmgr.errors import CombinationRefused, TransportUnavailable

AfterCommit: TypeAlias = Callable[[Callable[[], None]], object]
"""Takes a call, and runs it after the commit of the caller's transaction."""

_Place: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverTransaction:
    """The open transaction of a driver's *connection*, for ``session=``.

    *after_commit* gets each call that must follow the commit, such as the wake of a poller, and
    must drop it if the transaction is rolled back. Without *after_commit* the wake is sent at once,
    and a timeout that is due before the commit waits for the next poll.
    """

    connection: DriverConnection
    after_commit: AfterCommit | None = None


class _KeptOpen:
    """A driver connection that only the caller commits, rolls back and closes."""

    def __init__(self, driver: Driver, connection: Any) -> None:
        self._driver: Final = driver
        self._connection: Final = connection

    def cursor(self, *_given: Any, **_more: Any) -> Any:
        """Return a cursor with plain tuples as rows."""
        return self._driver.cursor(self._connection)

    def commit(self) -> None:
        """Do nothing: the caller commits."""

    def rollback(self) -> None:
        """Do nothing: the caller rolls back."""

    def close(self) -> None:
        """Do nothing: the caller closes."""

    def __getattr__(self, name: str) -> Any:
        connection = self._connection
        return getattr(connection, name)


@contextmanager
def borrowed(transaction: DriverTransaction, databases: Sequence[Database]) -> Iterator[Connection]:
    """Yield a connection for *transaction* to the member of *databases* in which it is open.

    Raises CombinationRefused for a connection to another database, and for a connection without a
    transaction: an enqueue would be committed at once.
    """
    driver = driver_of(transaction.connection)
    if not driver.is_in_transaction(transaction.connection):
        raise CombinationRefused(
            f"session= with a connection of {driver.name} in autocommit mode",
            "no transaction is open, so a rollback of the caller could not undo the send",
            driver.remedy,
        )
    fitting = [each for each in databases if each.dialect.name in driver.backends]
    found: list[_Place] = []
    for database in fitting:
        with _connection(driver, transaction, database) as connection:
            with _translated(database):
                found = [_place(driver, connection)]
            if _is_in(database, driver, found[0]):
                yield connection
                return
    raise _elsewhere(driver, found, databases)


@contextmanager
def _connection(
    driver: Driver, transaction: DriverTransaction, database: Database
) -> Iterator[Connection]:
    kept_open = _KeptOpen(driver, transaction.connection)
    dialect = _dialect(driver, database)
    pool = NullPool(lambda: kept_open, reset_on_return=None, dialect=dialect)
    engine = Engine(pool, dialect, database.url, hide_parameters=True)
    with engine.connect() as connection:
        follow_by(connection, transaction.after_commit)
        yield connection


def _dialect(driver: Driver, database: Database) -> SqlDialect:
    """Return the dialect of *database*, which knows its server, for the errors of *driver*."""
    _own_place(database, driver)  # the first connection of an engine initializes its dialect
    dialect = database.engine.dialect
    if dialect.dbapi is driver.module or driver.name == "sqlite3":
        return dialect
    dialect = copy.copy(dialect)
    dialect.dbapi = driver.module
    return dialect


_places: Final[WeakKeyDictionary[Database, _Place]] = WeakKeyDictionary()


def _is_in(database: Database, driver: Driver, place: _Place) -> bool:
    if _own_place(database, driver) == place:
        return True
    _places.pop(database, None)  # the server may have been restarted in the meantime
    return _own_place(database, driver) == place


def _own_place(database: Database, driver: Driver) -> _Place:
    found = _places.get(database)
    if found is None:
        with _translated(database), database.engine.connect() as connection:
            found = _places[database] = _place(driver, connection)
    return found


@contextmanager
def _translated(database: Database) -> Iterator[None]:
    """Raise TransportUnavailable, as for a session of SQLAlchemy, if a connection is broken."""
    try:
        yield
    except exc.DBAPIError as error:
        if classify(error) is Failure.STATEMENT:
            raise
        raise TransportUnavailable(str(unavailable(error, database.describe()))) from error


def _place(driver: Driver, connection: Connection) -> _Place:
    found = connection.exec_driver_sql(driver.place).first()
    return () if found is None else tuple(found)


def _elsewhere(
    driver: Driver, found: Sequence[_Place], databases: Sequence[Database]
) -> CombinationRefused:
    where = f" to {found[0][driver.title] or 'a database in memory'}" if found else ""
    ours = ", ".join(dict.fromkeys(each.describe() for each in databases))
    return CombinationRefused(
        f"session= with a connection of {driver.name}{where}",
        "neither the queues nor the timeouts of this endpoint live in the database of that "
        f"connection; they live in {ours or 'no SQL database'}",
        "Use that database for the SQL queue or the persistence, or send without session.",
    )
