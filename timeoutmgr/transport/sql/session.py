"""A session of the SQL queue: creating queues, sending, and transactions."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from timeoutmgr.contracts import SendResult
from timeoutmgr.errors import QueueMissing
from timeoutmgr.instants import Micros
from timeoutmgr.message import Outgoing, Received
from timeoutmgr.transport.sql.browsing import rows_of
from timeoutmgr.transport.sql.envelopes import checked_queue_name, to_row
from timeoutmgr.transport.sql.failures import as_transport
from timeoutmgr.transport.sql.receiver import SqlReceiver

if TYPE_CHECKING:
    from timeoutmgr.transport.sql.transport import SqlTransport


class SqlSession:
    """What one thread does with the queues, as ``contracts.TransportSession`` says.

    It holds no connection of its own: each call takes one from the pool.
    """

    def __init__(self, transport: SqlTransport) -> None:
        self._transport = transport
        self._database = transport.database
        self._queues = transport.queues
        self._markers = transport.markers

    def create_queues(self, names: Sequence[str], *, dead_letter_to: str | None = None) -> None:
        """Create the queues that do not exist.

        *dead_letter_to* is kept with the queue: this transport gives up on no message itself.
        """
        for name in (*names, *([dead_letter_to] if dead_letter_to else [])):
            checked_queue_name(name)
        with as_transport(self._database):
            self._queues.create(names, dead_letter_to)

    def missing_queues(self, names: Collection[str]) -> list[str]:
        """Return those of *names* that do not exist."""
        with as_transport(self._database):
            return self._queues.missing(names)

    def delete_queues(self, names: Collection[str]) -> None:
        """Delete queues, what is in them and what is bound to them."""
        with as_transport(self._database):
            self._queues.delete(names)

    def count(self, queue: str) -> int:
        """Return how many messages of *queue* nobody has in hand."""
        with as_transport(self._database):
            return self._queues.count(queue)

    def borne_marker(self, endpoint: str, expected: str | None) -> str | None:
        """Return the marker of *endpoint*, if there is one."""
        with as_transport(self._database):
            return self._markers.read(endpoint)

    def bear_marker(self, endpoint: str, word: str, store: str) -> None:
        """Mark *endpoint*; another marker is overwritten."""
        with as_transport(self._database):
            self._markers.write(endpoint, word)

    def drop_marker(self, endpoint: str, expected: str | None) -> None:
        """Remove the marker of *endpoint*."""
        with as_transport(self._database):
            self._markers.erase(endpoint)

    def send(
        self, outgoing: Sequence[Outgoing], *, transaction: Connection | None = None
    ) -> list[SendResult]:
        """Put messages into queues, all in one transaction; return what became of each."""
        now = self._transport.clock.now()
        rows = [to_row(one, now) for one in outgoing]
        with as_transport(self._database):
            there = self._queues.put(rows, transaction)
        return [
            SendResult.CONFIRMED if one.destination in there else SendResult.UNROUTABLE
            for one in outgoing
        ]

    def receiver(self, queue: str, *, prefetch: int) -> SqlReceiver:
        """Return a consumer of *queue*; raise QueueMissing where there is none."""
        if self.missing_queues([queue]):
            raise QueueMissing([queue], "run `timeoutmgr install`, or create it")
        return self._transport.make_receiver(queue, prefetch)

    def browse(self, queue: str, limit: int) -> Generator[Received]:
        """Yield up to *limit* messages of *queue*, the oldest first; nothing is leased."""
        if self.missing_queues([queue]):
            raise QueueMissing([queue], "run `timeoutmgr install`, or create it")
        with as_transport(self._database):
            yield from rows_of(self._database, self._transport.tables, queue, limit)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Open a transaction; receivers of what was sent in it wake when it has committed.

        A commit whose result is unknown raises TransportUnavailable; an error of the database
        inside raises StorageUnavailable, as the owner of the transaction sees it.
        """
        manager = self._database.begin()
        with as_transport(self._database):
            connection = manager.__enter__()
        try:
            yield connection
        except BaseException as error:
            if not manager.__exit__(type(error), error, error.__traceback__):
                raise
        else:
            with as_transport(self._database):
                manager.__exit__(None, None, None)

    def now(self, *, transaction: Connection | None = None) -> Micros | None:
        """Return the database's clock, read in *transaction* if one is given; None on SQLite."""
        if self._database.dialect.now is None:
            return None
        with as_transport(self._database):
            if transaction is not None:
                return self._database.now_in(transaction)
            return self._database.now(self._transport.clock)

    def ping(self) -> None:
        """Return if the database answers."""
        with as_transport(self._database):
            self._database.ping()

    def close(self) -> None:
        """Nothing is held; closing is fine at any time."""
