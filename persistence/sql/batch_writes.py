"""Writes of whole batches: a statement per row, or PostgreSQL's faster bulk forms."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Executable,
    Table,
    Text,
    bindparam,
    func,
    insert,
    literal_column,
    null,
    select,
    update,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.sql.dml import Insert

from timeoutmgr.contracts import Key, TimeoutState
from timeoutmgr.database.arrays import BytesArray, NumberArray, TextArray
from timeoutmgr.database.batch_inserts import FEW, copy_rows, in_statements, misfit
from timeoutmgr.database.engine import count_inserted, execute_many
from timeoutmgr.errors import MessageRejected
from timeoutmgr.message.instants import Micros

from .tables import TimeoutTables

Row = dict[str, Any]


class BatchWrites:
    """Writes one endpoint's batches with a statement for each row, as every database can.

    *upserts*: the database is MySQL, which sends an upsert of many rows as one statement.
    """

    def __init__(self, tables: TimeoutTables, endpoint: str, *, upserts: bool) -> None:
        self._tables = tables
        self._endpoint = endpoint
        self._upserts = upserts
        keys = tables.keys
        self._close_one_key: Executable = (
            update(keys)
            .where(keys.c.endpoint == bindparam("endpoint_"), keys.c.id == bindparam("id_"))
            .values(state=bindparam("state_"), closed_at=bindparam("closed_at_"))
        )
        if upserts:
            # An insert that always meets an existing row: the only form of update that the driver
            # sends as one statement for all rows.
            one_key = mysql.insert(keys)
            self._close_one_key = one_key.on_duplicate_key_update(
                state=one_key.inserted.state, closed_at=one_key.inserted.closed_at
            )

    def insert_keys(
        self, connection: Connection, keys: Sequence[Key], contents: Sequence[bytes]
    ) -> int:
        """Insert the members of *keys* whose id is free as pending; return how many.

        They are inserted in their order. *contents* are the digests of their messages.
        """
        rows = [
            {
                "endpoint": self._endpoint,
                "id": key.id,
                "due": key.due,
                "version": 0,
                "state": TimeoutState.PENDING.value,
                "maybe_sent": 0,
                "content": content,
            }
            for key, content in zip(keys, contents, strict=True)
        ]
        return insert_missing(connection, self._tables.keys, rows)

    def insert_rows(self, connection: Connection, table: Table, rows: Sequence[Row]) -> None:
        """Insert *rows*, all of the same columns, in the same order."""
        for part in in_statements(connection, rows):
            execute_many(connection, insert(table), part)

    def close_keys(
        self, connection: Connection, ids: Sequence[str], state: TimeoutState, at: Micros
    ) -> None:
        """Set the tombstones, each by its primary key and in the order of *ids*."""
        fixed: Row = {"endpoint": self._endpoint, "state": state.value, "closed_at": at}
        rows = [{**fixed, "id": one} for one in ids]
        if self._upserts:
            rows = [{**row, "due": 0, "version": 0, "maybe_sent": 0} for row in rows]
        else:
            rows = [{f"{name}_": value for name, value in row.items()} for row in rows]
        execute_many(connection, self._close_one_key, rows)


def require_fit(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Raise MessageRejected for a message that is too large to send to the database."""
    reason = misfit(connection, rows)
    if reason is not None:
        raise MessageRejected(reason)


def insert_missing(
    connection: Connection,
    table: Table,
    rows: Sequence[dict[str, Any]],
    *,
    key: Sequence[str] | None = None,
) -> int:
    """Insert the *rows* whose primary key is free; return how many.

    *key* names the unique columns if they are not the primary key. The insert waits for a row that
    another open transaction is inserting. Raises MessageRejected for a message that is too large
    for the database.
    """
    if not rows:
        return 0
    if "body" in table.c:
        require_fit(connection, rows)
    if connection.dialect.name == "mssql":
        from timeoutmgr.database.sqlserver import insert_missing_rows

        return insert_missing_rows(
            connection, table, rows, tuple(key or table.primary_key.c.keys())
        )
    statement = _statement(connection.dialect.name, table)
    return sum(
        count_inserted(connection, statement, part) for part in in_statements(connection, rows)
    )


