"""The mark on timeouts that a claim may have sent without saying so."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, func, select, update

from timeoutmgr.contracts import Key
from timeoutmgr.database.engine import execute_many

from .conditions import within
from .context import Interval, StoreContext


def mark_free_rows(connection: Connection, context: StoreContext, interval: Interval) -> bool:
    """Mark all rows of *interval*; return false, and mark none, where somebody holds one.

    A held row means that a dispatcher is at work in there, whatever the claim's clock says.
    """
    timeouts = context.tables.timeouts
    inside = (
        timeouts.c.endpoint == context.endpoint,
        within(timeouts.c.due, timeouts.c.id, interval.first, interval.last),
    )
    free = [
        Key(*row)
        for row in connection.execute(
            select(timeouts.c.due, timeouts.c.id).where(*inside).with_for_update(skip_locked=True)
        )
    ]
    if context.database.dialect.row_locks:
        # Counted after the locks were taken: a row that came meanwhile only delays the drop.
        count = select(func.count()).select_from(timeouts).where(*inside)
        if connection.execute(count).scalar_one() > len(free):
            return False
    mark(connection, context, free)
    return True


def mark(connection: Connection, context: StoreContext, keys: Sequence[Key]) -> None:
    """Mark the rows of *keys* as maybe sent."""
    timeouts = context.tables.timeouts
    statement = (
        update(timeouts)
        .where(
            timeouts.c.endpoint == bindparam("of"),
            timeouts.c.due == bindparam("at_due"),
            timeouts.c.id == bindparam("at_id"),
        )
        .values(maybe_sent=1)
    )
    rows: list[dict[str, Any]] = [
        {"of": context.endpoint, "at_due": key.due, "at_id": key.id} for key in keys
    ]
    execute_many(connection, statement, rows)
