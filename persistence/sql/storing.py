"""Storing timeouts: the key first, so that each id is stored once in its life."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from timeoutmgr.contracts import Timeout, Transaction
from timeoutmgr.crashpoints import reach
from timeoutmgr.database.soundness import refusals

from .context import StoreContext
from .history import entry, record
from .inserting import require_fit
from .rows import refused_value, sound_timeout, to_row


class Storing:
    """Stores batches of timeouts of one endpoint."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context

    def store_many(self, timeouts: Sequence[Timeout], transaction: Transaction | None) -> None:
        """Store all or none; skip the ids that were ever stored, cancelled or dispatched.

        Raises MessageRejected for a message that the database cannot hold.
        """
        # By id, so that two batches that share ids wait for each other in one order. Of one id
        # twice in a batch the first counts.
        batch = sorted({timeout.id: timeout for timeout in reversed(timeouts)}.values(), key=_id)
        rows = [to_row(self._context.endpoint, timeout) for timeout in batch]
        keys = [timeout.key for timeout in batch]
        insert_keys = self._context.writing.insert_keys
        if not batch:
            return

        def all_new(connection: Connection) -> None:
            require_fit(connection, rows)
            if insert_keys(connection, keys) != len(keys):
                raise _NotAllNew
            reach("storing.keys_inserted")
            self._insert_rows(connection, batch, rows)
            reach("storing.written")

        def one_by_one(connection: Connection) -> None:
            for timeout, key, row in zip(batch, keys, rows, strict=True):
                # The key's row is there from the first store to the end of the tombstone's
                # retention, whatever happens in between. So a free key is a new id.
                if insert_keys(connection, [key]):
                    reach("storing.key_inserted")
                    self._insert_rows(connection, [timeout], [row])
                    reach("storing.written")

        def store() -> None:
            try:
                if transaction is None:
                    self._context.database.run(all_new)
                else:
                    with transaction.begin_nested():
                        all_new(transaction)
            except _NotAllNew:
                reach("storing.batch_undone")
                if transaction is None:
                    self._context.database.run(one_by_one)
                else:
                    one_by_one(transaction)

        def insert_sound_row(connection: Connection) -> None:
            sound = sound_timeout(batch[0].due)
            insert_keys(connection, [sound.key])
            self._insert_rows(connection, [sound], [to_row(self._context.endpoint, sound)])

        with refusals(self._context.database, transaction, insert_sound_row, refused_value):
            store()

    def _insert_rows(
        self, connection: Connection, timeouts: Sequence[Timeout], rows: list[dict[str, object]]
    ) -> None:
        self._context.writing.insert_rows(connection, self._context.tables.timeouts, rows)
        reach("storing.rows_inserted")
        if self._context.settings.history == "full":
            at = self._context.now(connection)
            record(
                connection,
                self._context,
                "scheduled",
                [entry(t.key, at, t.destination, t.attempts, None) for t in timeouts],
            )


class _NotAllNew(Exception):
    """Some id of the batch was stored before; nothing of the batch is kept."""


def _id(timeout: Timeout) -> str:
    return timeout.id
