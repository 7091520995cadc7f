"""Leases and settlements on PostgreSQL in one or two round trips, with psycopg."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

from sqlalchemy import Connection
from sqlalchemy.sql.expression import Executable

from timeoutmgr.crashpoints import reach
from timeoutmgr.database.round_trips import DriverStatement, PipelinedTransaction
from timeoutmgr.transport.sql.leases import LARGEST_LEASE, Leases, by_delivery, fitting
from timeoutmgr.transport.sql.statements import READ_BY_INDEX, FrontStatements
from timeoutmgr.transport.sql.tables import LeasedRow, LeaseTag


class _LargeBody(Exception):
    """A message's body is too large to be read with its row; nothing was leased."""


class PipelinedLeases(Leases):
    """Leases on PostgreSQL, and settlements outside a caller's transaction.

    A kombu consumer, which is recognised by the *front* of its queue, leases and settles in one
    statement each, and neither commit waits for the server's disk. If the server itself crashes,
    the leases of the last moments may be lost, and their messages are delivered again, as consumers
    of kombu expect after a crash of the broker. No message is lost or early: a lease changes only
    the owner and the expiry. Nothing is settled twice: the first matching acknowledgement deletes
    the row. Killing a process undoes no commit.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._compiled: Final[dict[Executable, DriverStatement]] = {}

    def lease_rows(
        self,
        queue: str,
        limit: int,
        before_commit: Callable[[list[LeaseTag]], None],
        room: int | None = None,
        front: FrontStatements | None = None,
    ) -> list[LeasedRow]:
        """Lease rows as the base class says."""
        if not self.session_locks.is_unbroken(self.owner):
            self.session_locks.renew(self.owner)
        if front is not None and room is None:
            mine = {"me": self.owner, "lease": self._lease}
            return self._rows_alone(front.lease_alone, queue, limit, **mine)
        most, room, inline = self._bounds(limit, room)
        which = {"queue": queue, "limit": most, "inline": inline}

        def lease(transaction: PipelinedTransaction) -> list[LeasedRow]:
            transaction.execute(self._of(READ_BY_INDEX), {})
            free_rows = self._of((front or self._statements).free_rows)
            found = [LeasedRow(*row) for row in transaction.execute(free_rows, which)]
            rows = fitting(found, room)
            if any(row.body is None for row in rows):
                raise _LargeBody
            if rows:
                before_commit([(row.sequence, row.delivery_count + 1) for row in rows])
                sequences = [row.sequence for row in rows]
                chosen = {"sequences": sequences, "me": self.owner, "lease": self._lease}
                transaction.execute(self._of(self._statements.lease), chosen)
                reach("leases.written")
            return list(rows)

        try:
            return self._database.run_pipelined(lease)
        except _LargeBody:
            return super().lease_rows(queue, limit, before_commit, room, front)

    def remove_rows(
        self, queue: str, limit: int, front: FrontStatements | None = None
    ) -> tuple[list[LeasedRow], bool]:
        """Remove rows as the base class says."""
        rows = self._rows_alone((front or self._statements).remove_alone, queue, limit)
        # Checking in the same statement would cost each message more than an empty query does.
        return rows, bool(rows)

    def _settled(
        self, tags: Collection[LeaseTag], connection: Connection | None, lazily: bool
    ) -> int:
        if connection is not None:
            return super()._settled(tags, connection, lazily)
        if lazily:
            return self._settled_alone(tags)

        def settle(transaction: PipelinedTransaction) -> list[Any]:
            transaction.execute(self._of(READ_BY_INDEX), {})
            cursors = []
            for delivery, sequences in by_delivery(tags):
                which = {"sequences": sequences, "me": self.owner, "delivery": delivery}
                cursors.append(transaction.execute(self._of(self._statements.ack), which))
                reach("leases.settled")
            return cursors

        return sum(cursor.rowcount for cursor in self._database.run_pipelined(settle))

    def _settled_alone(self, tags: Collection[LeaseTag]) -> int:
        settled = 0
        for delivery, sequences in by_delivery(tags):
            which = {"sequences": sequences, "me": self.owner, "delivery": delivery}
            [(count,)] = self._database.run_alone(self._of(self._statements.ack_alone), which)
            settled += count
        return settled

    def _rows_alone(
        self, statement: Executable, queue: str, limit: int, **more: Any
    ) -> list[LeasedRow]:
        most = min(limit, LARGEST_LEASE)
        which = {"queue": queue, "limit": most, "inline": self._any_size, **more}
        return [LeasedRow(*row) for row in self._database.run_alone(self._of(statement), which)]

    def _of(self, statement: Executable) -> DriverStatement:
        if statement not in self._compiled:
            self._compiled[statement] = DriverStatement(statement, self._database.engine)
        return self._compiled[statement]
