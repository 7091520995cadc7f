"""A delayed message store as its satellites use it: in batches, whatever forms it has."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from timeoutmgr.contracts import (
    Clock,
    DelayedMessageStore,
    FetchesInBatches,
    RemovesInBatches,
    StoresInBatches,
    Timeout,
)
from timeoutmgr.crashpoints import reach
from timeoutmgr.message.instants import Micros


@dataclass(frozen=True, slots=True)
class Batches:
    """*store*, of which at most *limit* messages are asked at a time."""

    store: DelayedMessageStore
    clock: Clock
    limit: int

    @property
    def size(self) -> int:
        """How many one fetch returns at most."""
        return self.limit if isinstance(self.store, FetchesInBatches) else 1

    def now(self) -> Micros:
        """Return the time that the store compares due times with."""
        own = getattr(self.store, "now", None)
        return self.clock.now() if own is None else int(own())

    def notify_stored(self, due: Micros) -> None:
        """Tell the store, if it wants to hear it, that a message of *due* is committed."""
        tell = getattr(self.store, "notify_stored", None)
        if tell is not None:
            tell(due)

    def fetch(self, transaction: Any, limit: int) -> Sequence[Timeout]:
        """Return what is due, at most *limit*, locked until *transaction* ends."""
        at = self.clock.now()
        if isinstance(self.store, FetchesInBatches):
            return self.store.fetch_due(at, limit, transaction=transaction)
        one = self.store.fetch_next_due_timeout(at, transaction=transaction)
        return [] if one is None else [one]

    def put(self, timeouts: Sequence[Timeout], transaction: Any) -> None:
        """Store *timeouts*, with a *transaction* in it."""
        if isinstance(self.store, StoresInBatches):
            self.store.store_many(timeouts, transaction=transaction)
            return
        for timeout in timeouts:
            self.store.store(timeout, transaction=transaction)
            reach("delayed.stored_one")

    def remove(self, timeouts: Sequence[Timeout], transaction: Any) -> int:
        """Remove *timeouts* in *transaction*; return how many were there."""
        if not timeouts:
            return 0
        if isinstance(self.store, RemovesInBatches):
            return self.store.remove_many(timeouts, transaction=transaction)
        removed = 0
        for timeout in timeouts:
            removed += self.store.remove(timeout, transaction=transaction)
            reach("due.removed_one")
        return removed
