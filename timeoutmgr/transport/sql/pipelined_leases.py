"""Leases on PostgreSQL in two round trips, and settlements in one, through psycopg."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

from sqlalchemy import Connection
from sqlalchemy.sql.expression import Executable

from timeoutmgr.crashpoints import reach
from timeoutmgr.database.round_trips import DriverStatement, PipelinedTransaction
from timeoutmgr.transport.sql.leases import (
    LARGEST_LEASE,
    Leases,
    by_delivery,
    fitting,
    lost_leases,
)
from timeoutmgr.transport.sql.statements import (
    BY_INDEX,
    BY_INDEX_AND_LAZILY,
    FrontStatements,
)
from timeoutmgr.transport.sql.tables import LeasedRow, LeaseTag


class _LargeBody(Exception):
    """A message's body is too large to be read with its row; nothing is leased."""


class PipelinedLeases(Leases):
    """The leases of PostgreSQL, and the settlements that no transaction of a caller joins.

    No commit for a consumer of kombu waits for the server's disk; such a consumer is known by the
    *front* of its queue. If the server itself crashes, the leases of the last moments may be lost,
    and their messages are delivered again, which each consumer of kombu expects of a broker that
    crashed. Nothing is lost or early: a lease changes only who may have the message, and its end.
    Nothing is settled twice: the row goes once, with the acknowledgement that meets it. A process
    that is killed takes no commit along.
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
        if not self._session_locks.is_unbroken(self.owner):
            self.keep_session_lock()
        most, room, inline = self._bounds(limit, room)

        def lease(transaction: PipelinedTransaction) -> list[LeasedRow]:
            found = self._front_rows(queue, most, front, transaction, inline)
            rows = fitting(found, room)
            if any(row.body is None for row in rows):
                raise _LargeBody
            if rows:
                before_commit([(row.sequence, row.delivery_count + 1) for row in rows])
                sequences = [row.sequence for row in rows]
                which = {"sequences": sequences, "me": self.owner, "lease": self._lease}
                transaction.execute(self._of(self._statements.lease), which)
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

        def remove(transaction: PipelinedTransaction) -> tuple[list[LeasedRow], Any]:
            rows = self._front_rows(queue, limit, front, transaction, self._any_size)
            if not rows:
                return [], None
            sequences = [row.sequence for row in rows]
            transaction.execute(self._of(self._statements.remove), {"sequences": sequences})
            probe = self._of((front or self._statements).probe)
            return rows, transaction.execute(probe, {"queue": queue})

        rows, others = self._database.run_pipelined(remove)
        return rows, others is not None and others.rowcount > 0

    def ack(
        self, tags: Collection[LeaseTag], connection: Connection | None, *, lazily: bool = False
    ) -> None:
        """Delete rows as the base class says."""
        if connection is not None:
            super().ack(tags, connection, lazily=lazily)
            return

        def settle(transaction: PipelinedTransaction) -> list[Any]:
            transaction.execute(self._of(BY_INDEX_AND_LAZILY if lazily else BY_INDEX), {})
            cursors = []
            for delivery, sequences in by_delivery(tags):
                which = {"sequences": sequences, "me": self.owner, "delivery": delivery}
                cursors.append(transaction.execute(self._of(self._statements.ack), which))
                reach("leases.settled")
            return cursors

        settled = sum(cursor.rowcount for cursor in self._database.run_pipelined(settle))
        if settled < len(tags):
            raise lost_leases(len(tags) - settled, len(tags))

    def _front_rows(
        self,
        queue: str,
        limit: int,
        front: FrontStatements | None,
        transaction: PipelinedTransaction,
        inline: int,
    ) -> list[LeasedRow]:
        transaction.execute(self._of(BY_INDEX if front is None else BY_INDEX_AND_LAZILY), {})
        which = {"queue": queue, "limit": min(limit, LARGEST_LEASE), "inline": inline}
        statement = self._of((front or self._statements).free_rows)
        return [LeasedRow(*row) for row in transaction.execute(statement, which)]

    def _of(self, statement: Executable) -> DriverStatement:
        if statement not in self._compiled:
            self._compiled[statement] = DriverStatement(statement, self._database.engine)
        return self._compiled[statement]
