"""Timeouts whose id was used before: the same again, a replacement, or a conflict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, select, update

from timeoutmgr.contracts import OnConflict, Repeat, RepeatKind, Timeout, TimeoutState, Transaction
from timeoutmgr.contracts.content import content_of
from timeoutmgr.crashpoints import reach
from timeoutmgr.errors import StorageConflict
from timeoutmgr.message.channels import EARLY_CANCEL
from timeoutmgr.persistence.remembered import AWAITED, kind_of

from .commands import TimeoutCommands
from .context import StoreContext
from .locks import lock_endpoint
from .rows import entry, record


class Repeats:
    """Decides repeats: timeouts of one endpoint whose ids are in use."""

    def __init__(self, context: StoreContext, changing: TimeoutCommands) -> None:
        self._context = context
        self._changing = changing
        keys = context.tables.keys
        one_key = (keys.c.endpoint == context.endpoint, keys.c.id == bindparam("id"))
        self._read_keys = select(keys.c.state, keys.c.content).where(*one_key)
        self._known = select(keys.c.state, keys.c.content).where(*one_key)
        if context.locks_what_it_reads:
            # The insert that met the key has locked it for reading already; a transaction that
            # repeats its reads would not see it otherwise.
            self._known = self._known.with_for_update(read=True)
        self._arrive = (
            update(keys)
            .where(
                keys.c.endpoint == context.endpoint,
                keys.c.id == bindparam("id_"),
                keys.c.content == AWAITED,
            )
            .values(
                content=bindparam("content_"), due=bindparam("due_"), closed_at=bindparam("at_")
            )
        )

    def prepare(self, connection: Connection, timeouts: Sequence[Timeout]) -> None:
        """Take the lock that replacements need before any key is locked, on MySQL."""
        if self._context.locks_what_it_reads and any(map(may_replace, timeouts)):
            lock_endpoint(connection, self._context)

    def is_known(self, connection: Connection, timeout: Timeout) -> bool:
        """Return whether the id of *timeout* was used before, without a lock on its key."""
        return connection.execute(self._read_keys, {"id": timeout.id}).first() is not None

    def settle(
        self, connection: Connection, timeout: Timeout, row: dict[str, Any], content: bytes
    ) -> RepeatKind:
        """Settle the repeat *timeout*, whose row would be *row*, and return its kind."""
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
            return self._arrived(connection, timeout, content)
        return kind

    def examine(self, timeouts: Sequence[Timeout], transaction: Transaction) -> Sequence[Repeat]:
        """Return the repeats among *timeouts*, without storing; change nothing."""
        found: list[Repeat] = []
        for timeout in timeouts:
            key = transaction.execute(self._read_keys, {"id": timeout.id}).first()
            if key is not None:
                found.append(Repeat(timeout, _examined(key, timeout)))
        return found

    def _arrived(self, connection: Connection, timeout: Timeout, content: bytes) -> RepeatKind:
        """Note that the message of an early cancel has come; once, however often it comes."""
        at = self._context.now(connection)
        came = {"id_": timeout.id, "content_": content, "due_": timeout.due, "at_": at}
        if connection.execute(self._arrive, came).rowcount == 0:
            return RepeatKind.DUPLICATE
        reach("repeats.arrival_noted")
        cancelled = entry(timeout.key, at, timeout.destination, timeout.attempts, None)
        record(connection, self._context, TimeoutState.CANCELLED.value, [cancelled], EARLY_CANCEL)
        return RepeatKind.CANCELLED


def may_replace(timeout: Timeout) -> bool:
    """Return whether *timeout* replaces a pending timeout."""
    return timeout.on_conflict is OnConflict.REPLACE


def _examined(key: Any, timeout: Timeout) -> RepeatKind:
    if may_replace(timeout) and key.state == TimeoutState.PENDING:
        return RepeatKind.REPLACED
    return kind_of(key.content, timeout, content_of(timeout))
