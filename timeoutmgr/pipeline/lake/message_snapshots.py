"""The table ``pending`` of a lake, beside ``history``: complete pending timeouts at a moment.

Each commit is a snapshot of a store. The mark ``batch`` of the store names its newest snapshot, so
a reader sees either the whole new or the whole previous snapshot; older snapshots are removed.
"""

import re
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import Micros
from timeoutmgr.pipeline.lake.places import open_table, present_table
from timeoutmgr.pipeline.lake.table import (
    BUCKETED,
    WRITTEN,
    Doomed,
    HistoryTable,
    text_field,
    with_columns,
)
from timeoutmgr.pipeline.lake.writer import CountedRows, tried
from timeoutmgr.pipeline.options import ICEBERG, history_place
from timeoutmgr.pipeline.readers.arrow_batches import fetch
from timeoutmgr.pipeline.readers.transactions import oldest_transaction
from timeoutmgr.pipeline.stores import Store, identity
from timeoutmgr.pipeline.views import INSTANT, TO_STORE, Selection

_NAME: Final = "pending"
_SNAPSHOT: Final = pa.schema(
    [pa.field("store", pa.string()), pa.field("snapshot", pa.int64()), pa.field("as_of", INSTANT)]
)
PENDING_WRITTEN: Final = pa.schema(
    [*TO_STORE, *_SNAPSHOT, *(WRITTEN.field(name) for name in BUCKETED)]
)
"""The columns of a pending timeout: the message, and the snapshot's number and moment."""


def pending_place(history: str) -> str:
    """Return the place of the table ``pending`` beside the history table at *history*.

    Raises ConfigurationError if there is no such place: *history* is ``pending`` itself, or ``/``.
    """
    history = history_place("the history table", history)
    folder, sign, name = history.rpartition("." if history.startswith(ICEBERG) else "/")
    if name in ("", _NAME) or folder.endswith("/"):
        raise ConfigurationError(
            f"{history} is {_NAME} itself, or has no place for a table {_NAME} beside it; name the "
            "table of the history in a folder, for example history"
        )
    return f"{folder}{sign}{_NAME}"


def columns_at(place: str) -> pa.Schema:
    """Return the columns of the lake's table at *place*: of ``pending``, or of a history."""
    return PENDING_WRITTEN if re.split("[/.:]", place.rstrip("/"))[-1] == _NAME else WRITTEN


def pending_table(history: str) -> HistoryTable:
    """Return the table ``pending`` beside the history table at *history*."""
    return open_table(pending_place(history), written=PENDING_WRITTEN)


def lake_tables(history: str) -> tuple[HistoryTable, HistoryTable]:
    """Return the tables ``history`` and ``pending`` of a lake; one of them may be missing.

    A young store has pending timeouts, but no event that is old enough for the history. Raises
    ConfigurationError if both are missing.
    """
    pending = pending_table(history)
    opened = present_table(history) if pending.version is None else open_table(history)
    return opened, pending


def stores_in(*tables: HistoryTable) -> set[str]:
    """Return the stores that have rows in *tables*."""
    batches = (batch for table in tables for batch in table.files().read(["store"]))
    return {name for batch in batches for name in batch["store"].unique().to_pylist()}


def require_store(name: str, *tables: HistoryTable) -> str:
    """Return *name*; raise ConfigurationError if *tables* have no commit of that store."""
    if not any(table.marks(name) for table in tables):
        raise ConfigurationError(
            f"--of names {name!r}, which the lake does not have; it has the stores "
            f"{', '.join(sorted(stores_in(*tables))) or '(none)'}"
        )
    return name


def write_pending(store: Store, table: HistoryTable, as_of: Micros) -> int:
    """Commit the pending timeouts of *store* as its newest snapshot; return how many.

    Leave out timeouts that a migration has hidden: they are on their way to another place. On
    PostgreSQL the marks name the server for ``require_same``; call that first if the table may have
    a snapshot of another server.
    """
    name = identity(store)
    return tried(table, lambda: _commit(store, table, name, as_of))


def _commit(store: Store, table: HistoryTable, name: str, as_of: Micros) -> int:
    number = table.marks(name).get("batch", 0) + 1
    server = oldest_transaction(store)._asdict() if store.is_postgresql else {}
    timeouts = store.tables.timeouts.c
    # In key order, so that a batch spans few days: each day is a folder of the table.
    keyed = (timeouts.endpoint, timeouts.due, timeouts.id)
    shown = [timeouts.hidden_by.is_(None)]
    rows = fetch(store, "pending", TO_STORE, Selection(), where=shown, order=keyed)
    more = {"store": name, "snapshot": number, "as_of": as_of}
    written = (with_columns(one, PENDING_WRITTEN, "due", more) for one in rows)
    found = CountedRows(PENDING_WRITTEN, written)
    found.append_to(table, name, {"batch": number, **server})
    table.refresh()
    older = tuple(one for one in _snapshots(table, name) if one != number)
    if older:
        table.remove(Doomed("snapshot", older, name))
    return found.count


def _snapshots(table: HistoryTable, store: str) -> list[int]:
    found = set[int]()
    for batch in table.files().read(["snapshot", "store"]):
        found |= {*batch.filter(pc.equal(batch["store"], store))["snapshot"].to_pylist()}
    return sorted(found)


def newest_snapshot(
    table: HistoryTable, store: str, columns: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield *columns* of the timeouts in the newest snapshot of *store* in *table*."""
    number = table.marks(store).get("batch", 0)
    wanted = (text_field("store") == store) & (ds.field("snapshot") == number)
    for batch in table.files().matching(columns.names, wanted):
        yield batch.cast(columns)
