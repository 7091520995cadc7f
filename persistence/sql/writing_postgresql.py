"""Writes of a whole batch as PostgreSQL takes them fastest: arrays, and COPY in binary form.

The statements are the same for two rows and for a thousand, so that each is prepared once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Table,
    Text,
    bindparam,
    func,
    literal_column,
    select,
)
from sqlalchemy.dialects import postgresql

from timeoutmgr.contracts import Key, TimeoutState
from timeoutmgr.database.arrays import BytesArray, NumberArray, TextArray
from timeoutmgr.database.copying import FEW, copy_rows
from timeoutmgr.instants import Micros

from .tables import Tables
from .writing import Row, Writing

_KEY: Final = ["endpoint", "id", "due", "version", "state", "maybe_sent", "closed_at"]


class PostgreSQLWriting(Writing):
    """The writes of one endpoint's batches, through psycopg."""

    def __init__(self, tables: Tables, endpoint: str) -> None:
        super().__init__(tables, endpoint, locks_what_it_reads=False)
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
        # An insert that always meets the row there is finds it by its primary key. An update
        # would be left to the plan, and read a whole endpoint until the table has statistics.
        self._close_keys = rows.on_conflict_do_update(
            index_elements=[keys.c.endpoint, keys.c.id],
            set_={"state": rows.excluded.state, "closed_at": rows.excluded.closed_at},
        )

    def insert_keys(
        self, connection: Connection, keys: Sequence[Key], contents: Sequence[bytes]
    ) -> int:
        """Insert those of *keys* whose id is free as pending, in their order; return how many.

        *contents* are the digests of their messages.
        """
        parameters = {
            "endpoint": self._endpoint,
            "ids": [key.id for key in keys],
            "dues": [key.due for key in keys],
            "contents": contents,
            "state": TimeoutState.PENDING.value,
            "at": None,
        }
        # Without the option the count of an INSERT is lost with its cursor.
        options = {"preserve_rowcount": True}
        return connection.execute(self._insert_keys, parameters, execution_options=options).rowcount

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
        literal_column("0"),
        bindparam("at", type_=BigInteger),
    ]
