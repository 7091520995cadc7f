"""A session of the SQL queue: creating queues, sending, and transactions."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from sqlalchemy import Connection, delete, func, select, update

from timeoutmgr.contracts import Clock, QueueReport, SendResult, Transaction
from timeoutmgr.database import Database, as_connection
from timeoutmgr.errors import QueueMissing
from timeoutmgr.message.instants import LATEST, Micros
from timeoutmgr.message.message import Outgoing, Received
from timeoutmgr.transport.sql.foreign import RoutedRows
from timeoutmgr.transport.sql.queues import SqlQueues
from timeoutmgr.transport.sql.receiver import SqlReceiver
from timeoutmgr.transport.sql.statements import as_transport, queue_statements
from timeoutmgr.transport.sql.tables import (
    LeasedRow,
    QueueTables,
    checked_queue_name,
    from_row,
    to_row,
)
from timeoutmgr.transport.work import BATCH_BYTES, sub_batches

_PAGE: Final = 200


def rows_of(database: Database, tables: QueueTables, queue: str, limit: int) -> Iterator[Received]:
    """Yield up to *limit* messages of *queue* in the order of their arrival, page by page.

    Leased messages are included.
    """
    messages = tables.messages.c
    behind, left = 0, limit
    while left > 0:
        sizes = (
            select(messages.sequence, func.length(messages.body).label("size"))
            .where(messages.queue == queue, messages.sequence > behind)
            .order_by(messages.sequence)
            .limit(min(_PAGE, left))
        )
        with database.read() as connection:
            page = connection.execute(sizes).all()
        if not page:
            return
        for some in sub_batches(page, BATCH_BYTES, lambda row: int(row.size)):
            yield from _messages(database, tables, queue, {row.sequence: row.size for row in some})
        behind, left = page[-1].sequence, left - len(page)


def _messages(
    database: Database, tables: QueueTables, queue: str, sizes: dict[int, int]
) -> Iterator[Received]:
    messages = tables.messages
    whole = select(messages).where(messages.c.sequence.in_(sizes)).order_by(messages.c.sequence)
    with database.read() as connection:
        rows = connection.execute(whole).all()
    for row in rows:
        leased = {name: row._mapping[name] for name in LeasedRow._fields if name != "size"}
        yield from_row(queue, LeasedRow(**leased, size=sizes[row.sequence]))


def _answer(rows: Sequence[dict[str, Any]], kept: set[int], full: set[str]) -> SendResult:
    if not kept.isdisjoint(map(id, rows)):
        return SendResult.CONFIRMED
    is_refused = any(row["queue"] in full for row in rows)
    return SendResult.REFUSED if is_refused else SendResult.UNROUTABLE


class OpensReceivers(Protocol):
    """A session's transport, which creates its receivers."""

    def make_receiver(self, queue: str, prefetch: int) -> SqlReceiver:
        """Return a consumer of an existing queue."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlSession:
    """A thread's use of the queues, as ``contracts.TransportSession`` says.

    It keeps no connection of its own: each call takes a connection from the pool.
    """

    database: Database
    tables: QueueTables
    queues: SqlQueues
    clock: Clock
    transport: OpensReceivers

    def create_queues(self, names: Sequence[str], *, error_queue: str | None = None) -> None:
        """Create the queues that do not exist.

        *error_queue* is stored with the queue; this transport itself never gives up a message.
        """
        for name in (*names, *([error_queue] if error_queue else [])):
            checked_queue_name(name)
        with as_transport(self.database):
            self.queues.create(names, error_queue)

    def missing_queues(self, names: Collection[str]) -> list[str]:
        """Return the *names* that do not exist."""
        with as_transport(self.database):
            return self.queues.missing(names)

    def inspect_queues(
        self, names: Collection[str], *, error_queue: str | None = None, policies: bool = True
    ) -> list[QueueReport]:
        """Report on each existing queue of *names*, by the options of its first declaration."""
        with as_transport(self.database):
            there = self.queues.existing(names)
        found = {name: there[name].properties() for name in names if name in there}
        return [
            QueueReport(queue=name, losses=each.losses(dead_end=""), refusals=each.refusals())
            for name, each in found.items()
        ]

    def delete_queues(self, names: Collection[str]) -> None:
        """Delete queues with their messages and bindings."""
        with as_transport(self.database):
            self.queues.delete(names)

    def count(self, queue: str) -> int:
        """Return how many messages of *queue* are free."""
        with as_transport(self.database):
            return self.queues.count(queue)

    def borne_marker(self, endpoint: str, expected: str | None) -> str | None:
        """Return the marker of *endpoint*, or None."""
        table = self.tables.markers.c
        with as_transport(self.database), self.database.read() as connection:
            found = connection.execute(select(table.marker).where(table.endpoint == endpoint))
            word: str | None = found.scalar()
        return word

    def bear_marker(self, endpoint: str, word: str, store: str) -> None:
        """Mark *endpoint*; another marker is overwritten."""
        if self.borne_marker(endpoint, word) == word:
            return
        table = self.tables.markers
        insert_marker = queue_statements(self.tables, self.database.dialect).insert_marker
        of_endpoint = update(table).where(table.c.endpoint == endpoint).values(marker=word)

        def put(connection: Connection) -> None:
            connection.execute(insert_marker, [{"endpoint": endpoint, "marker": word}])
            connection.execute(of_endpoint)

        with as_transport(self.database):
            self.database.run(put)

    def drop_marker(self, endpoint: str, expected: str | None) -> None:
        """Remove the marker of *endpoint*."""
        table = self.tables.markers
        of_endpoint = delete(table).where(table.c.endpoint == endpoint)
        with as_transport(self.database):
            self.database.run(lambda connection: connection.execute(of_endpoint))

    def send(
        self, outgoing: Sequence[Outgoing], *, transaction: Transaction | None = None
    ) -> list[SendResult]:
        """Put messages into queues, all in one transaction; return the results."""
        now = self.clock.now()
        connection = None if transaction is None else as_connection(transaction)
        with as_transport(self.database):
            if all(one.via is None for one in outgoing):
                each = [[to_row(one, now)] for one in outgoing]
            else:
                routed = RoutedRows(self.queues, connection, now)
                each = [routed.of(one) for one in outgoing]
            if any(one.time_to_live is not None for one in outgoing):
                self._set_ends(each, outgoing, self.now(transaction=transaction) or now)
            asked = [row for rows in each for row in rows]
            kept = set(map(id, self.queues.put(asked, connection)))
            left = {row["queue"] for row in asked if id(row) not in kept}
            full = left - set(self.queues.missing(left)) if left else set()
        return [_answer(rows, kept, full) for rows in each]

    def _set_ends(
        self, each: Sequence[Sequence[dict[str, Any]]], outgoing: Sequence[Outgoing], now: Micros
    ) -> None:
        """Add each message's expiry to its rows; *now* is from the clock that the sweep reads."""
        for rows, one in zip(each, outgoing, strict=True):
            lifetime = one.time_to_live
            for row in rows:
                row["expires_at"] = None if lifetime is None else min(now + lifetime, LATEST)

    def receiver(self, queue: str, *, prefetch: int) -> SqlReceiver:
        """Return a consumer of *queue*; raise QueueMissing if it does not exist."""
        if self.missing_queues([queue]):
            raise QueueMissing([queue], "run `timeoutmgr install`, or create it")
        return self.transport.make_receiver(queue, prefetch)

    def browse(self, queue: str, limit: int) -> Generator[Received]:
        """Yield up to *limit* messages of *queue*, oldest first, without leasing them."""
        if self.missing_queues([queue]):
            raise QueueMissing([queue], "run `timeoutmgr install`, or create it")
        with as_transport(self.database):
            yield from rows_of(self.database, self.tables, queue, limit)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Open a transaction; receivers of its messages are woken after the commit.

        A commit whose result is unknown raises TransportUnavailable; a database error inside the
        block raises StorageUnavailable.
        """
        manager = self.database.begin()
        with as_transport(self.database):
            connection = manager.__enter__()
        try:
            yield connection
        except BaseException as error:
            if not manager.__exit__(type(error), error, error.__traceback__):
                raise
        else:
            with as_transport(self.database):
                manager.__exit__(None, None, None)

    def now(self, *, transaction: Transaction | None = None) -> Micros | None:
        """Return the database's clock, read in the given *transaction*; None on SQLite."""
        if self.database.dialect.now is None:
            return None
        with as_transport(self.database):
            if transaction is not None:
                return self.database.now_in(as_connection(transaction))
            return self.database.now(self.clock)

    def ping(self) -> None:
        """Return if the database answers."""
        with as_transport(self.database):
            self.database.ping()

    def close(self) -> None:
        """No-op: a session holds nothing."""
