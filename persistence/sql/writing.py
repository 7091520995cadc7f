"""Writes of a whole batch, as a statement for each row: what every database understands.

PostgreSQL has a form that costs a fifth of it, see ``writing_postgresql``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Executable, Table, bindparam, insert, update
from sqlalchemy.dialects import mysql

from timeoutmgr.contracts import Key, TimeoutState
from timeoutmgr.database.engine import execute_many
from timeoutmgr.database.packets import in_statements
from timeoutmgr.instants import Micros

from .inserting import insert_missing
from .tables import Tables

Row = dict[str, Any]


class Writing:
    """The writes of one endpoint's batches.

    *locks_what_it_reads*: see :class:`~timeoutmgr.persistence.sql.context.StoreContext`.
    """

    def __init__(self, tables: Tables, endpoint: str, *, locks_what_it_reads: bool) -> None:
        self._tables = tables
        self._endpoint = endpoint
        self._locks_what_it_reads = locks_what_it_reads
        keys = tables.keys
        self._close_one_key: Executable = (
            update(keys)
            .where(keys.c.endpoint == bindparam("endpoint_"), keys.c.id == bindparam("id_"))
            .values(state=bindparam("state_"), closed_at=bindparam("closed_at_"))
        )
        if locks_what_it_reads:
            # An insert that always meets the row there is: the one form of update that the
            # driver sends as one statement for all.
            one_key = mysql.insert(keys)
            self._close_one_key = one_key.on_duplicate_key_update(
                state=one_key.inserted.state, closed_at=one_key.inserted.closed_at
            )

    def insert_keys(
        self, connection: Connection, keys: Sequence[Key], contents: Sequence[bytes]
    ) -> int:
        """Insert those of *keys* whose id is free as pending, in their order; return how many.

        *contents* are the digests of their messages.
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
        if self._locks_what_it_reads:
            rows = [{**row, "due": 0, "version": 0, "maybe_sent": 0} for row in rows]
        else:
            rows = [{f"{name}_": value for name, value in row.items()} for row in rows]
        execute_many(connection, self._close_one_key, rows)
