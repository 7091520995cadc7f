"""Looking into a queue: its rows as they stand, those in a consumer's hands included."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from sqlalchemy import Row, Select, func, select

from timeoutmgr.database import Database
from timeoutmgr.message import Received
from timeoutmgr.transport.portions import BATCH_BYTES, portions
from timeoutmgr.transport.sql.envelopes import LeasedRow, from_row
from timeoutmgr.transport.sql.tables import QueueTables

_PAGE: Final = 200


def rows_of(database: Database, tables: QueueTables, queue: str, limit: int) -> Iterator[Received]:
    """Yield up to *limit* messages of *queue* in the order of their arrival, page by page."""
    messages = tables.messages.c
    behind, left = 0, limit
    while left > 0:
        sizes = (
            select(messages.sequence, func.length(messages.body).label("size"))
            .where(messages.queue == queue, messages.sequence > behind)
            .order_by(messages.sequence)
            .limit(min(_PAGE, left))
        )
        page = _read(database, sizes)
        if not page:
            return
        for some in portions(page, BATCH_BYTES, lambda row: int(row.size)):
            yield from _messages(database, tables, queue, {row.sequence: row.size for row in some})
        behind, left = page[-1].sequence, left - len(page)


def _messages(
    database: Database, tables: QueueTables, queue: str, sizes: dict[int, int]
) -> Iterator[Received]:
    messages = tables.messages
    whole = select(messages).where(messages.c.sequence.in_(sizes)).order_by(messages.c.sequence)
    for row in _read(database, whole):
        leased = {name: getattr(row, name) for name in LeasedRow._fields if name != "size"}
        yield from_row(queue, LeasedRow(**leased, size=sizes[row.sequence]))


def _read(database: Database, statement: Select[Any]) -> Sequence[Row[Any]]:
    with database.read() as connection:
        return connection.execute(statement).all()
