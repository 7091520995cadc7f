"""Rows as Arrow batches: PostgreSQL and SQLite through ADBC, other databases through SQLAlchemy.

Every call is one transaction, which on PostgreSQL may use the snapshot of another transaction.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import ColumnElement, Connection, Select, func
from sqlalchemy.dialects import postgresql, sqlite

from timeoutmgr.database import Database
from timeoutmgr.pipeline.adbc import no_driver, reading_connection
from timeoutmgr.pipeline.readers.statements import WHOLE, Part, as_text, statement
from timeoutmgr.pipeline.stores import Store
from timeoutmgr.pipeline.views import INSTANT, Selection

BATCH_ROWS: Final = 10_000
BATCH_BYTES: Final = 4 * 1024 * 1024
"""Where bodies are large, fewer rows than BATCH_ROWS make a batch."""

# SQLAlchemy's dialects have no types.
_POSTGRESQL: Final = postgresql.dialect(paramstyle="named")  # type: ignore[no-untyped-call]  # SQLAlchemy has no types there
_SQLITE: Final = sqlite.dialect(paramstyle="named")


def fetch(
    store: Store,
    view: str,
    columns: pa.Schema,
    which: Selection,
    *,
    part: Part = WHOLE,
    snapshot: str | None = None,
    where: Sequence[ColumnElement[bool]] = (),
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of *view* for which *where* holds, in any order.

    Raises StorageUnavailable where the database cannot be reached, SnapshotEnded where *snapshot*,
    exported by another transaction, has ended.
    """
    wanted = statement(store.tables, view, columns, which, part).where(*where)
    if store.is_postgresql:
        batches = _from_postgresql(store.database, wanted, snapshot)
    elif store.database.is_sqlite:
        batches = _from_sqlite(store.database, wanted)
    else:
        batches = _from_any(store.database, wanted, columns)
    yield from _as_declared(batches, columns)


def fetch_within(
    connection: Connection, store: Store, view: str, columns: pa.Schema, which: Selection
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of *view* as the transaction of *connection* sees them."""
    wanted = statement(store.tables, view, columns, which)
    yield from _as_declared(_through(connection, wanted, columns), columns)


def _as_declared(batches: Iterator[pa.RecordBatch], columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        arrays = []
        for array, field in zip(batch.columns, columns, strict=True):
            if field.type == INSTANT:
                array = pc.cast(array, pa.int64())
            arrays.append(array if array.type == field.type else pc.cast(array, field.type))
        if batch.num_rows:
            yield pa.RecordBatch.from_arrays(arrays, schema=columns)


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


def _from_sqlite(database: Database, wanted: Select[Any]) -> Iterator[pa.RecordBatch]:
    try:
        from adbc_driver_sqlite import dbapi
    except ModuleNotFoundError as error:
        raise no_driver("adbc-driver-sqlite") from error
    # A database of a new name would be created; ours is there, or was refused before.
    with dbapi.connect(str(database.path)) as connection, connection.cursor() as cursor:
        cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(BATCH_ROWS)})
        cursor.execute(as_text(_filled(wanted), _SQLITE))
        for batch in cursor.fetch_record_batch():
            yield _unfilled(batch, wanted)


# A column of SQLite has no type. The driver guesses it from the first rows, and takes a column that
# is NULL in all of them for a number. So a text that may be NULL is read as '', which no column of
# ours ever holds otherwise.
_MAY_BE_NULL: Final = ("saga_id", "run_id", "hidden_by", "body_sha256")


def _filled(wanted: Select[Any]) -> Select[Any]:
    columns = [
        func.coalesce(column, "").label(column.name) if column.name in _MAY_BE_NULL else column
        for column in wanted.selected_columns
    ]
    return wanted.with_only_columns(*columns)


def _unfilled(batch: pa.RecordBatch, wanted: Select[Any]) -> pa.RecordBatch:
    arrays = [
        pc.replace_with_mask(array, pc.equal(array, ""), pa.scalar(None, pa.string()))
        if name in _MAY_BE_NULL and pa.types.is_string(array.type)
        else array
        for name, array in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _from_any(
    database: Database, wanted: Select[Any], columns: pa.Schema
) -> Iterator[pa.RecordBatch]:
    with database.read() as connection:
        yield from _through(connection, wanted, columns)


def _through(
    connection: Connection, wanted: Select[Any], columns: pa.Schema
) -> Iterator[pa.RecordBatch]:
    plain = pa.schema(
        [
            pa.field(field.name, pa.int64() if field.type == INSTANT else field.type)
            for field in columns
        ]
    )
    options = {"stream_results": True, "max_row_buffer": BATCH_ROWS}
    found = connection.execute(wanted, execution_options=options)
    for rows in found.partitions(BATCH_ROWS):
        values = zip(*rows, strict=True)
        arrays = [
            pa.array(list(each), field.type) for each, field in zip(values, plain, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=plain)
