"""Insert timeouts: the key first, so that each id is stored once in its life."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection

from timeoutmgr.contracts import Repeat, Timeout, Transaction
from timeoutmgr.contracts.content import content_of
from timeoutmgr.contracts.refusals import refuse
from timeoutmgr.crashpoints import reach
from timeoutmgr.database import as_connection
from timeoutmgr.database.soundness import refusals

from .batch_writes import require_fit
from .context import StoreContext
from .repeats import Repeats, may_replace
from .rows import entry, record, refused_value, sound_timeout, to_row

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Item:
    """A timeout as it is written."""

    timeout: Timeout
    row: dict[str, Any]
    content: bytes


class TimeoutInsert:
    """Stores batches of timeouts of one endpoint."""

    def __init__(self, context: StoreContext, repeats: Repeats) -> None:
        self._context = context
        self._repeats = repeats

    def store_many(
        self, timeouts: Sequence[Timeout], transaction: Transaction | None
    ) -> Sequence[Repeat]:
        """Store all or none; return the timeouts whose id was ever stored, cancelled or dispatched.

        Raises MessageRejected for a message that the database cannot hold, and IdInUse.
        """
        if not timeouts:
            return ()
        batch = [self._item(timeout) for timeout in timeouts]

        def insert_sound_row(connection: Connection) -> None:
            sound = self._item(sound_timeout(timeouts[0].due))
            self._insert_keys(connection, [sound])
            self._insert_rows(connection, [sound])

        connection = None if transaction is None else as_connection(transaction)
        with refusals(self._context.database, connection, insert_sound_row, refused_value):
            return self._stored(batch, transaction)

    def _stored(self, batch: Sequence[_Item], transaction: Transaction | None) -> Sequence[Repeat]:
        try:
            if len({_id(item) for item in batch}) < len(batch):
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

    def _item(self, timeout: Timeout) -> _Item:
        return _Item(timeout, to_row(self._context.endpoint, timeout), content_of(timeout))

    def _all_new(self, connection: Connection, batch: Sequence[_Item]) -> None:
        # By id, so that two batches that share ids wait for each other in one order.
        batch = sorted(batch, key=_id)
        require_fit(connection, [item.row for item in batch])
        if self._insert_keys(connection, batch) != len(batch):
            raise _NotAllNew
        reach("storing.keys_inserted")
        self._insert_rows(connection, batch)
        reach("storing.written")

    def _one_by_one(self, connection: Connection, batch: Sequence[_Item]) -> Sequence[Repeat]:
        timeouts = [item.timeout for item in batch]
        self._repeats.prepare(connection, timeouts)
        require_fit(connection, [item.row for item in batch])
        # First the writes that lock rows, before any key is locked for good; of one id in the given
        # order.
        replaced = {timeout.id for timeout in timeouts if may_replace(timeout)}
        found: list[Repeat] = []
        for item in sorted(batch, key=lambda one: (one.timeout.id not in replaced, _id(one))):
            # The key's row is there from the first store to the end of the tombstone's
            # retention, through every change in between. So a free key is a new id.
            if not self._is_stored_anew(connection, item):
                kind = self._repeats.settle(connection, item.timeout, item.row, item.content)
                reach("storing.repeat_settled")
                found.append(Repeat(item.timeout, kind))
        refuse(found)
        return found

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
        keys = [item.timeout.key for item in batch]
        contents = [item.content for item in batch]
        return self._context.writing.insert_keys(connection, keys, contents)

    def _insert_rows(self, connection: Connection, batch: Sequence[_Item]) -> None:
        rows = [item.row for item in batch]
        self._context.writing.insert_rows(connection, self._context.tables.timeouts, rows)
        reach("storing.rows_inserted")
        if self._context.settings.history == "full":
            at = self._context.now(connection)
            timeouts = [item.timeout for item in batch]
            entries = [entry(t.key, at, t.destination, t.attempts, None) for t in timeouts]
            record(connection, self._context, "scheduled", entries)


class _NotAllNew(Exception):
    """Some id of the batch was stored before; nothing of the batch is kept."""


def _id(item: _Item) -> str:
    return item.timeout.id
