"""Removing what is past its retention, a bounded number at a time."""

from typing import Any, Final

from sqlalchemy import Connection, Table, bindparam, delete, select

from timeoutmgr.crashpoints import reach
from timeoutmgr.database.engine import execute_many
from timeoutmgr.instants import Micros, duration_micros

from .context import StoreContext

AT_ONCE: Final = 1_000


def purge(context: StoreContext) -> int:
    """Remove tombstones, history and silent processes past retention; return how many."""
    settings, tables = context.settings, context.tables

    def work(connection: Connection) -> int:
        now = context.now(connection)
        tombstones = now - duration_micros(settings.tombstone_retention)
        history = now - duration_micros(settings.history_retention)
        removed = _remove(connection, context, tables.keys, "id", "closed_at", tombstones)
        reach("purging.tombstones_removed")
        removed += _remove(connection, context, tables.history, "sequence", "at", history)
        reach("purging.history_removed")
        removed += _remove(connection, context, tables.processes, "owner", "heartbeat", tombstones)
        return removed

    return context.database.run(work)


def _remove(
    connection: Connection, context: StoreContext, table: Table, name: str, age: str, before: Micros
) -> int:
    old: tuple[Any, ...] = (
        table.c.endpoint == context.endpoint,
        table.c[age].is_not(None),
        table.c[age] < before,
    )
    oldest = select(table.c[name]).where(*old).order_by(table.c[age]).limit(AT_ONCE)
    names = connection.execute(oldest).scalars().all()
    # The age is asked again: another row may bear the name by now.
    one = delete(table).where(*old, table.c[name] == bindparam("one"))
    execute_many(connection, one, [{"one": value} for value in names])
    return len(names)
