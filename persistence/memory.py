"""Timeouts in memory: the same guarantees while the process lives; all is lost when it ends."""

import threading
from datetime import timedelta

from timeoutmgr.contracts import Clock, StoreCapabilities
from timeoutmgr.errors import CombinationRefused
from timeoutmgr.message.instants import duration_micros

from .memory_insight import MemoryContents
from .memory_store import MemoryTimeoutStore


class MemoryPersistence:
    """Keeps timeouts in memory, for tests; refuses to start without *accept_loss*."""

    def __init__(
        self,
        *,
        accept_loss: bool = False,
        claim_time: timedelta = timedelta(seconds=60),
        tombstone_retention: timedelta = timedelta(days=30),
    ) -> None:
        if not accept_loss:
            raise CombinationRefused(
                "an in-memory store",
                "every timeout is lost when the process ends",
                "Use a SQL persistence, or say accept_loss=True where that is fine.",
            )
        self._claim_time = duration_micros(claim_time)
        self._retention = duration_micros(tombstone_retention)
        self._contents: dict[str, MemoryContents] = {}
        self._lock = threading.Lock()

    @property
    def capabilities(self) -> StoreCapabilities:
        """Capabilities of memory."""
        return StoreCapabilities(
            name="memory", durable=False, row_locks=True, note="lost on exit; for tests"
        )

    @property
    def database(self) -> None:
        """No database."""
        return None

    def install(self) -> None:
        """No-op: there is nothing to create."""

    def ddl(self) -> str:
        """Return no statements."""
        return ""

    def check(self) -> None:
        """Return; nothing can be missing."""

    def timeouts(
        self, endpoint: str, clock: Clock, *, atomic_dispatch: bool = False
    ) -> MemoryTimeoutStore:
        """Return a store of *endpoint*; all stores of one endpoint share their contents.

        Raises CombinationRefused for *atomic_dispatch*: no transaction spans this memory.
        """
        if atomic_dispatch:
            raise CombinationRefused(
                "atomic dispatch from memory",
                "no transaction spans this memory and a queue",
                "Use a SQL persistence on the queue's own database.",
            )
        with self._lock:
            contents = self._contents.setdefault(endpoint, MemoryContents())
        return MemoryTimeoutStore(endpoint, clock, contents, self._claim_time, self._retention)

    def close(self) -> None:
        """No-op: the contents stay while the process lives."""
