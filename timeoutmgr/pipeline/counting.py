"""The load of a store, counted by its database: no row leaves it, and no Arrow is needed."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Select, Table, cast, func, literal_column, select

from timeoutmgr.errors import ConfigurationError
from timeoutmgr.instants import Micros, duration_micros
from timeoutmgr.pipeline.stores import Store
from timeoutmgr.pipeline.transforms.load import Bucket


def checked_bucket(bucket: timedelta) -> timedelta:
    """Return *bucket* if it is whole seconds; raise ConfigurationError if not."""
    if bucket < timedelta(seconds=1) or bucket % timedelta(seconds=1):
        raise ConfigurationError(f"a bucket is whole seconds, got {bucket}")
    return bucket


def load_of(
    table: Table, bucket: timedelta
) -> tuple[Select[Any], Mapping[str, ColumnElement[Any]]]:
    """Return the statement that groups the timeouts in *table*, and its columns by name."""
    width = literal_column(str(duration_micros(bucket)), BigInteger)
    begin = (table.c.due - table.c.due % width).label("bucket")
    group = [table.c.endpoint, table.c.destination, begin]
    columns: dict[str, ColumnElement[Any]] = {
        **{each.name: each for each in group},
        "messages": func.count().label("messages"),
        # A sum of BIGINT is NUMERIC on PostgreSQL, and DECIMAL on MySQL.
        "bytes": cast(func.sum(func.length(table.c.body)), BigInteger).label("bytes"),
    }
    return select(*columns.values()).group_by(*group), columns


def count_load(store: Store, bucket: timedelta, until: Micros) -> list[Bucket]:
    """Return what is due in *store* before *until*, in buckets of *bucket*."""
    table = store.tables.timeouts
    statement, _columns = load_of(table, checked_bucket(bucket))
    with store.database.read() as connection:
        rows = connection.execute(statement.where(table.c.due < until)).all()
    return [
        Bucket(
            endpoint=row.endpoint,
            destination=row.destination,
            begin=row.bucket,
            messages=row.messages,
            bytes=row.bytes,
        )
        for row in rows
    ]
