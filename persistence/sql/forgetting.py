"""Removing an endpoint from the tables, so that the last one can take them with it."""

from dataclasses import fields
from typing import Final

from sqlalchemy import Connection, Table, delete, func, select

from timeoutmgr.crashpoints import reach
from timeoutmgr.database import Database
from timeoutmgr.errors import FeatureRefused

from .tables import Tables

_USED_BY: Final = ("timeouts", "keys", "history", "endpoints", "processes")
"""An endpoint with a row in one of these has used the tables, and may again."""


def forget(database: Database, tables: Tables, endpoint: str, *, force: bool) -> bool:
    """Delete all that is kept of *endpoint*; return whether no other endpoint is left.

    Raises FeatureRefused while timeouts of it are pending, unless *force* gives them up.
    """

    def work(connection: Connection) -> bool:
        timeouts = tables.timeouts
        own = select(func.count()).select_from(timeouts).where(timeouts.c.endpoint == endpoint)
        pending = connection.execute(own).scalar_one()
        if pending and not force:
            raise FeatureRefused(
                f"{pending} timeouts of {endpoint!r} are pending, and would be lost; let its "
                "timeout manager send them, migrate them, or use force"
            )
        for each in all_tables(tables):
            if "endpoint" in each.c:
                connection.execute(delete(each).where(each.c.endpoint == endpoint))
                reach("forgetting.rows_deleted")
        used = (getattr(tables, name) for name in _USED_BY)
        return not any(connection.execute(select(each).limit(1)).first() for each in used)

    return database.run(work)


def all_tables(tables: Tables) -> list[Table]:
    """Return every table."""
    return [getattr(tables, each.name) for each in fields(tables)]
