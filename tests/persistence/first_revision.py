"""Rows as the first revision of the tables had them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import insert

from timeoutmgr.contracts import Timeout, TimeoutState
from timeoutmgr.database import Database
from timeoutmgr.persistence.sql.rows import to_row
from timeoutmgr.persistence.sql.tables import tables


def store_as_before(database: Database, prefix: str, timeouts: Sequence[Timeout]) -> None:
    """Store *timeouts* of the endpoint ``e`` as the first revision had them: without a digest."""
    known = tables(None, prefix)
    with database.begin() as connection:
        for one in timeouts:
            key = {"endpoint": "e", "id": one.id, "due": one.due, "version": 0, "maybe_sent": 0}
            key["state"] = TimeoutState.PENDING.value
            connection.execute(insert(known.keys), key)
            connection.execute(insert(known.timeouts), to_row("e", one))
