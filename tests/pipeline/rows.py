"""Rows to store, and stored rows."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from sqlalchemy import func, select, text

from timeoutmgr.message.routes import timeout_id
from timeoutmgr.pipeline.readers.arrow_batches import fetch
from timeoutmgr.pipeline.readers.transactions import oldest_transaction
from timeoutmgr.pipeline.stores import Store, open_store
from timeoutmgr.pipeline.views import TO_STORE, Selection, projected
from timeoutmgr.pipeline.writers.loader import Loader

DUE = datetime(2031, 5, 1, 12, tzinfo=UTC)


def row(number: int, **changed: Any) -> dict[str, Any]:
    message_id = f"m{number}"
    return {
        "endpoint": "sales",
        "id": timeout_id("sales", message_id),
        "due": DUE + timedelta(seconds=number),
        "destination": "billing",
        "saga_id": None if number % 2 else f"saga-{number}",
        "message_id": message_id,
        "headers": '{"NServiceBus.MessageId":"' + message_id + '"}',
        "body": f'{{"number": {number}}}'.encode(),
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "created": DUE - timedelta(days=1),
    } | changed


def batch(rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=TO_STORE)


def load() -> None:
    """Load as many rows as the arguments say, in chunks of ten; a test kills the process."""
    name, rows = sys.argv[1:]
    rows_ = [batch([row(number) for number in range(int(rows))])]
    Loader(open_store(name), run_id="r").load(rows_, chunk_rows=10)


def count(store: Store, table: str) -> int:
    statement = select(func.count()).select_from(getattr(store.tables, table))
    with store.database.read() as connection:
        return int(connection.execute(statement).scalar_one())


def read(store: Store, view: str, **which: Any) -> list[dict[str, Any]]:
    """Return all rows of *view*, in the order of ids."""
    batches = fetch(store, view, projected(view, None), Selection(**which))
    return sorted((one for each in batches for one in each.to_pylist()), key=lambda one: str(one))


def settle(store: Store) -> None:
    """Return once all transactions that were open at the last event have ended.

    The server is not ours alone, and transactions of other databases hold every stream back.
    """
    last = text(f"SELECT CAST(CAST(max(xid) AS text) AS bigint) FROM {store.tables.history.name}")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with store.database.read() as connection:
            newest = connection.execute(last).scalar_one()
        if newest is None or oldest_transaction(store)[0] > int(newest):
            return
        time.sleep(0.02)
    raise AssertionError("another session keeps a transaction open on this server")
