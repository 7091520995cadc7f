"""Insert timeouts: first the key, so that each id is stored only once in its life."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection, bindparam, select, update

from timeoutmgr.contracts import (
    Key,
    OnConflict,
    Repeat,
    RepeatKind,
    Timeout,
    TimeoutState,
    Transaction,
)
from timeoutmgr.contracts.sagas import Cleared
from timeoutmgr.contracts.stores import refuse
from timeoutmgr.contracts.timeouts import content_of
from timeoutmgr.crashpoints import reach
from timeoutmgr.database import as_connection
from timeoutmgr.database.soundness import refusals
from timeoutmgr.errors import StorageConflict
from timeoutmgr.message.routes import EARLY_CANCEL
from timeoutmgr.persistence.remembered import AWAITED, kind_of, memory_of_new, with_first

from .batch_writes import require_fit
from .commands import TimeoutCommands
from .context import StoreContext, lock_endpoint
from .labels import LabelRows
from .rows import entry, record, refused_value, sound_timeout, to_row
from .sagas import ClearedSagas, packed

# --- timeouts whose id was used before: a repeat, a replacement, or a conflict --------------------


class Repeats:
    """Settles repeats: timeouts of one endpoint whose ids are already in use."""

    def __init__(self, context: StoreContext, changing: TimeoutCommands) -> None:
        self._context = context
        self._changing = changing
        keys = context.tables.keys
        one_key = (keys.c.endpoint == context.endpoint, keys.c.id == bindparam("id"))
        self._read_keys = select(keys.c.state, keys.c.content).where(*one_key)
        self._known = select(keys.c.state, keys.c.content).where(*one_key)
        if context.locks_what_it_reads:
            # The insert that met the key has already locked it for reading; with repeatable reads,
            # the transaction would not see it otherwise.
            self._known = self._known.with_for_update(read=True)
        self._remember = (
            update(keys)
            .where(
                keys.c.endpoint == context.endpoint,
                keys.c.id == bindparam("id_"),
                keys.c.content == bindparam("known_"),
            )
            .values(content=bindparam("content_"))
        )
        self._arrive = self._remember.values(due=bindparam("due_"), closed_at=bindparam("at_"))

    def prepare(self, connection: Connection, timeouts: Sequence[Timeout]) -> None:
        """On MySQL, acquire the lock that replacements need before any key is locked."""
        if self._context.locks_what_it_reads and any(map(may_replace, timeouts)):
            lock_endpoint(connection, self._context)

    def is_known(self, connection: Connection, timeout: Timeout) -> bool:
        """Return whether the id of *timeout* was used before, without locking its key."""
        return connection.execute(self._read_keys, {"id": timeout.id}).first() is not None

    def settle(
        self,
        connection: Connection,
        timeout: Timeout,
        row: dict[str, Any],
        content: bytes,
        channel: str,
    ) -> RepeatKind:
        """Settle the repeat *timeout* (*row* is its row if it is stored); return its kind.

        *channel* is the path of its cancel, if it was cancelled.
        """
        if may_replace(timeout):
            kind = self._changing.replace(connection, timeout, row, content)
            if kind is not None:
                return kind
        key = connection.execute(self._known, {"id": timeout.id}).first()
        if key is None:
            raise StorageConflict(
                f"the tombstone of timeout {timeout.id!r} was purged while the message was stored "
                "again; the message is stored with the next attempt"
            )
        kind = kind_of(key.content, timeout, content)
        if kind is RepeatKind.CANCELLED:
            return self._arrived(connection, timeout, content, channel)
        if kind is RepeatKind.SUPERSEDED and (more := with_first(key.content, timeout, content)):
            change = {"id_": timeout.id, "known_": key.content, "content_": more}
            if connection.execute(self._remember, change).rowcount == 0:
                # Another message came first, or the timeout was replaced, since the key was read.
                return self.settle(connection, timeout, row, content, channel)
        return kind

    def examine(self, timeouts: Sequence[Timeout], transaction: Transaction) -> Sequence[Repeat]:
        """Return the repeats among *timeouts*, without storing or changing anything."""
        found: list[Repeat] = []
        for timeout in timeouts:
            key = transaction.execute(self._read_keys, {"id": timeout.id}).first()
            if key is not None:
                found.append(Repeat(timeout, _examined(key, timeout)))
        return found

    def cancel_before_arrival(self, connection: Connection, timeout: Timeout) -> None:
        """Leave a tombstone for *timeout*, unless its id is known."""
        self._changing.bar(connection, timeout.id)

    def _arrived(
        self, connection: Connection, timeout: Timeout, content: bytes, channel: str
    ) -> RepeatKind:
        """Record that the message of an early cancel has arrived; only the first time."""
        at = self._context.now(connection)
        came = {"id_": timeout.id, "known_": AWAITED, "due_": timeout.due, "at_": at}
        came["content_"] = memory_of_new(timeout, content)
        if connection.execute(self._arrive, came).rowcount == 0:
            return RepeatKind.DUPLICATE
        reach("repeats.arrival_noted")
        cancelled = entry(timeout.key, at, timeout.destination, timeout.attempts, None)
        record(connection, self._context, TimeoutState.CANCELLED.value, [cancelled], channel)
        return RepeatKind.CANCELLED


def may_replace(timeout: Timeout) -> bool:
    """Return whether *timeout* replaces a pending timeout."""
    return timeout.on_conflict is OnConflict.REPLACE


def _examined(key: Any, timeout: Timeout) -> RepeatKind:
    if may_replace(timeout) and key.state == TimeoutState.PENDING:
        return RepeatKind.REPLACED
    return kind_of(key.content, timeout, content_of(timeout))


Result = TypeVar("Result")


class _Item(NamedTuple):
    """A timeout with all data for its insert."""

    timeout: Timeout
    key: Key
    row: dict[str, Any]
    content: bytes
    replaces: bool


class TimeoutInsert:
    """Stores batches of timeouts of one endpoint."""

    def __init__(self, context: StoreContext, repeats: Repeats, cleared: ClearedSagas) -> None:
        self._context = context
        self._repeats = repeats
        self._cleared = cleared
        self._labels = LabelRows(context)

    def store_many(
        self, timeouts: Sequence[Timeout], transaction: Transaction | None
    ) -> Sequence[Repeat]:
        """Store all or none; return repeats, whose ids were stored, cancelled or dispatched before.

        Raises MessageRejected for a message that the database cannot hold, and IdInUse.
        """
        if not timeouts:
            return ()
        has_place = False
        for timeout in timeouts:
            has_place = has_place or timeout.place is not None
        batch = [self._item(timeout, has_place=has_place) for timeout in timeouts]

        def insert_sound_row(connection: Connection) -> None:
            sound = self._item(sound_timeout(timeouts[0].due))
            self._insert_keys(connection, [sound])
            self._insert_rows(connection, [sound])

        connection = None if transaction is None else as_connection(transaction)
        with refusals(self._context.database, connection, insert_sound_row, refused_value):
            return self._stored(batch, transaction)

    def _stored(self, batch: Sequence[_Item], transaction: Transaction | None) -> Sequence[Repeat]:
        try:
            if len({item.key.id for item in batch}) < len(batch):
                raise _NotAllNew
            self._run(lambda connection: self._all_new(connection, batch), transaction)
        except _NotAllNew:
            reach("storing.batch_undone")
            return self._run(lambda connection: self._one_by_one(connection, batch), transaction)
        return ()

    def _run(self, work: Callable[[Connection], Result], transaction: Transaction | None) -> Result:
        if transaction is None:
            return self._context.database.run(work)
        connection = as_connection(transaction)
        with connection.begin_nested():
            return work(connection)

    def _item(self, timeout: Timeout, *, has_place: bool = False) -> _Item:
        row = to_row(self._context.endpoint, timeout)
        if has_place:  # all rows of a batch must have the same columns
            row["place"] = packed(timeout.place)
        replaces = timeout.on_conflict is OnConflict.REPLACE
        return _Item(timeout, Key(row["due"], timeout.id), row, content_of(timeout), replaces)

    def _all_new(self, connection: Connection, batch: Sequence[_Item]) -> None:
        # By id, so that two batches that share ids wait for each other in one order.
        batch = sorted(batch, key=_id)
        require_fit(connection, [item.row for item in batch])
        if "place" in batch[0].row and self._reaching(connection, batch):
            raise _NotAllNew
        if self._insert_keys(connection, batch) != len(batch):
            raise _NotAllNew
        reach("storing.keys_inserted")
        self._insert_rows(connection, batch)
        reach("storing.written")

    def _one_by_one(self, connection: Connection, batch: Sequence[_Item]) -> Sequence[Repeat]:
        timeouts = [item.timeout for item in batch]
        cleared = self._reaching(connection, batch)
        self._repeats.prepare(connection, timeouts)
        require_fit(connection, [item.row for item in batch])
        # First the writes that lock rows, before any key stays locked; per id in the given order.
        replaced = {timeout.id for timeout in timeouts if may_replace(timeout)}
        found: list[Repeat] = []
        for item in sorted(batch, key=lambda one: (one.timeout.id not in replaced, _id(one))):
            # The key's row exists from the first store to the end of the tombstone's retention,
            # through every change in between. So a free key means a new id.
            clear = cleared.get(item.timeout.id)
            if clear is not None:
                self._repeats.cancel_before_arrival(connection, item.timeout)
            if not self._is_stored_anew(connection, item):
                channel = EARLY_CANCEL if clear is None else clear.channel or EARLY_CANCEL
                kind = self._repeats.settle(
                    connection, item.timeout, item.row, item.content, channel
                )
                reach("storing.repeat_settled")
                found.append(Repeat(item.timeout, kind))
        refuse(found)
        return found

    def _reaching(self, connection: Connection, batch: Sequence[_Item]) -> dict[str, Cleared]:
        """Return the clears that affect timeouts of *batch*, by timeout id."""
        return self._cleared.reaching(connection, [item.timeout for item in batch])

    def _is_stored_anew(self, connection: Connection, item: _Item) -> bool:
        if may_replace(item.timeout) and self._repeats.is_known(connection, item.timeout):
            return False  # an insert would lock the key before the row
        if not self._insert_keys(connection, [item]):
            return False
        reach("storing.key_inserted")
        self._insert_rows(connection, [item])
        reach("storing.written")
        return True

    def _insert_keys(self, connection: Connection, batch: Sequence[_Item]) -> int:
        keys = [item.key for item in batch]
        contents = [
            memory_of_new(item.timeout, item.content) if item.replaces else item.content
            for item in batch
        ]
        return self._context.writing.insert_keys(connection, keys, contents)

    def _insert_rows(self, connection: Connection, batch: Sequence[_Item]) -> None:
        rows = [item.row for item in batch]
        self._context.writing.insert_rows(connection, self._context.tables.timeouts, rows)
        reach("storing.rows_inserted")
        labels = ((item.key, item.row["headers"]) for item in batch)
        self._labels.insert(connection, labels)
        if self._context.settings.history == "full":
            at = self._context.now(connection)
            timeouts = [item.timeout for item in batch]
            entries = [entry(t.key, at, t.destination, t.attempts, None) for t in timeouts]
            record(connection, self._context, "scheduled", entries)


class _NotAllNew(Exception):
    """Some id of the batch was stored before, or is cleared; nothing of the batch is stored."""


def _id(item: _Item) -> str:
    return item.key.id
