"""Inserts of many rows: on MySQL in packets, on PostgreSQL by a binary COPY through psycopg."""

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

# --- how much one statement may carry to MySQL: ``max_allowed_packet`` ------------------------
# PyMySQL writes a body as hexadecimal digits, two for each byte. The server stops reading a
# statement larger than a packet and closes the connection, as if it were away: a message that can
# never be written would count as an outage, and keep back all other messages.

_STATEMENT: Final = 2 * 1024
"""Bytes of an INSERT beside its rows, at most."""
_ROW: Final = 9 * 1024
"""Bytes of a row beside its long texts: eight of 255 signs, and numbers, at most."""
_LONG: Final = ("body", "headers", "properties")
_PACKET: Final = "timeoutmgr_packet"

_Row = dict[str, Any]


def misfit(
    connection: Connection, rows: Sequence[_Row], reserve: Callable[[_Row], int] = lambda _row: 0
) -> str | None:
    """Return why a message fits in no statement; None if all fit.

    *reserve* says how many bytes are to stay free beside a row.
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
    """Yield *rows*, which fit each, in parts that one statement can carry.

    PyMySQL cuts a batch itself, but at a million bytes, not at the limit of the server.
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
    """Return how large a statement may be, None where nothing is known to bound it.

    It is asked for once, since it stays as it is while a connection lives.
    """
    if connection.dialect.name not in {"mysql", "mariadb"}:
        return None
    packet: int | None = connection.info.get(_PACKET)
    if packet is None:
        packet = int(connection.execute(text("SELECT @@max_allowed_packet")).scalar_one())
        connection.info[_PACKET] = packet
    return packet


def _size(row: _Row) -> int:
    # Headers and kombu's properties are JSON in ASCII, of which half at most is to be escaped.
    return _ROW + 2 * sum(len(row.get(name) or "") for name in _LONG)


# --- COPY in binary form: how PostgreSQL takes a batch of rows fastest, through psycopg --------

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
        raised = as_sqlalchemys(error, connection.dialect, driver, statement)
        if raised.connection_invalidated:
            connection.invalidate(error)
        raise raised from error
