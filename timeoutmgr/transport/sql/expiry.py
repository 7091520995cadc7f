"""Removal of expired messages from their queues, whether or not a consumer reads the queue."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection

from timeoutmgr.contracts import Clock
from timeoutmgr.contracts.transports import SettleExpired
from timeoutmgr.crashpoints import reach
from timeoutmgr.database import Database
from timeoutmgr.message.message import Received
from timeoutmgr.transport.sql.statements import expiry_statements
from timeoutmgr.transport.sql.tables import LeasedRow, QueueTables, from_row
from timeoutmgr.transport.work import BATCH_BYTES, sub_batches


class ExpiredMessages:
    """The expired messages of one queue table. Safe for many threads and processes.

    A leased message was received in time; it stays until its lease ends.
    """

    def __init__(self, database: Database, tables: QueueTables, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._statements: Final = expiry_statements(tables, database.dialect)

    def remove(self, limit: int, settle: SettleExpired) -> int:
        """Settle up to *limit* messages and delete them, in one transaction; return how many.

        Their bodies together fit into memory. 0 means that no free message has expired.
        """
        now = self._database.now_of_host(self._clock)
        # Read first: a read takes no lock, also not SQLite's lock of the whole file.
        with self._database.read() as connection:
            if connection.execute(self._statements.probe, {**now, "limit": 1}).first() is None:
                return 0

        def work(connection: Connection) -> int:
            found = connection.execute(self._statements.expired, {**now, "limit": limit}).all()
            if not found:
                return 0
            some = next(sub_batches(found, BATCH_BYTES, lambda row: int(row.size)))
            chosen = {"sequences": [row.sequence for row in some]}
            rows = connection.execute(self._statements.whole, chosen).all()
            settle([_received(row) for row in rows], connection)
            reach("expiry.settled")
            connection.execute(self._statements.delete_expired, chosen)
            reach("expiry.deleted")
            return len(some)

        return self._database.run(work)


def _received(row: Any) -> Received:
    values = {name: row._mapping[name] for name in LeasedRow._fields}
    return from_row(row.queue, LeasedRow(**values))
