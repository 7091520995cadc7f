"""Transactions on PostgreSQL in one or two round trips, by psycopg without SQLAlchemy.

For the statements that every message of a broker needs. A short transaction takes 0.6 to 0.9 ms of
processor time and four or five round trips with SQLAlchemy, and 0.1 to 0.2 ms here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import Dialect, Engine, exc
from sqlalchemy.sql.expression import Executable

from timeoutmgr.database.failures import is_read_only
from timeoutmgr.database.idle_connections import is_interrupted


def can_pipeline(engine: Engine) -> bool:
    """Return whether the functions of this module support connections of *engine*."""
    if engine.dialect.driver != "psycopg":
        return False
    import psycopg

    return psycopg.Pipeline.is_supported()


def as_sqlalchemys(error: Any, dialect: Dialect, driver: Any, statement: str) -> exc.DBAPIError:
    """Return psycopg's *error* as SQLAlchemy would raise it."""
    import psycopg

    made: Any = exc.DBAPIError.instance(
        statement,
        None,
        error,
        psycopg.Error,
        hide_parameters=True,
        connection_invalidated=dialect.is_disconnect(error, driver, None),
    )
    raised: exc.DBAPIError = made
    return raised


class DriverStatement:
    """A statement of SQLAlchemy, compiled once for psycopg."""

    def __init__(
        self, statement: Executable, engine: Engine, columns: Sequence[str] | None = None
    ) -> None:
        """Compile *statement*; *columns* are those of an INSERT."""
        element: Any = statement  # its compile() has no type
        compiled = element.compile(dialect=engine.dialect, column_keys=columns)
        self.text: Final = str(compiled)
        self._constants = {name: one for name, one in compiled.params.items() if one is not None}
        processors = {
            name: bind.type.dialect_impl(engine.dialect).bind_processor(engine.dialect)
            for bind, name in compiled.bind_names.items()
        }
        self._processors = {name: each for name, each in processors.items() if each is not None}

    def values(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return *given* in psycopg's form, with the constants of the statement."""
        values = {**self._constants, **given}
        for name, process in self._processors.items():
            values[name] = process(values[name])
        return values


class PipelinedTransaction:
    """An open transaction, which sends a statement together with the statements before it.

    The error of a statement is raised when an answer is read, at the latest by the commit.
    """

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    def execute(self, statement: DriverStatement, given: Mapping[str, Any]) -> Any:
        """Send *statement*; return psycopg's cursor, whose result is complete after the commit."""
        return self._driver.execute(statement.text, statement.values(given))


@contextmanager
def pipelined(engine: Engine) -> Iterator[PipelinedTransaction]:
    """Open a transaction on a connection of *engine*; commit at the end, otherwise roll back."""
    with _lent(engine) as driver, driver.pipeline():
        yield PipelinedTransaction(driver)
        driver.commit()


def execute_alone(engine: Engine, statement: DriverStatement, given: Mapping[str, Any]) -> Any:
    """Execute *statement*, which returns rows, in its own transaction; return the rows.

    Connections of *engine* commit each statement.
    """
    with _lent(engine) as driver:
        return driver.execute(statement.text, statement.values(given)).fetchall()


@contextmanager
def _lent(engine: Engine) -> Iterator[Any]:
    """Yield a driver's connection from the pool; raise its errors as SQLAlchemy's."""
    import psycopg

    held: Any = None
    try:
        held = engine.raw_connection()
        yield held.driver_connection
    except psycopg.Error as error:
        driver = None if held is None else held.driver_connection
        raised = as_sqlalchemys(error, engine.dialect, driver, "a statement of the queue")
        if held is not None and (raised.connection_invalidated or is_read_only(raised)):
            engine.pool._invalidate(held, error)  # and older connections, as SQLAlchemy does
        raise raised from error
    except BaseException as error:
        # Interrupted in a statement: its answer would be taken for the answer to the next.
        if held is not None and is_interrupted(held.driver_connection):
            held.invalidate(error)
        raise
    finally:
        if held is not None:
            held.close()