@cache
def _statement(dialect: str, table: Table) -> Insert:
    if dialect == "postgresql":
        return postgresql.insert(table).on_conflict_do_nothing()
    if dialect == "sqlite":
        return sqlite.insert(table).on_conflict_do_nothing()
    # ON DUPLICATE KEY UPDATE would count an existing row as inserted: SQLAlchemy has the server
    # count rows found, not rows changed. IGNORE also hides values that do not fit; these tables
    # take only checked values.
    return mysql.insert(table).prefix_with("IGNORE")


_KEY: Final = ["endpoint", "id", "due", "version", "state", "maybe_sent", "closed_at"]


class PostgreSQLBatchWrites(BatchWrites):
    """Writes one endpoint's batches by arrays and binary COPY, at a fifth of the cost.

    The statements are the same for two rows and for a thousand, so each is prepared only once.
    """

    def __init__(self, tables: TimeoutTables, endpoint: str) -> None:
        super().__init__(tables, endpoint, upserts=False)
        keys = tables.keys
        ids = bindparam("ids", type_=TextArray())
        dues = bindparam("dues", type_=NumberArray())
        contents = bindparam("contents", type_=BytesArray())
        given = func.unnest(ids, dues).table_valued("id", "due", name="given").render_derived()
        rows = postgresql.insert(keys).from_select(_KEY, select(*_columns(given)))
        stored = func.unnest(ids, dues, contents).table_valued("id", "due", "content", name="given")
        new = stored.render_derived()
        self._insert_keys = (
            postgresql.insert(keys)
            .from_select([*_KEY, "content"], select(*_columns(new), new.c.content))
            .on_conflict_do_nothing()
        )
        # An insert that always meets an existing row finds it by its primary key. An update would
        # depend on the plan, and read a whole endpoint until the table has statistics.
        self._close_keys = rows.on_conflict_do_update(
            index_elements=[keys.c.endpoint, keys.c.id],
            set_={"state": rows.excluded.state, "closed_at": rows.excluded.closed_at},
        )

    def insert_keys(
        self, connection: Connection, keys: Sequence[Key], contents: Sequence[bytes]
    ) -> int:
        """Insert the members of *keys* whose id is free as pending; return how many.

        They are inserted in their order. *contents* are the digests of their messages.
        """
        parameters = {
            "endpoint": self._endpoint,
            "ids": [key.id for key in keys],
            "dues": [key.due for key in keys],
            "contents": contents,
            "state": TimeoutState.PENDING.value,
            "at": None,
        }
        return count_inserted(connection, self._insert_keys, parameters)

    def insert_rows(self, connection: Connection, table: Table, rows: Sequence[Row]) -> None:
        """Insert *rows*, all of the same columns, in the same order."""
        if len(rows) <= FEW:
            super().insert_rows(connection, table, rows)
            return
        copy_rows(connection, table, rows)

    def close_keys(
        self, connection: Connection, ids: Sequence[str], state: TimeoutState, at: Micros
    ) -> None:
        """Set the tombstones, each by its primary key and in the order of *ids*."""
        parameters = {
            "endpoint": self._endpoint,
            "ids": list(ids),
            "dues": [0] * len(ids),
            "state": state.value,
            "at": at,
        }
        connection.execute(self._close_keys, parameters)


def _columns(given: Any) -> list[ColumnElement[Any]]:
    return [
        bindparam("endpoint", type_=Text),
        given.c.id,
        given.c.due,
        literal_column("0"),
        bindparam("state", type_=Text),
        null(),  # stands for 0: a NULL takes no space in the row
        bindparam("at", type_=BigInteger),
    ]
