"""Bulk inserts: on MySQL in packets, on PostgreSQL by a binary COPY through psycopg."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
    text,
)

from timeoutmgr.database.round_trips import as_sqlalchemys
from timeoutmgr.database.texts import KeyText

# --- the limit of a statement on MySQL: ``max_allowed_packet`` ---------------------------------
# PyMySQL writes a body as hexadecimal digits, two for each byte. The server stops reading a
# statement larger than a packet, and closes the connection as in an outage: a message that can
# never be written would count as an outage, and hold up all other messages.

_STATEMENT: Final = 2 * 1024
"""Maximum bytes of an INSERT without its rows."""
_ROW: Final = 9 * 1024
"""Maximum bytes of a row without its long texts: eight texts of 255 characters, and numbers."""
_LONG: Final = ("body", "headers", "properties")
_PACKET: Final = "timeoutmgr_packet"

_Row = dict[str, Any]


def misfit(
    connection: Connection, rows: Sequence[_Row], reserve: Callable[[_Row], int] = lambda _row: 0
) -> str | None:
    """Return why a message does not fit into a statement; None if all fit.

    *reserve* is the number of bytes to leave free beside a row.
    """
    packet = _packet_of(connection)
    if packet is None:
        return None
    for row in rows:
        needed = _STATEMENT + _size(row) + reserve(row)
        if needed > packet:
            return (
                f"message {row['message_id']!r} takes {needed} bytes to write, and the database's "
                f"max_allowed_packet is {packet}; raise that, or lower limits.max_body"
            )
    return None


def in_statements(connection: Connection, rows: Sequence[_Row]) -> Iterator[Sequence[_Row]]:
    """Yield *rows*, each of which fits, in parts that fit into one statement.

    PyMySQL itself splits a batch at a million bytes, not at the limit of the server.
    """
    packet = _packet_of(connection) if rows and "body" in rows[0] else None
    if packet is None:
        yield rows
        return
    part: list[_Row] = []
    room = packet - _STATEMENT
    for row in rows:
        size = _size(row)
        if part and size > room:
            yield part
            part, room = [], packet - _STATEMENT
        part.append(row)
        room -= size
    yield part


def _packet_of(connection: Connection) -> int | None:
    """Return the maximum size of a statement, None if no limit is known.

    It is read once, because it does not change while a connection exists.
    """
    if connection.dialect.name not in {"mysql", "mariadb"}:
        return None
    packet: int | None = connection.info.get(_PACKET)
    if packet is None:
        packet = int(connection.execute(text("SELECT @@max_allowed_packet")).scalar_one())
        connection.info[_PACKET] = packet
    return packet


def _size(row: _Row) -> int:
    # Headers and kombu's properties are ASCII JSON, of which at most half needs escaping.
    return _ROW + 2 * sum(len(row.get(name) or "") for name in _LONG)


# --- COPY in binary form: how PostgreSQL takes a batch of rows fastest, through psycopg --------

FEW: Final = 4
"""Up to this number of rows, a statement takes fewer round trips."""

_BINARY_TYPES: Final[dict[type, str]] = {
    KeyText: "text",
    Text: "text",
    LargeBinary: "bytea",
    BigInteger: "int8",
    Integer: "int4",
    SmallInteger: "int2",
}


def can_copy(engine: Engine) -> bool:
    """Return whether :func:`copy_rows` supports connections of *engine*."""
    return engine.dialect.driver == "psycopg"


def copy_rows(connection: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    """Insert *rows*, at least one, all with the same columns in the same order."""
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
        raised = as_sqlalchemys(error, connection.dialect, driver, statement)
        if raised.connection_invalidated:
            connection.invalidate(error)
        raise raised from error
