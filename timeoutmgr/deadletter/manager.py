"""The queue manager of one node: the only writer of its dead letters and journals.

Each method is one transaction, its own or the caller's, and may be repeated: a message that is
placed twice is stored once, with its last known status.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Table, and_, delete, select, update

from timeoutmgr.contracts import Transaction
from timeoutmgr.contracts.dead_letters import JournalLevel, MessageClass, is_negative
from timeoutmgr.crashpoints import reach
from timeoutmgr.database import as_connection
from timeoutmgr.database.batch_inserts import misfit
from timeoutmgr.database.texts import is_storable
from timeoutmgr.deadletter.delivery_headers import Timers
from timeoutmgr.deadletter.store import DeadLetterStore
from timeoutmgr.deadletter.stored_copy import Placement, StoredCopy
from timeoutmgr.deadletter.tables import REASON_LENGTH, DeadLetterTables, from_row, to_row
from timeoutmgr.errors import ConfigurationError, MessageRejected, NodeFull, SchemaMissing
from timeoutmgr.message.instants import LATEST, MICROSECOND, Micros
from timeoutmgr.telemetry import Telemetry
from timeoutmgr.transport.error_queue import message_fields

logger = logging.getLogger(__name__)

# --- quotas of a node and their use: the node's row, which every change locks first -----------
# So placing is serial per node, quotas are exact, and all transactions of this store lock in the
# same order.

NODE_BYTES: Final = 8 * 1024**3
"""Default quota of a node for all its copies: 8 GiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """Maximum bytes of headers and bodies on a node; None means no separate limit.

    Above *dead_letters*, a new dead letter is discarded; above *journal*, no copy is made. *node*
    limits all copies together: above it, the node refuses copies, and their messages wait.
    """

    dead_letters: int | None = None
    journal: int | None = None
    node: int | None = NODE_BYTES

    def __post_init__(self) -> None:
        """Check every value."""
        for name, value in asdict(self).items():
            if value is not None and value < 0:
                raise ConfigurationError(
                    f"quota {name} must be None or bytes from 0 up, got {value}"
                )


@dataclass(slots=True)
class QuotaUsage:
    """Bytes and copies on a node, read under a lock; ``save`` writes the changes."""

    connection: Connection
    tables: DeadLetterTables
    node: str
    used: dict[str, int]
    _change: dict[str, int] = field(default_factory=dict)

    @classmethod
    def lock(cls, connection: Connection, tables: DeadLetterTables, node: str) -> "QuotaUsage":
        """Lock and return the usage of *node*; other transactions wait until this one ends."""
        nodes = tables.nodes
        found = connection.execute(
            nodes.select().where(nodes.c.node == node).with_for_update()
        ).one_or_none()
        if found is None:
            raise SchemaMissing(
                f"node {node!r} is not installed; run `timeoutmgr install`, or start with "
                "install = true"
            )
        used = {name: number for name, number in found._mapping.items() if "_" in name}
        return cls(connection, tables, node, used)

    def of(self, counter: str) -> int:
        """Return the bytes of a *counter*: ``letters``, ``awaiting`` or ``journal``."""
        return self.used[f"{counter}_bytes"] + self._change.get(f"{counter}_bytes", 0)

    @property
    def total(self) -> int:
        """The bytes of all copies."""
        return sum(self.of(counter) for counter in ("letters", "awaiting", "journal"))

    def add(self, counter: str, size: int, count: int = 1) -> None:
        """Add *count* copies of *size* bytes together to *counter*; subtract negative numbers."""
        for name, number in ((f"{counter}_bytes", size), (f"{counter}_count", count)):
            self._change[name] = self._change.get(name, 0) + number

    def save(self) -> None:
        """Write the changes."""
        nodes = self.tables.nodes
        values: dict[str, Any] = {
            name: nodes.c[name] + number for name, number in self._change.items() if number
        }
        if values:
            self.connection.execute(update(nodes).where(nodes.c.node == self.node).values(values))
            self._change.clear()


