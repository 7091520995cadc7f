"""History in stores and in archives, without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import insert, select

from timeoutmgr.message.instants import to_micros
from timeoutmgr.pipeline.jobs.archived import ROW, Archive, ArchivedRow, Manifest
from timeoutmgr.pipeline.stores import Store
from timeoutmgr.pipeline.views import INSTANT

DAY = datetime(2024, 3, 1, tzinfo=UTC)
_SCHEMA = pa.schema({"sequence": pa.int64(), "id": pa.string(), "at": INSTANT})


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


def rows_of(store: Store) -> list[ArchivedRow]:
    """Return the rows of history that the store has."""
    history = store.tables.history
    wanted = select(*(history.c[name] for name in ROW)).order_by(history.c.sequence)
    with store.database.read() as connection:
        return [(row[0], row[1], row[2]) for row in connection.execute(wanted)]


def publish(
    archive: Archive, run_id: str, named: str, rows: Sequence[ArchivedRow], **options: Any
) -> None:
    """Have *rows* count in *archive*, as the rows that the run wrote of the store *named*."""
    folder = archive.data_of(run_id) / "endpoint=sales" / "event_date=2024-03-01"
    folder.mkdir(parents=True)
    columns = [pa.array([row[at] for row in rows]) for at in range(len(ROW))]
    columns[-1] = columns[-1].cast(INSTANT)
    table = pa.Table.from_arrays(columns, schema=_SCHEMA)
    pq.write_table(table, folder / "part-0.parquet", **options)
    manifest = Manifest(
        run_id=run_id,
        store=named,
        cutoff=to_micros(DAY + timedelta(days=10)),
        rows=len(rows),
        checksum="0",
        files=archive.files_of(run_id),
    )
    archive.publish(manifest)
