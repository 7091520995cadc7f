"""Rows of timeouts, with no more bytes of bodies in hand together than fit.

A hundred bodies of the largest kind would be gigabytes, several times over while they are sent. A
process that they kill would take them again, and nothing behind them would ever be sent. A large
body is therefore no part of the first answer; as many as fit are read by a second statement.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, Table, case, func, select

from timeoutmgr.contracts import Key, Timeout
from timeoutmgr.persistence.sql.conditions import OnKeys
from timeoutmgr.persistence.sql.context import StoreContext
from timeoutmgr.persistence.sql.rows import COLUMNS, PLACED, from_placed

ALONG: Final = 64 * 1024
"""Bytes of the largest body that comes along with its row."""
TOGETHER: Final = 8 * 1024 * 1024
"""Bytes of bodies in memory together, if a larger body is among them."""

_BODY: Final = COLUMNS.index("body")

Rows = Mapping[Key, Row[Any]]


def columns_with_size(table: Table, names: Iterable[str]) -> Sequence[ColumnElement[Any]]:
    """Return the columns *names*, in which a large body is None, and the ``size`` of the body."""
    size = func.length(table.c.body)
    along = case((size <= ALONG, table.c.body)).label("body")
    return *(along if name == "body" else table.c[name] for name in names), size.label("size")


def fitting(rows: Sequence[Row[Any]]) -> Sequence[Row[Any]]:
    """Return as many of *rows*, from the first on, as fit, and at least the first."""
    if all(row.body is not None for row in rows):
        return rows
    total = 0
    for number, row in enumerate(rows):
        total += row.size
        if number and total > TOGETHER:
            return rows[:number]
    return rows


class Bodies:
    """Reads the large bodies of one endpoint's timeouts."""

    def __init__(self, context: StoreContext) -> None:
        timeouts = context.tables.timeouts
        self._large = OnKeys(context, select(timeouts.c.due, timeouts.c.id, timeouts.c.body).where)

    def first_of(self, connection: Connection, rows: Rows) -> tuple[Rows, Mapping[Key, bytes]]:
        """Return as many of *rows* as fit, and their large bodies.

        They are locked, or of one moment: the bodies are still there.
        """
        if all(row[_BODY] is not None for row in rows.values()):
            return rows, {}
        count = len(fitting(list(rows.values())))
        fit = dict(list(rows.items())[:count])
        large = [key for key, row in fit.items() if row[_BODY] is None]
        if not large:
            return fit, {}
        found = connection.execute(*self._large.of(large))
        return fit, {Key(due, id_): body for due, id_, body in found}


def timeout_of(key: Key, row: Row[Any], bodies: Mapping[Key, bytes]) -> Timeout:
    """Return the timeout of *row*, whose body is among *bodies* where it is large."""
    values = row[: len(PLACED)]
    if row[_BODY] is None:
        values = (*values[:_BODY], bodies[key], *values[_BODY + 1 :])
    return from_placed(values)
