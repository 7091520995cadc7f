"""Connections of database drivers: their transactions, cursors and places.

No driver is imported here: a program with a driver's connection has already imported the driver.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final, Protocol, runtime_checkable

from timeoutmgr.errors import CombinationRefused

_IN_TRANSACTION: Final = 1
"""Flag of MySQL's protocol in the server status."""
_LEGACY: Final = -1
"""``sqlite3.LEGACY_TRANSACTION_CONTROL``, which Python 3.11 does not have."""


@runtime_checkable
class DriverConnection(Protocol):
    """A DB-API connection: of psycopg, PyMySQL, mysqlclient or sqlite3."""

    def cursor(self) -> Any:
        """Return a new cursor."""
        ...

    def commit(self) -> None:
        """Commit the open transaction."""
        ...

    def rollback(self) -> None:
        """Roll the open transaction back."""
        ...


class Driver(ABC):
    """Abilities of a driver. *backends* are the databases to which it connects."""

    name: str
    backends: frozenset[str]
    place: str
    """SQL for values that together identify a database."""
    title = 0
    """Index of the value that names the database in an error."""
    remedy: str
    """Sentence on how to begin a transaction."""

    def __init__(self, module: ModuleType) -> None:
        self.module: Final[Any] = module

    @abstractmethod
    def is_in_transaction(self, connection: Any) -> bool:
        """Return whether a change through *connection* would wait for the caller's commit."""

    @abstractmethod
    def cursor(self, connection: Any) -> Any:
        """Return a cursor with plain tuples as rows, whatever the caller's settings."""


class _Psycopg(Driver):
    name = "psycopg"
    backends = frozenset({"postgresql"})
    # The start time, in microseconds, identifies a server; host names and sockets have aliases.
    place = "SELECT current_database(), extract(epoch FROM pg_postmaster_start_time())::text"
    remedy = "Open a block with connection.transaction(), or connect without autocommit."

    def is_in_transaction(self, connection: Any) -> bool:
        if connection.pgconn.pipeline_status:
            raise unusable(connection, "its pipeline answers nothing yet", "Send after its block.")
        idle = self.module.pq.TransactionStatus.IDLE
        return not connection.autocommit or connection.info.transaction_status != idle

    def cursor(self, connection: Any) -> Any:
        return self.module.Cursor(connection, row_factory=self.module.rows.tuple_row)


class _MySql(Driver):
    backends = frozenset({"mysql", "mariadb"})
    place = "SELECT DATABASE(), @@hostname, @@port, @@datadir"

    def cursor(self, connection: Any) -> Any:
        return self.module.cursors.Cursor(connection)


class _PyMySql(_MySql):
    name = "PyMySQL"
    remedy = "Call connection.begin(), or connect without autocommit."

    def is_in_transaction(self, connection: Any) -> bool:
        return bool(not connection.get_autocommit() or connection.server_status & _IN_TRANSACTION)


class _MySqlClient(_MySql):
    name = "mysqlclient"
    remedy = "Call connection.autocommit(False)."

    def is_in_transaction(self, connection: Any) -> bool:
        # This driver does not show whether a BEGIN is open.
        return not connection.get_autocommit()


class _Sqlite(Driver):
    name = "sqlite3"
    backends = frozenset({"sqlite"})
    # Not through its table: this would read the schema, and so begin a snapshot.
    place = "PRAGMA database_list"
    title = -1
    remedy = "Execute BEGIN IMMEDIATE, or connect without isolation_level=None and autocommit=True."

    def is_in_transaction(self, connection: Any) -> bool:
        if connection.in_transaction:
            return True
        # The sender begins the transaction that the driver would begin at the first change.
        mode = getattr(connection, "autocommit", _LEGACY)
        return mode == _LEGACY and connection.isolation_level is not None

    def cursor(self, connection: Any) -> Any:
        cursor = connection.cursor()
        cursor.row_factory = None
        return cursor


_DRIVERS: Final[Mapping[str, type[Driver]]] = {
    "psycopg": _Psycopg,
    "pymysql": _PyMySql,
    "MySQLdb": _MySqlClient,
    "sqlite3": _Sqlite,
}
"""Drivers by the module that has their class ``Connection``."""


def driver_of(connection: object) -> Driver:
    """Return the driver of *connection*; raise CombinationRefused for another object."""
    for name, driver in _DRIVERS.items():
        module: Any = sys.modules.get(name)
        if module is not None and isinstance(connection, _class_in(module)):
            return driver(module)
    raise unusable(
        connection,
        "it is neither a session or connection of SQLAlchemy nor a connection of psycopg, PyMySQL, "
        "mysqlclient or sqlite3",
        "Give such a connection, or a DriverTransaction around it.",
    )


def unusable(session: object, reason: str, remedy: str) -> CombinationRefused:
    """Return the error for an object that a caller gave as *session*."""
    kind = type(session)
    return CombinationRefused(f"session={kind.__module__}.{kind.__qualname__}", reason, remedy)


def _class_in(module: Any) -> type[Any]:
    # In MySQLdb, Connection itself is a function.
    found: Any = (
        module.Connection if module.__name__ != "MySQLdb" else module.connections.Connection
    )
    kind: type[Any] = found
    return kind
