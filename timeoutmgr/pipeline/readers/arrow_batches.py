"""Rows as Arrow batches: PostgreSQL through ADBC, other databases through SQLAlchemy.

SQLite is not read through ADBC, whose driver brings a second SQLite library into the process. File
locks do not separate two libraries in one process: when the second closes the file, it removes the
log into which the first still writes, and later writes are lost.

Each call is one transaction, which on PostgreSQL may use the snapshot of another transaction.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from sqlalchemy import ColumnElement, Connection, Select
from sqlalchemy.dialects import postgresql

from timeoutmgr.database import Database
from timeoutmgr.pipeline.adbc import reading_connection
from timeoutmgr.pipeline.readers.statements import WHOLE, Part, as_text, statement
from timeoutmgr.pipeline.stores import Store
from timeoutmgr.pipeline.views import Selection, in_numbers

BATCH_ROWS: Final = 10_000
BATCH_BYTES: Final = 4 * 1024 * 1024
"""Approximate size of a batch: with large bodies, it has fewer rows than BATCH_ROWS."""

_POSTGRESQL: Final = postgresql.dialect(paramstyle="named")  # type: ignore[no-untyped-call]  # SQLAlchemy has no types there


def fetch(
    store: Store,
    view: str,
    columns: pa.Schema,
    which: Selection,
    *,
    part: Part = WHOLE,
    snapshot: str | None = None,
    where: Sequence[ColumnElement[bool]] = (),
    order: Sequence[ColumnElement[Any]] = (),
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of *view* for which *where* holds, sorted by the columns *order*, if given.

    Raises StorageUnavailable if the database cannot be reached, and SnapshotEnded if *snapshot*,
    exported by another transaction, has ended.
    """
    wanted = statement(store.tables, view, columns, which, part).where(*where).order_by(*order)
    if store.is_postgresql:
        yield from _as_declared(_from_postgresql(store.database, wanted, snapshot), columns)
        return
    with store.database.read() as connection:
        yield from _as_declared(_through(connection, wanted, columns), columns)


def fetch_within(
    connection: Connection, store: Store, view: str, columns: pa.Schema, which: Selection
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of *view* that the transaction of *connection* sees."""
    wanted = statement(store.tables, view, columns, which)
    yield from _as_declared(_through(connection, wanted, columns), columns)


def _as_declared(batches: Iterator[pa.RecordBatch], columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    numbers = in_numbers(columns)
    for batch in batches:
        if batch.num_rows:
            yield batch.cast(numbers).cast(columns)


def _from_postgresql(
    database: Database, wanted: Select[Any], snapshot: str | None
) -> Iterator[pa.RecordBatch]:
    with reading_connection(database) as connection, connection.cursor() as cursor:
        if snapshot is not None:
            cursor.execute("SET TRANSACTION SNAPSHOT '" + snapshot.replace("'", "''") + "'")
        cursor.adbc_statement.set_options(
            **{"adbc.postgresql.batch_size_hint_bytes": str(BATCH_BYTES)}
        )
        cursor.execute(as_text(wanted, _POSTGRESQL))
        yield from cursor.fetch_record_batch()


def _through(
    connection: Connection, wanted: Select[Any], columns: pa.Schema
) -> Iterator[pa.RecordBatch]:
    types = in_numbers(columns).types
    options = {"stream_results": True, "max_row_buffer": BATCH_ROWS}
    found = connection.execute(wanted, execution_options=options)
    for rows in found.partitions(BATCH_ROWS):
        values = zip(zip(*rows, strict=True), types, strict=True)
        arrays = [pa.array(list(each), its_type) for each, its_type in values]
        yield pa.RecordBatch.from_arrays(arrays, columns.names)
