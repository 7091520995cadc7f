"""The markers of endpoints in the tables of the queues."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, delete, select, update

from timeoutmgr.database import Database
from timeoutmgr.transport.sql.statements import Statements
from timeoutmgr.transport.sql.tables import QueueTables


class Markers:
    """A row for each marked endpoint."""

    def __init__(self, database: Database, tables: QueueTables, statements: Statements) -> None:
        self._database = database
        self._statements = statements
        self._table: Final = tables.markers

    def read(self, endpoint: str) -> str | None:
        """Return the marker of *endpoint*, if there is one."""
        table = self._table.c
        with self._database.read() as connection:
            found = connection.execute(select(table.marker).where(table.endpoint == endpoint))
            word: str | None = found.scalar()
        return word

    def write(self, endpoint: str, word: str) -> None:
        """Mark *endpoint*; another marker is overwritten."""
        if self.read(endpoint) == word:
            return

        def put(connection: Connection) -> None:
            row = {"endpoint": endpoint, "marker": word}
            connection.execute(self._statements.mark, [row])
            connection.execute(
                update(self._table).where(self._table.c.endpoint == endpoint).values(marker=word)
            )

        self._database.run(put)

    def erase(self, endpoint: str) -> None:
        """Remove the marker of *endpoint*."""
        self._database.run(
            lambda connection: connection.execute(
                delete(self._table).where(self._table.c.endpoint == endpoint)
            )
        )
