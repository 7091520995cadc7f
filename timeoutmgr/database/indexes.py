"""Creation of indexes while other transactions read and write the table; for revisions.

A plain CREATE INDEX blocks writers until it ends, which took 25 s on ten million rows.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from sqlalchemy import Connection, Index, Table, inspect, select, text
from sqlalchemy.schema import CreateIndex

FEW: Final = 10_000
"""Rows up to which an index is built directly: waiting for other transactions would take longer."""

LOCK_TIMEOUT: Final = "SET lock_timeout = '500ms'"
"""How long a change waits for its locks, while all later statements wait for the change."""
_PARTITIONED: Final = text(
    "SELECT relkind = 'p' FROM pg_class WHERE oid = CAST(:whole AS regclass)"
)
_PARTITIONS: Final = text(
    "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
    " WHERE i.inhparent = CAST(:whole AS regclass) AND NOT EXISTS"
    " (SELECT 1 FROM pg_index x JOIN pg_inherits j ON j.inhrelid = x.indexrelid"
    " WHERE x.indrelid = c.oid AND j.inhparent = CAST(:index AS regclass)) ORDER BY c.relname"
)
"""The partitions of a table that still lack their part of an index on the whole table."""
_INVALID: Final = text("SELECT NOT indisvalid FROM pg_index WHERE indexrelid = to_regclass(:index)")


def create_index_patiently(index: Index) -> None:
    """Create *index* on an existing table; other statements wait only for the time of a lock.

    On PostgreSQL the table, or each of its partitions, gets the index CONCURRENTLY, outside of the
    revision's transaction: the revision must be repeatable from its start. On MySQL the index is
    built in place. An interrupted build starts again.
    """
    from alembic import op

    migration = op.get_context()
    dialect = migration.dialect.name
    if migration.as_sql:
        migration.impl.create_index(index)
        return
    is_there = _is_there(op.get_bind(), index)
    at_once = dialect in {"sqlite", "mssql"}
    if not is_there and (at_once or _is_small(op.get_bind(), _table_of(index))):
        with one_table_at_a_time():
            migration.impl.create_index(index)
    elif dialect == "postgresql" and not _is_partitioned(op.get_bind(), _table_of(index)):
        with migration.autocommit_block():
            _create_in_table(op.get_bind(), index)
    elif dialect == "postgresql":
        _create_on_only_the_whole(op.get_bind(), index)
        with migration.autocommit_block():
            _create_in_partitions(op.get_bind(), index)
    elif not is_there:
        op.execute(f"{_compiled(index, migration.dialect)} ALGORITHM=INPLACE LOCK=NONE")


def one_table_at_a_time() -> AbstractContextManager[None]:
    """Run the changes in the context without locks on other tables; release each lock at once.

    Under steady load, each try of a revision that locks two tables would meet a transaction that
    locks them in the other order.
    """
    from alembic import op

    migration = op.get_context()
    if migration.as_sql or migration.dialect.name != "postgresql":
        # MySQL commits each change; SQLite has one writer; SQL Server was not tested.
        return nullcontext()
    return migration.autocommit_block()


def _is_there(connection: Connection, index: Index) -> bool:
    table = _table_of(index)
    there = inspect(connection).get_indexes(table.name, schema=table.schema)
    return index.name in {one["name"] for one in there}


def _is_small(connection: Connection, table: Table) -> bool:
    some = select(text("1")).select_from(table).limit(FEW + 1)
    return len(connection.execute(some).all()) <= FEW


def _is_partitioned(connection: Connection, table: Table) -> bool:
    whole = connection.dialect.identifier_preparer.format_table(table)
    return bool(connection.execute(_PARTITIONED, {"whole": whole}).scalar_one())


def _create_in_table(connection: Connection, index: Index) -> None:
    """Create *index* on its table, which has no partitions."""
    table, names = _table_of(index), connection.dialect.identifier_preparer
    # This wait for a lock delays no other statement.
    connection.exec_driver_sql("SET lock_timeout = 0")
    name = names.quote(str(index.name))
    _create_in(connection, index, names.format_table(table), name, _prefix(connection, table))
    connection.exec_driver_sql(LOCK_TIMEOUT)


def _create_on_only_the_whole(connection: Connection, index: Index) -> None:
    """Create *index* without its parts: only later partitions get their parts with it."""
    statement = _compiled(index, connection.dialect)
    table = connection.dialect.identifier_preparer.format_table(_table_of(index))
    statement = statement.replace(f" ON {table} ", f" ON ONLY {table} ", 1)
    connection.exec_driver_sql(statement.replace("CREATE INDEX", "CREATE INDEX IF NOT EXISTS", 1))


def _create_in_partitions(connection: Connection, index: Index) -> None:
    table, names = _table_of(index), connection.dialect.identifier_preparer
    prefix = _prefix(connection, table)
    whole, of_all = names.format_table(table), prefix + names.quote(str(index.name))
    # This wait for a lock delays no other statement, unlike a lock on the whole table.
    connection.exec_driver_sql("SET lock_timeout = 0")
    while (
        parts := connection.execute(_PARTITIONS, {"whole": whole, "index": of_all}).scalars().all()
    ):
        for part in parts:
            name = names.quote(f"{part}_{str(index.name).rpartition('_')[2]}")
            _create_in(connection, index, f"{prefix}{names.quote(part)}", name, prefix)
            connection.exec_driver_sql(f"ALTER INDEX {of_all} ATTACH PARTITION {prefix}{name}")
    connection.exec_driver_sql(LOCK_TIMEOUT)


def _create_in(connection: Connection, index: Index, part: str, name: str, prefix: str) -> None:
    """Create *index*, or a part of it, under *name* on *part*, a table or a partition."""
    if connection.execute(_INVALID, {"index": prefix + name}).scalar():
        connection.exec_driver_sql(f"DROP INDEX CONCURRENTLY {prefix}{name}")  # it was interrupted
    table = connection.dialect.identifier_preparer.format_table(_table_of(index))
    _, _, columns = _compiled(index, connection.dialect).partition(f" ON {table} ")
    connection.exec_driver_sql(
        f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON {part} {columns}"
    )


def _prefix(connection: Connection, table: Table) -> str:
    """Return the prefix of the name of an index of *table*."""
    names = connection.dialect.identifier_preparer
    return f"{names.quote_schema(table.schema)}." if table.schema else ""


def _compiled(index: Index, dialect: Any) -> str:
    return str(CreateIndex(index).compile(dialect=dialect)).strip()


def _table_of(index: Index) -> Table:
    table = index.table
    assert table is not None, f"index {index.name} is of a table"
    return table
