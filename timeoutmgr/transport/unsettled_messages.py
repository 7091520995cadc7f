"""Received but unsettled messages: the connection they came over, and their bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeGuard

from timeoutmgr.errors import ConfigurationError, LeaseLost, TransportUnavailable
from timeoutmgr.message.message import Received
from timeoutmgr.resilience.after_fork import ThreadSafe

BUFFER_BYTES: Final = 64 * 1024 * 1024
"""The default limit, for all receivers of one transport together."""


def check_bound(name: str, value: int) -> None:
    """Raise ConfigurationError if *value*, of the setting *name*, cannot be a limit."""
    if value < 1:
        raise ConfigurationError(f"{name} must be positive, got {value}")


_FORGETS: Final = 0.99
"""Factor by which the remembered largest size shrinks with each further message."""
_UNREPORTED: Final = 16 * 1024
"""Bytes that a receiver may hold, or have settled, before it reports them to the budget."""


class ByteBudget(ThreadSafe):
    """The bytes that the receivers of one transport hold together. Safe for many threads."""

    def __init__(self, limit: int | None = BUFFER_BYTES) -> None:
        self.limit: Final = limit
        super().__init__()

    def after_fork(self) -> None:
        """Start with none: the messages are the parent's, and its threads may have the lock."""
        super().after_fork()
        self._held = 0

    @property
    def held(self) -> int:
        """The bytes that are received and not settled."""
        with self._lock:
            return self._held

    @property
    def room(self) -> int | None:
        """The bytes that may still be received, None without a bound."""
        with self._lock:
            return None if self.limit is None else max(self.limit - self._held, 0)

    def add(self, size: int) -> None:
        """Count *size* more bytes; a negative *size* was settled."""
        with self._lock:
            self._held += size


class UnsettledBytes:
    """The unsettled messages of one receiver with their sizes, counted in the *budget*.

    A receiver that holds nothing may always receive one message; otherwise nothing would ever move.
    Small changes are reported to the budget together: its lock costs as much as the counting.
    """

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._report_at = 0 if budget.limit is None else min(_UNREPORTED, budget.limit // 64)
        self._sizes: dict[Hashable, int] = {}
        self._unreported = 0
        self.largest = 0.0
        """The largest recent size; older messages count less and less."""

    @property
    def is_full(self) -> bool:
        """Whether another message of the largest recent size would be too much."""
        room = self.room
        return bool(self._sizes) and room is not None and room <= self.largest

    @property
    def room(self) -> int | None:
        """The bytes that may still be received, None without a bound."""
        self._report()
        return self._budget.room

    def add(self, message: Hashable, size: int) -> None:
        """Count a message that was received."""
        self._unreported += size - self._sizes.get(message, 0)
        if self._unreported >= self._report_at:
            self._report()
        self._sizes[message] = size
        kept = self.largest * _FORGETS
        self.largest = size if size > kept else kept

    def settle(self, message: Hashable) -> None:
        """Remove a settled message; twice is fine."""
        self._unreported -= self._sizes.pop(message, 0)
        if self._unreported <= -self._report_at:
            self._report()

    def clear(self) -> None:
        """Remove every message: the broker has them again."""
        self._unreported -= sum(self._sizes.values())
        self._sizes.clear()
        self._report()

    def _report(self) -> None:
        if self._unreported:
            self._budget.add(self._unreported)
            self._unreported = 0


class PrefetchWindow:
    """Number of messages a broker may send ahead: one message, then as many as fit the budget."""

    def __init__(self, most: int, limit: int | None, unsettled: UnsettledBytes) -> None:
        self.most = most
        self._limit = limit
        self._unsettled = unsettled
        self.size = most if limit is None else 1

    @property
    def fitting(self) -> int:
        """The number of messages that would fit, judging by the sizes so far."""
        if self._limit is None:
            return self.most
        return min(self.most, max(1, int(self._limit / (self._unsettled.largest + 1))))

    def beside(self, unsettled: int) -> int:
        """Return the window for a new consumer; the broker counts each consumer separately."""
        return max(1, self.fitting - unsettled)

    def misfits(self, older: int) -> bool:
        """Return whether the window is so wrong that changing it is worth some round trips.

        *older* unacknowledged messages belong to an earlier consumer, outside this window.
        """
        return self.fitting >= 2 * (older + self.size) or 2 * self.fitting <= self.size


class DeliveryTag(NamedTuple):
    """A delivery: the broker's *id* for it, and the receiver's connection that it came over."""

    connection_number: int
    id: Any


class BrokerReceiver:
    """The unsettled messages that a receiver got over its current connection to a broker."""

    def __init__(self, queue: str, budget: ByteBudget | None) -> None:
        self._queue = queue
        self._connection_number = 0
        self._closed = False
        self._buffer: deque[Received] = deque()
        # In the order of delivery: returned to the caller, or still buffered.
        self._unacked: dict[Any, None] = {}
        self._unsettled = UnsettledBytes(budget or ByteBudget(None))

    def _check_open(self) -> None:
        if self._closed:
            raise TransportUnavailable(
                f"the receiver of queue {self._queue!r} is closed; open another"
            )

    def _own(self, received: Sequence[Received]) -> list[Any]:
        tags = [one.tag for one in received if self._is_live(one.tag)]
        if len(tags) < len(received):
            raise self._lost()
        # Settling a message twice is fine.
        return list(dict.fromkeys(tag.id for tag in tags if tag.id in self._unacked))

    def _is_live(self, tag: object) -> TypeGuard[DeliveryTag]:
        return isinstance(tag, DeliveryTag) and tag.connection_number == self._connection_number

    def _forget(self, ids: Iterable[Any]) -> None:
        for one in ids:
            del self._unacked[one]
            self._unsettled.settle(one)

    def _drop_unsettled(self) -> None:
        """Forget all messages: their connection is lost, or was never used."""
        self._connection_number += 1
        self._buffer.clear()
        self._unacked.clear()
        self._unsettled.clear()

    def _lost(self) -> LeaseLost:
        return LeaseLost(
            f"the connection on which messages of queue {self._queue!r} were received is gone; "
            "they are delivered again"
        )
