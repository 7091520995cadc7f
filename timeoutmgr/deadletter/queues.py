"""The read side of dead letters and journals: applications peek, receive and delete.

Only the queue manager puts copies in.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    String,
    Table,
    cast,
    func,
    literal_column,
    select,
)

from timeoutmgr.contracts import Transaction
from timeoutmgr.database import as_connection
from timeoutmgr.deadletter.manager import QueueManager
from timeoutmgr.deadletter.stored_copy import NodeQueue, StoredCopy
from timeoutmgr.deadletter.tables import ID_LENGTH, from_row
from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message.instants import Micros, require_window

AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCopyFilter:
    """Filter of stored copies; *kept* is a half-open range, None means any value.

    *reason* is a part of the reason, in upper or lower case.
    """

    message_id: str | None = None
    destination: str | None = None
    message_class: int | None = None
    reason: str | None = None
    kept_from: Micros | None = None
    kept_before: Micros | None = None

    def __post_init__(self) -> None:
        """Refuse an empty time window."""
        require_window(InvalidMessage, kept_from=self.kept_from, kept_before=self.kept_before)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCopyGroup:
    """Number and age of the copies with the same class and reason."""

    message_class: int
    reason: str
    count: int
    oldest: Micros
    newest: Micros


EVERYTHING: Final = StoredCopyFilter()


@dataclass(frozen=True, slots=True)
class StoredCopyQueue:
    """A node's own queue or, with *name*, the dead-letter queue of an application.

    For a journal, *name* is the queue of that journal; without a name, it is the node's journal.
    Without a *kind*, it has the copies that await their final acknowledgement.
    """

    manager: QueueManager
    kind: NodeQueue | None
    name: str = ""

    def peek(
        self,
        which: StoredCopyFilter = EVERYTHING,
        *,
        limit: int = 100,
        after: tuple[Micros, str, str] | None = None,
    ) -> list[StoredCopy]:
        """Return copies, the oldest first; *after* is the cursor: the last copy seen."""
        table = self._table
        order = (table.c.kept, table.c.message_id, table.c.destination)
        wanted = select(table).where(*self._conditions(which)).order_by(*order).limit(limit)
        if after is not None:
            kept, message_id, destination = order
            wanted = wanted.where(
                kept >= after[0],  # a separate condition: PostgreSQL starts there in the index
                (kept > after[0])
                | (message_id > after[1])
                | (message_id == after[1]) & (destination > after[2]),
            )
        with self.manager.store.database.read() as connection:
            return [from_row(row) for row in connection.execute(wanted)]

    def every(self, which: StoredCopyFilter = EVERYTHING) -> Iterator[StoredCopy]:
        """Yield all copies, the oldest first, with one page in memory."""
        after: tuple[Micros, str, str] | None = None
        while page := self.peek(which, limit=AT_ONCE, after=after):
            yield from page
            last = page[-1]
            after = (last.kept, *last.key)

    @contextmanager
    def receive(
        self, which: StoredCopyFilter = EVERYTHING, *, transaction: Transaction | None = None
    ) -> Iterator[StoredCopy | None]:
        """Yield the oldest copy, and delete it if the block ends without an error.

        With *transaction*, its commit deletes the copy. Two concurrent receivers get different
        copies, or the second waits.
        """
        if transaction is not None:
            yield self._received(as_connection(transaction), which)
            return
        with self.manager.store.database.begin() as connection:
            yield self._received(connection, which)

    def delete(
        self, copies: Sequence[StoredCopy], *, transaction: Transaction | None = None
    ) -> int:
        """Delete *copies* that are still unchanged; return their number."""
        keys = [self._key(copy) for copy in copies]
        return self.manager.discard(self._table, keys, transaction=transaction)

    def holds(self, copy: StoredCopy, transaction: Transaction) -> bool:
        """Return whether *copy* is here, unchanged; if so, it stays until *transaction* ends."""
        connection, table = as_connection(transaction), self._table
        self.manager.lock(connection)
        one = [table.c[name] == value for name, value in self._key(copy).items()]
        found = connection.execute(
            select(table.c.bytes).where(table.c.node == self.manager.node, *one)
        )
        return found.one_or_none() is not None

    def count(self, which: StoredCopyFilter = EVERYTHING) -> int:
        """Return the number of copies."""
        return self._one(select(func.count()).select_from(self._table), which) or 0

    def oldest(self, which: StoredCopyFilter = EVERYTHING) -> Micros | None:
        """Return the instant of the oldest copy, or None."""
        return self._one(select(func.min(self._table.c.kept)), which)

    def newest(self, which: StoredCopyFilter = EVERYTHING) -> Micros | None:
        """Return the instant of the newest copy, or None."""
        return self._one(select(func.max(self._table.c.kept)), which)

    def groups(self, which: StoredCopyFilter = EVERYTHING) -> list[StoredCopyGroup]:
        """Return the groups by class and reason, the largest first; reasons omit message ids."""
        table = self._table
        # Many reasons contain the message id; the rest of the text makes the group.
        message = cast(table.c.message_id, String(ID_LENGTH))
        named = func.replace(table.c.reason, message, literal_column("'…'"))
        cls, reason = table.c["class"], named.label("shown")
        wanted = (
            select(cls, reason, func.count(), func.min(table.c.kept), func.max(table.c.kept))
            .where(*self._conditions(which))
            .group_by(cls, reason)
            .order_by(func.count().desc(), cls, reason)
        )
        with self.manager.store.database.read() as connection:
            return [
                StoredCopyGroup(
                    message_class=row[0], reason=row[1], count=row[2], oldest=row[3], newest=row[4]
                )
                for row in connection.execute(wanted)
            ]

    @property
    def _table(self) -> Table:
        tables = self.manager.store.tables
        if self.kind is None:
            return tables.awaiting
        return tables.journals if self.kind is NodeQueue.JOURNAL else tables.dead_letters

    def _conditions(self, which: StoredCopyFilter) -> list[ColumnElement[bool]]:
        table = self._table
        found = [table.c.node == self.manager.node]
        if self.kind is NodeQueue.JOURNAL:
            found.append(table.c.target == int(bool(self.name)))
            if self.name:
                found.append(table.c.destination == self.name)
        elif self.kind is not None:
            found.append(table.c.xact == int(self.kind is NodeQueue.DEADXACT))
            found.append(table.c.app_queue == self.name)
        for column, value in (
            ("message_id", which.message_id),
            ("destination", which.destination),
            ("class", which.message_class),
        ):
            if value is not None:
                found.append(table.c[column] == value)
        if which.reason is not None:
            found.append(table.c.reason.icontains(which.reason, autoescape=True))
        if which.kept_from is not None:
            found.append(table.c.kept >= which.kept_from)
        if which.kept_before is not None:
            found.append(table.c.kept < which.kept_before)
        return found

    def _one(self, wanted: Select[Any], which: StoredCopyFilter) -> int | None:
        with self.manager.store.database.read() as connection:
            found: int | None = connection.execute(wanted.where(*self._conditions(which))).scalar()
        return found

    def _received(self, connection: Connection, which: StoredCopyFilter) -> StoredCopy | None:
        # Lock the node's row first, as every writer does.
        self.manager.lock(connection)
        table = self._table
        first = (
            select(table)
            .where(*self._conditions(which))
            .order_by(table.c.kept, table.c.message_id, table.c.destination)
            .limit(1)
        )
        row = connection.execute(first).one_or_none()
        if row is None:
            return None
        copy = from_row(row)
        self.manager.discard(table, [self._key(copy)], transaction=connection)
        return copy

    def _key(self, copy: StoredCopy) -> dict[str, Any]:
        key: dict[str, Any] = {
            "message_id": copy.message.id,
            "destination": copy.destination,
            # A message that was sent again may come back at once: its new copy has another instant.
            "kept": copy.kept,
        }
        if self.kind is None:
            return key
        if self.kind is NodeQueue.JOURNAL:
            return key | {"target": int(bool(self.name))}
        # The copy may have moved meanwhile, to another dead-letter queue, say: leave it there.
        return key | {"xact": int(self.kind is NodeQueue.DEADXACT), "app_queue": self.name}