REMEMBERED: Final = 30 * 86_400 * 1_000_000
"""Microseconds for which a first attempt is kept after the time to reach the queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstAttempt:
    """An attempt to send a delayed message, *due* at that instant, *at* an instant.

    *reach_queue* is its time to reach the queue, in microseconds.
    """

    key: tuple[str, str]
    due: Micros
    at: Micros
    reach_queue: Micros

    def as_row(self, node: str) -> dict[str, Any]:
        """Return the row of *node*."""
        message_id, destination = self.key
        forget_at = min(self.at + self.reach_queue + REMEMBERED, LATEST)
        about = {"node": node, "message_id": message_id, "destination": destination}
        return {**about, "due": self.due, "at": self.at, "forget_at": forget_at}


Result = TypeVar("Result")

SWEEP: Final = 200
"""Copies that one transaction of a sweep moves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueManager:
    """Places, keeps, moves and journals for *node*. Safe for many threads."""

    store: DeadLetterStore
    node: str
    quotas: Quotas = Quotas()
    telemetry: Telemetry | None = None
    calls: Callable[[Callable[[], Any]], Any] = lambda call: call()
    """Makes each call to the store, except in a caller's transaction."""

    def place(self, copy: StoredCopy, *, transaction: Transaction | None = None) -> Placement:
        """Put *copy* into its dead-letter queue, if its level asks for a dead letter.

        This removes the copy that awaited its acknowledgement: a node has one copy at any time.
        Raises NodeFull, StorageUnavailable, and MessageRejected for a message that no database can
        store.
        """
        return self._run(lambda c: self._place(c, copy), transaction)

    def keep(
        self,
        copies: Sequence[StoredCopy],
        deadline: Micros | None,
        received_by: Micros | None,
        *,
        transaction: Transaction | None = None,
    ) -> None:
        """Keep *copies* of messages about to be sent, until their final acknowledgement.

        They become dead letters at *deadline* unless they have arrived by then, otherwise at
        *received_by*; None means never. A dead letter that is sent again is moved back to here.
        Raises NodeFull, and MessageRejected for a copy that is too large for the database.
        """

        def work(connection: Connection) -> None:
            rows = [to_row(self.node, copy) for copy in copies]
            _require_fit(connection, rows)
            usage = self.lock(connection)
            for copy, row in zip(copies, rows, strict=True):
                row |= {"deadline": deadline, "received_by": received_by, "channel": None}
                self._put(usage, usage.tables.awaiting, copy.key, row)
                reach("deadletters.kept")
            usage.save()

        self._run(work, transaction)

    def arrived(
        self, keys: Sequence[tuple[str, str]], *, transaction: Transaction | None = None
    ) -> None:
        """Record that messages (id and destination) have reached their queue."""
        awaiting = self.store.tables.awaiting

        def work(connection: Connection) -> None:
            for key in keys:
                connection.execute(
                    update(awaiting)
                    .where(self._is(awaiting, key))
                    .values(
                        {"class": MessageClass.ACK_REACH_QUEUE, "deadline": awaiting.c.received_by}
                    )
                )
                reach("deadletters.arrived")

        self._run(work, transaction)

    def acknowledge(
        self,
        key: tuple[str, str],
        ended: int,
        *,
        reason: str = "",
        channel: str | None = None,
        transaction: Transaction | None = None,
    ) -> Placement | None:
        """Settle the message *key* by its final acknowledgement, whose class is *ended*.

        If the message was received, its copy is journaled on request, otherwise deleted. If not,
        its copy moves to the transactional dead-letter queue. The dead letter of a message that was
        given up before is marked as late, and stays; it is never sent again from here. A remaining
        row names *channel*, the path of the acknowledgement. None if the message is unknown.
        """
        return self._run(lambda c: self._acknowledge(c, key, ended, reason, channel), transaction)

    def now(self, transaction: Transaction | None = None) -> Micros:
        """Return the time of the store's database, which deadlines count by if it has a clock."""
        database, clock = self.store.database, self.store.clock
        if transaction is not None:
            return database.now_in(as_connection(transaction), clock)
        return int(self.calls(lambda: database.now(clock)))

    def sweep(self, now: Micros) -> int:
        """Move messages without an acknowledgement to their dead-letter queue; return how many.

        At most ``SWEEP`` at once: call again while it returns that many.
        """
        return self._run(lambda c: self._sweep(c, now), None)

    def note_attempts(
        self, attempts: Sequence[FirstAttempt], *, transaction: Transaction | None = None
    ) -> None:
        """Record *attempts* to send messages; an earlier attempt of the same message is kept."""
        table = self.store.tables.first_attempts

        def work(connection: Connection) -> None:
            self.lock(connection)  # so that no two transactions insert the same row
            for one in attempts:
                found = connection.execute(select(table.c.due).where(self._is(table, one.key)))
                noted = found.scalar_one_or_none()
                if noted == one.due:
                    continue
                connection.execute(delete(table).where(self._is(table, one.key)))
                connection.execute(table.insert(), one.as_row(self.node))
                reach("deadletters.attempt_noted")

        self._run(work, transaction)

    def first_attempt(self, key: tuple[str, str], due: Micros) -> Micros | None:
        """Return when message *key* with this *due* time was first tried; None if not recorded."""
        table = self.store.tables.first_attempts
        one = and_(self._is(table, key), table.c.due == due)

        def read() -> Micros | None:
            with self.store.database.read() as connection:
                return connection.execute(select(table.c.at).where(one)).scalar()

        at: Micros | None = self.calls(read)
        return at

    def guid(self) -> str | None:
        """Return the GUID of the node as this process first read it."""
        known = self.store.guids
        if self.node not in known and (found := self.calls(lambda: self.store.guid_of(self.node))):
            known[self.node] = found
        return known.get(self.node)

    def forget_attempts(self, now: Micros) -> None:
        """Delete attempts of messages whose time to reach their queue ended long ago."""
        table = self.store.tables.first_attempts
        old = and_(table.c.node == self.node, table.c.forget_at <= now)
        self._run(lambda connection: connection.execute(delete(table).where(old)), None)

    def journal(
        self, copy: StoredCopy, *, target: bool, transaction: Transaction | None = None
    ) -> Placement:
        """Put *copy* of a delivered message into the journal of the node, or of a *target* queue.

        Above its quota no copy is made, and delivery continues. Raises MessageRejected for a copy
        that is too large for the database.
        """

        def work(connection: Connection) -> Placement:
            _require_fit(connection, [to_row(self.node, copy)])
            usage = self.lock(connection)
            placed = self._journal(usage, copy, target)
            usage.save()
            return placed

        return self._run(work, transaction)

    def discard(
        self, table: Table, keys: Sequence[dict[str, Any]], *, transaction: Transaction | None
    ) -> int:
        """Delete rows of *table* by their keys; return how many were deleted."""

        def work(connection: Connection) -> int:
            usage = self.lock(connection)
            deleted = 0
            for key in keys:
                columns = (table.c[name] == value for name, value in key.items())
                one = and_(table.c.node == self.node, *columns)
                if size := self._size(usage, table, one):
                    self._delete(usage, table, one, size)
                    reach("deadletters.deleted")
                    deleted += 1
            usage.save()
            return deleted

        return self._run(work, transaction)

    def _run(self, work: Callable[[Connection], Result], given: Transaction | None) -> Result:
        if given is not None:
            return work(as_connection(given))
        made: Result = self.calls(lambda: self.store.database.run(work))
        return made

    def lock(self, connection: Connection) -> QuotaUsage:
        """Lock the node's row; every transaction that changes anything does this first."""
        return QuotaUsage.lock(connection, self.store.tables, self.node)

    def _place(self, connection: Connection, copy: StoredCopy) -> Placement:
        usage = self.lock(connection)
        if JournalLevel.DEADLETTER not in copy.journal:
            self._delete_awaiting(usage, copy.key)
            usage.save()
            return Placement.NOT_ASKED
        _require_fit(connection, [to_row(self.node, copy)])
        placed = self._move_to_dead_letters(usage, copy)
        usage.save()
        return placed

    def _move_to_dead_letters(self, usage: QuotaUsage, copy: StoredCopy) -> Placement:
        dead_letters, row = usage.tables.dead_letters, to_row(self.node, copy)
        before = self._size(usage, dead_letters, self._is(dead_letters, copy.key))
        own = self.quotas.dead_letters
        if own is not None and usage.of("letters") - before + row["bytes"] > own:
            return Placement.OVER_QUOTA
        self._put(usage, dead_letters, copy.key, row)
        reach("deadletters.placed")
        return Placement.PLACED

    def _acknowledge(
        self,
        connection: Connection,
        key: tuple[str, str],
        ended: int,
        reason: str,
        channel: str | None,
    ) -> Placement | None:
        usage = self.lock(connection)
        awaiting = usage.tables.awaiting
        found = connection.execute(select(awaiting).where(self._is(awaiting, key))).one_or_none()
        if found is None:
            return self._note_late(connection, key, ended, channel)
        kept, now = from_row(found), self.store.clock.now()
        copy = replace(kept, message_class=ended, reason=reason, channel=channel, kept=now)
        placed = self._settle(usage, copy)
        usage.save()
        return placed

    def _settle(self, usage: QuotaUsage, copy: StoredCopy) -> Placement:
        """Move *copy*, which awaits its acknowledgement, to the queue of its class."""
        placed = Placement.NOT_ASKED
        negative = is_negative(copy.message_class)
        if negative and JournalLevel.DEADLETTER in copy.journal:
            # A move within the node needs no room, however full the node is.
            placed = self._move_to_dead_letters(usage, copy)
            if placed is Placement.OVER_QUOTA:
                self._report_discarded(copy)
        self._delete_awaiting(usage, copy.key)
        reach("deadletters.settled")
        if not negative and JournalLevel.JOURNAL in copy.journal:
            return self._journal(usage, copy, target=False)
        return placed

    def _report_discarded(self, copy: StoredCopy) -> None:
        logger.error(
            "node %s discards dead message %.80r for %.80r (%s), its dead-letter queue is full",
            self.node,
            copy.message.id,
            copy.destination,
            copy.class_name,
            extra=message_fields("dead_letter_discarded", copy.message, copy.destination),
        )
        if self.telemetry is not None:
            self.telemetry.count("dead_letters_over_quota")

    def _note_late(
        self, connection: Connection, key: tuple[str, str], ended: int, channel: str | None
    ) -> Placement | None:
        dead_letters = self.store.tables.dead_letters
        one = and_(self._is(dead_letters, key), dead_letters.c.xact == 1)
        values: dict[str, Any] = {"class": ended} if is_negative(ended) else {"late_ack": 1}
        named = update(dead_letters).where(one).values(values | {"channel": channel})
        changed = connection.execute(named).rowcount
        reach("deadletters.late")
        return Placement.PLACED if changed else None

    def _sweep(self, connection: Connection, now: Micros) -> int:
        awaiting = self.store.tables.awaiting
        due = (
            select(awaiting)
            .where(awaiting.c.node == self.node, awaiting.c.deadline <= now)
            .order_by(awaiting.c.deadline, awaiting.c.message_id, awaiting.c.destination)
            .limit(SWEEP)
        )
        reason = "no final acknowledgement came in time; it may have been received all the same"
        usage = self.lock(connection)
        found = [from_row(row) for row in connection.execute(due)]
        for kept in found:
            ended = _overdue(kept)
            self._settle(usage, replace(kept, message_class=ended, reason=reason, kept=now))
        usage.save()
        return len(found)

    def _journal(self, usage: QuotaUsage, copy: StoredCopy, target: bool) -> Placement:
        journals = usage.tables.journals
        row = to_row(self.node, copy) | {"target": int(target)}
        row.pop("app_queue")
        one = and_(self._is(journals, copy.key), journals.c.target == int(target))
        size = self._size(usage, journals, one)
        own, more = self.quotas.journal, row["bytes"] - size
        if own is not None and usage.of("journal") + more > own:
            return Placement.OVER_QUOTA
        if self.quotas.node is not None and usage.total + more > self.quotas.node:
            return Placement.OVER_QUOTA
        if size:
            self._delete(usage, journals, one, size)
            reach("deadletters.journal_taken_out")
        self._insert(usage, journals, row)
        reach("deadletters.journaled")
        return Placement.PLACED

    def _put(
        self, usage: QuotaUsage, table: Table, key: tuple[str, str], row: dict[str, Any]
    ) -> None:
        """Put *row* into *table*, replacing the copy of *key* that the node may have."""
        places = (usage.tables.dead_letters, usage.tables.awaiting)
        sizes = [self._size(usage, one, self._is(one, key)) for one in places]
        # Before any change: the transaction may be a caller's, who continues it.
        self._require_room(usage, row["bytes"] - sum(sizes))
        for one, size in zip(places, sizes, strict=True):
            if size:
                self._delete(usage, one, self._is(one, key), size)
                reach("deadletters.deleted")
        reach("deadletters.taken_out")
        self._insert(usage, table, row)

    def _delete_awaiting(self, usage: QuotaUsage, key: tuple[str, str]) -> None:
        awaiting = usage.tables.awaiting
        one = self._is(awaiting, key)
        if size := self._size(usage, awaiting, one):
            self._delete(usage, awaiting, one, size)
            reach("deadletters.forgotten")

    def _delete(self, usage: QuotaUsage, table: Table, one: Any, size: int) -> None:
        usage.connection.execute(delete(table).where(one))
        usage.add(usage.tables.counter(table), -size, -1)

    def _insert(self, usage: QuotaUsage, table: Table, row: dict[str, Any]) -> None:
        usage.connection.execute(table.insert(), row)
        usage.add(usage.tables.counter(table), row["bytes"])

    def _size(self, usage: QuotaUsage, table: Table, one: Any) -> int:
        found = usage.connection.execute(select(table.c.bytes).where(one))
        return int(found.scalar_one_or_none() or 0)

    def _is(self, table: Table, key: tuple[str, str]) -> Any:
        message_id, destination = key
        if not is_storable(message_id + destination):  # the acknowledgement's own words
            raise MessageRejected(f"no node keeps {key!r:.80}: a copy has plain text as its key")
        return and_(
            table.c.node == self.node,
            table.c.message_id == message_id,
            table.c.destination == destination,
        )

    def _require_room(self, usage: QuotaUsage, more: int) -> None:
        quota = self.quotas.node
        if quota is not None and more > 0 and usage.total + more > quota:
            raise NodeFull(self.node, usage.total, quota)


def _require_fit(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Raise MessageRejected for a new copy that is too large for a statement.

    Room for the longest reason is kept free, so that a stored copy can be moved later.
    """
    reason = misfit(connection, rows, lambda _row: 4 * REASON_LENGTH)
    if reason is not None:
        raise MessageRejected(reason)


def _overdue(kept: StoredCopy) -> MessageClass:
    """Return the class of a kept message whose time is over, depending on the timer."""
    if kept.message_class == MessageClass.ACK_REACH_QUEUE:
        return MessageClass.NACK_RECEIVE_TIMEOUT
    limit = kept.time_to_be_received
    timers = Timers(
        reach_queue=kept.time_to_reach_queue * MICROSECOND,
        be_received=None if limit is None else limit * MICROSECOND,
    )
    ended = timers.after(timers.until_arrival).ended(arrived=False, at_sender=True)
    assert ended is not None, "no time is left"
    return ended
