"""History in stores."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import insert, select

from timeoutmgr.message.instants import Micros, to_micros
from timeoutmgr.pipeline.lake.table import ROW
from timeoutmgr.pipeline.stores import Store

DAY = datetime(2024, 3, 1, tzinfo=UTC)


def write_events(store: Store, numbers: Iterable[int], **changed: Any) -> None:
    """Write an event of long ago into the history of *store* for each of *numbers*."""
    rows = [
        {
            **{"id": f"id{number}", "event": "dispatched", "due": to_micros(DAY)},
            "at": to_micros(DAY + timedelta(days=number % 3, hours=number % 24)),
            "endpoint": "sales" if number % 2 else "ship/ping",
            **{"destination": f"q{number % 5}", "attempt": 0, "node": "n", "run_id": None},
        }
        | changed
        for number in numbers
    ]
    with store.database.begin() as connection:
        connection.execute(insert(store.tables.history), rows)


def rows_of(store: Store) -> list[tuple[int, str, Micros]]:
    """Return the rows of history that the store has."""
    history = store.tables.history
    wanted = select(*(history.c[name] for name in ROW)).order_by(history.c.sequence)
    with store.database.read() as connection:
        return [(row[0], row[1], row[2]) for row in connection.execute(wanted)]
