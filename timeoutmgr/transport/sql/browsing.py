"""Looking into a queue: its rows as they stand, those in a consumer's hands included."""

from collections.abc import Iterator
from typing import Final

from sqlalchemy import select

from timeoutmgr.database import Database
from timeoutmgr.message import Received
from timeoutmgr.transport.sql.envelopes import from_row
from timeoutmgr.transport.sql.tables import QueueTables

_PAGE: Final = 200


def rows_of(database: Database, tables: QueueTables, queue: str, limit: int) -> Iterator[Received]:
    """Yield up to *limit* messages of *queue* in the order of their arrival, page by page."""
    messages = tables.messages.c
    behind, left = 0, limit
    while left > 0:
        statement = (
            select(tables.messages)
            .where(messages.queue == queue, messages.sequence > behind)
            .order_by(messages.sequence)
            .limit(min(_PAGE, left))
        )
        with database.read() as connection:
            page = connection.execute(statement).all()
        if not page:
            return
        yield from (from_row(queue, row) for row in page)
        behind, left = page[-1].sequence, left - len(page)
