"""COPY in binary form: how PostgreSQL takes a batch of rows fastest, through psycopg."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Connection,
    Engine,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    exc,
)

from timeoutmgr.database.texts import KeyText

FEW: Final = 4
"""Up to so many rows, a statement takes fewer round trips."""

_BINARY_TYPES: Final[dict[type, str]] = {
    KeyText: "text",
    Text: "text",
    LargeBinary: "bytea",
    BigInteger: "int8",
    Integer: "int4",
    SmallInteger: "int2",
}


def can_copy(engine: Engine) -> bool:
    """Return whether :func:`copy_rows` is for connections of *engine*."""
    return engine.dialect.driver == "psycopg"


def copy_rows(connection: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    """Insert *rows*, at least one row, all of the same columns in the same order."""
    names = list(rows[0])
    quoted = connection.dialect.identifier_preparer
    columns = ", ".join(quoted.quote(name) for name in names)
    statement = f"COPY {quoted.format_table(table)} ({columns}) FROM STDIN (FORMAT BINARY)"
    with _copying(connection, statement) as copy:
        copy.set_types([_BINARY_TYPES[type(table.c[name].type)] for name in names])
        for row in rows:
            copy.write_row(list(row.values()))


@contextmanager
def _copying(connection: Connection, statement: str) -> Iterator[Any]:
    """Open psycopg's COPY of *statement*; its errors are raised as SQLAlchemy's."""
    import psycopg

    driver: Any = connection.connection.driver_connection
    try:
        with driver.cursor() as cursor, cursor.copy(statement) as copy:
            yield copy
    except psycopg.Error as error:
        driver_error: Any = error
        is_lost = connection.dialect.is_disconnect(driver_error, driver, None)
        if is_lost:
            connection.invalidate(error)
        raise exc.DBAPIError.instance(
            statement,
            None,
            error,
            psycopg.Error,
            hide_parameters=True,
            connection_invalidated=is_lost,
        ) from error
