"""Markers of endpoints in a table: they say which broker has an endpoint's queues."""

from sqlalchemy import Connection, Table, select, update

from timeoutmgr.contracts import StoreMarker
from timeoutmgr.database import Database

from .batch_writes import insert_missing


class Markers:
    """The marker columns of *table*, which has a row for each endpoint."""

    def __init__(self, database: Database, table: Table) -> None:
        self._database = database
        self._table = table

    def read(self, endpoint: str) -> StoreMarker | None:
        """Return the marker of *endpoint*, or None."""
        with self._database.read() as connection:
            return self._read(endpoint, connection)

    def propose(self, endpoint: str, word: str, broker: str) -> StoreMarker:
        """Store *word* unless there is a marker; return the stored marker."""

        def work(connection: Connection) -> StoreMarker | None:
            self._write(endpoint, word, broker, 0, connection, only_unmarked=True)
            return self._read(endpoint, connection)

        found = self._database.run(work)
        assert found is not None, "it was written, if not before"
        return found

    def confirm(self, endpoint: str, word: str, broker: str) -> None:
        """Store *word* as the marker that *broker* bears."""
        self._database.run(lambda connection: self._write(endpoint, word, broker, 1, connection))

    def _write(
        self,
        endpoint: str,
        word: str,
        broker: str,
        confirmed: int,
        connection: Connection,
        *,
        only_unmarked: bool = False,
    ) -> None:
        insert_missing(connection, self._table, [{"endpoint": endpoint}])
        row = update(self._table).where(self._table.c.endpoint == endpoint)
        if only_unmarked:
            row = row.where(self._table.c.marker.is_(None))
        connection.execute(row.values(marker=word, broker=broker, marker_confirmed=confirmed))

    def _read(self, endpoint: str, connection: Connection) -> StoreMarker | None:
        table = self._table.c
        row = connection.execute(
            select(table.marker, table.broker, table.marker_confirmed).where(
                table.endpoint == endpoint, table.marker.is_not(None)
            )
        ).first()
        if row is None:
            return None
        return StoreMarker(
            word=row.marker, broker=row.broker or "", confirmed=bool(row.marker_confirmed)
        )
