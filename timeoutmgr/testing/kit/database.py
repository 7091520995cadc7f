"""The database behind ``context.session`` in a test: the user's own, or SQLite in memory."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy import Connection, Engine, MetaData, create_engine, event
from sqlalchemy.pool import StaticPool

from timeoutmgr.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy.pool import ConnectionPoolEntry

KitStorage: TypeAlias = Engine | Connection | MetaData | None
"""An engine, an open connection, the tables to create in memory, or None for no tables."""


class KitDatabase:
    """Transactions in which handlers run.

    With an engine, each message has its own transaction. With a connection, each message has a
    savepoint, so that a test can roll back everything. For metadata, and for None, a SQLite
    database in memory is created at its first use. It has one connection: a test must commit its
    own changes before it lets handlers run.
    """

    def __init__(self, given: KitStorage = None) -> None:
        if not isinstance(given, Engine | Connection | MetaData | None):
            raise ConfigurationError(
                "the database of a testing kit is a SQLAlchemy Engine, an open Connection, or the "
                f"MetaData of the tables to create in memory; got {given!r:.80}"
            )
        self._given = given
        self._made: Engine | None = None

    @property
    def engine(self) -> Engine:
        """The engine of the database; creates the SQLite database in memory if needed."""
        if isinstance(self._given, Engine):
            return self._given
        if isinstance(self._given, Connection):
            return self._given.engine
        if self._made is None:
            self._made = _in_memory()
            # Even a kit or fake context that nobody closes leaves no open connection.
            weakref.finalize(self, self._made.dispose)
            if self._given is not None:
                self._given.create_all(self._made)
        return self._made

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """Open a transaction; commit at the end, roll back on any error."""
        if isinstance(self._given, Connection):
            if self._given.dialect.name == "sqlite":
                # Otherwise the driver begins after the savepoint, whose release then commits.
                _begin(self._given)
            with self._given.begin_nested():
                yield self._given
            return
        with self.engine.begin() as connection:
            yield connection

    def close(self) -> None:
        """Close the SQLite database in memory, but not the user's own database."""
        if self._made is not None:
            self._made.dispose()


def _in_memory() -> Engine:
    engine = create_engine(
        "sqlite://",
        poolclass=StaticPool,
        pool_reset_on_return=None,
        connect_args={"check_same_thread": False},
    )
    event.listen(engine, "connect", _begin_by_ourselves)
    event.listen(engine, "begin", _begin)
    return engine


def _begin_by_ourselves(driver: Any, _entry: ConnectionPoolEntry) -> None:
    # The driver begins a transaction too late for a savepoint.
    driver.isolation_level = None


def _begin(connection: Connection) -> None:
    driver: Any = connection.connection.dbapi_connection
    if not driver.in_transaction:  # a session of the test may have begun on the same connection
        connection.exec_driver_sql("BEGIN")
