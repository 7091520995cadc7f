"""History: narrow rows of what happened, written with the change that they tell of."""

from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy import Connection

from timeoutmgr.contracts import Key
from timeoutmgr.instants import Micros

from .context import StoreContext

_ONLY_IN_FULL: Final = frozenset({"scheduled", "rescheduled", "replaced"})


def record(
    connection: Connection, context: StoreContext, event: str, rows: Iterable[dict[str, Any]]
) -> None:
    """Write *rows*, made by :func:`entry`, as far as the ``history`` setting wants *event*."""
    if not is_wanted(context, event):
        return
    fixed = {"event": event, "endpoint": context.endpoint, "node": context.node}
    entries = [row | fixed for row in rows]
    context.writing.insert_rows(connection, context.tables.history, entries)


def is_wanted(context: StoreContext, event: str) -> bool:
    """Return whether the ``history`` setting wants *event*."""
    wanted = context.settings.history
    return wanted == "full" or (wanted != "none" and event not in _ONLY_IN_FULL)


def entry(
    key: Key, at: Micros, destination: str, attempt: int, run_id: str | None
) -> dict[str, Any]:
    """Return what history keeps of one timeout."""
    return {
        "id": key.id,
        "due": key.due,
        "at": at,
        "destination": destination,
        "attempt": attempt,
        "run_id": run_id,
    }
