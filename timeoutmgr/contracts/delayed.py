"""Contract of a store of delayed messages, which are fetched in order when they are due.

Unlike a timeout store, a delayed message store has no claims, tombstones or history: a row stays
until its message is sent. A store decides everything that the methods below leave open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from timeoutmgr.contracts.persistences import StoreCapabilities
from timeoutmgr.contracts.timeouts import Timeout
from timeoutmgr.contracts.transactions import SharedDatabase, TransactionMode
from timeoutmgr.message.instants import Micros


class DelayedMessageStore(Protocol):
    """Storage of delayed messages until they are due. Thread-safe.

    A *transaction* comes from the store's own ``transaction``, or in ``transaction_scope`` is the
    open SQLAlchemy connection of the queue. Methods without a transaction commit by themselves.
    Every method raises StorageUnavailable while the storage is out of reach.

    A store may have further methods: ``now()`` if it has a clock of its own, ``database`` and
    ``capabilities`` if it is to take part in ``transaction_scope``, ``notify_stored(due)`` to be
    notified of inserts in a caller's transaction, ``count()`` for status, ``destinations(most)``
    (the number of messages for each queue among the first *most*) for the doctor, ``close()``.
    """

    def initialize(self, endpoint_name: str, transaction_mode: TransactionMode) -> None:
        """Prepare for *endpoint_name*; called once, before all else but ``setup_infrastructure``.

        Raises ConfigurationError if the store cannot keep the mode, or lacks something it needs
        (SchemaMissing for tables). It is called again later if it raises StorageUnavailable.
        """
        ...

    def transaction(self) -> AbstractContextManager[Any]:
        """Open a transaction for fetches and removals.

        A fetched message is locked until the transaction ends, and is then free again unless it was
        removed. An error propagates: a store with row locks undoes its removals; a store without
        them has already committed each. Messages are sent and stored while it is open.
        """
        ...

    def store(self, timeout: Timeout, *, transaction: Any = None) -> None:
        """Store a message; if its id is already stored, do nothing."""
        ...

    def fetch_next_due_timeout(self, at: Micros, *, transaction: Any) -> Timeout | None:
        """Return the oldest due message, locked until *transaction* ends; None if none is due.

        The result has the stored id, due, destination and message, and the number of failures. Skip
        rows locked by another process; do not wait for them. *at* is the time of this host's clock,
        and counts only if the storage has no clock.
        """
        ...

    def remove(self, timeout: Timeout, *, transaction: Any = None) -> bool:
        """Remove a message; return whether it was stored."""
        ...

    def increment_failure_count(self, timeout: Timeout, not_before: Micros) -> bool:
        """Count a failed attempt, in a transaction of its own; return whether the row exists.

        ``Timeout.attempts`` has the count at the next fetch. The message is not fetched before
        *not_before*, so that a failing message does not delay the messages behind it.
        """
        ...

    def next(self) -> Micros | None:
        """Return when the earliest message is to be fetched, or None if nothing is stored."""
        ...


@runtime_checkable
class DelayedMessageStoreWithInfrastructure(DelayedMessageStore, Protocol):
    """A store that can create its tables or other infrastructure."""

    def setup_infrastructure(self, endpoint_name: str) -> None:
        """Create tables or the like; called before ``initialize``, only if installers are on.

        Idempotent, and safe to run from several processes at once.
        """
        ...


@runtime_checkable
class FetchesInBatches(Protocol):
    """A store that fetches many due messages in a single call."""

    def fetch_due(self, at: Micros, limit: int, *, transaction: Any) -> Sequence[Timeout]:
        """Return up to *limit* due messages, oldest first, as ``fetch_next_due_timeout`` does."""
        ...


@runtime_checkable
class StoresInBatches(Protocol):
    """A store that stores many messages in a single call."""

    def store_many(self, timeouts: Sequence[Timeout], *, transaction: Any = None) -> None:
        """Store all *timeouts*, or none of them."""
        ...


@runtime_checkable
class RemovesInBatches(Protocol):
    """A store that removes many messages in a single call."""

    def remove_many(self, timeouts: Sequence[Timeout], *, transaction: Any = None) -> int:
        """Remove messages; return how many of them were stored."""
        ...


@runtime_checkable
class Closes(Protocol):
    """A store that has connections to close; no delayed message store needs to."""

    def close(self) -> None:
        """Close the connections; idempotent."""
        ...


@runtime_checkable
class HasStoreClock(Protocol):
    """A store with a clock of its own, with which it compares due times."""

    def now(self) -> Micros:
        """Return the time of the store's clock."""
        ...


@runtime_checkable
class HearsOfStored(Protocol):
    """A store that is notified of messages stored in a caller's transaction."""

    def notify_stored(self, due: Micros) -> None:
        """Note that a message due at *due* was committed."""
        ...


@runtime_checkable
class CountsDelayed(Protocol):
    """A store that counts its messages, for ``status``."""

    def count(self) -> int:
        """Return the number of stored messages."""
        ...


@runtime_checkable
class CountsDestinations(Protocol):
    """A store that counts its messages by destination, for the doctor."""

    def destinations(self, most: int) -> Mapping[str, int]:
        """Return the number of messages for each queue, among the first *most* by due time."""
        ...


@runtime_checkable
class HasDatabase(Protocol):
    """A store in a SQL database, which a SQL queue must share for a common transaction."""

    @property
    def database(self) -> SharedDatabase:
        """The SQL database of the store."""
        ...


@runtime_checkable
class StatesCapabilities(Protocol):
    """A store that states the promises of its storage."""

    @property
    def capabilities(self) -> StoreCapabilities:
        """The promises of the storage."""
        ...


@runtime_checkable
class HasDdl(Protocol):
    """A store that prints its DDL, for ``install --sql``."""

    def ddl(self, endpoint_name: str) -> str:
        """Return the statements that ``setup_infrastructure`` runs on an empty database."""
        ...
