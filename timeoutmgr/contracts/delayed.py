"""The store of the delayed messages of one endpoint, fetched one after the other when due.

It has no claims, tombstones or history, as a timeout store has: a row is there until its message
is sent. What the methods below do not say is the store's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from timeoutmgr.contracts.timeouts import Timeout
from timeoutmgr.contracts.transactions import TransactionMode
from timeoutmgr.instants import Micros


class DelayedMessageStore(Protocol):
    """Where delayed messages rest until they are due. Safe for many threads.

    A *transaction* is what the store's own ``transaction`` gave, or in ``transaction_scope`` the
    open SQLAlchemy connection of the queue. Methods that are given none commit by themselves.
    Every method raises StorageUnavailable while the storage is away.

    A store may have more: ``now()`` if it has a clock of its own, ``database`` and
    ``capabilities`` if it is to take part in ``transaction_scope``, ``expect(due)`` to hear of what
    was stored in a caller's transaction, ``count()`` for status, ``destinations(most)`` (how many
    of the first *most* are for which queue) for the doctor, ``close()``.
    """

    def initialize(self, endpoint_name: str, transaction_mode: TransactionMode) -> None:
        """Prepare for *endpoint_name*; called once, before all else but ``setup_infrastructure``.

        Raises ConfigurationError where the mode cannot be kept, or what is needed is not there
        (SchemaMissing for tables). If it raises StorageUnavailable it is called again later.
        """
        ...

    def transaction(self) -> AbstractContextManager[Any]:
        """Open what fetching and removing do together.

        What is fetched in it is nobody else's until it ends, and free again then unless it was
        removed. An error is passed on; a store with row locks takes its removals back by it, one
        without commits them one by one. Messages are sent, and others stored, while it is open.
        """
        ...

    def store(self, timeout: Timeout, *, transaction: Any = None) -> None:
        """Store a message; an id that is stored already is left as it is."""
        ...

    def fetch_next_due_timeout(self, at: Micros, *, transaction: Any) -> Timeout | None:
        """Return the oldest that is due, under a lock until *transaction* ends; None if none is.

        Of what was stored it has id, due, destination and message, and of the failures the count.
        Rows that others hold are passed by, not waited for. *at* is this host's clock, and counts
        only where the storage has none.
        """
        ...

    def remove(self, timeout: Timeout, *, transaction: Any = None) -> bool:
        """Remove a message; return whether it was there."""
        ...

    def increment_failure_count(self, timeout: Timeout, not_before: Micros) -> bool:
        """Count a failed attempt, in a transaction of its own; return whether the row was there.

        ``Timeout.attempts`` tells the count when it is fetched next, which is not before
        *not_before*, so that a failing message does not hold up those behind it.
        """
        ...

    def next(self) -> Micros | None:
        """Return when the earliest is to be fetched, or None where nothing is stored."""
        ...


@runtime_checkable
class DelayedMessageStoreWithInfrastructure(DelayedMessageStore, Protocol):
    """A store that can create what it needs."""

    def setup_infrastructure(self, endpoint_name: str) -> None:
        """Create tables and the like; called before ``initialize``, with installers on only.

        Twice and from several processes at once is fine.
        """
        ...


@runtime_checkable
class FetchesInBatches(Protocol):
    """The batch form of fetching, with which a store is polled many rows at a time."""

    def fetch_due(self, at: Micros, limit: int, *, transaction: Any) -> Sequence[Timeout]:
        """Return up to *limit* that are due, oldest first, as ``fetch_next_due_timeout`` does."""
        ...


@runtime_checkable
class StoresInBatches(Protocol):
    """The batch form of storing."""

    def store_many(self, timeouts: Sequence[Timeout], *, transaction: Any = None) -> None:
        """Store all or none."""
        ...


@runtime_checkable
class RemovesInBatches(Protocol):
    """The batch form of removing."""

    def remove_many(self, timeouts: Sequence[Timeout], *, transaction: Any = None) -> int:
        """Remove messages; return how many were there."""
        ...
