"""The in-memory store with scripted faults, which also takes part in a simulated transaction."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from timeoutmgr.contracts import (
    Chunk,
    Clock,
    Key,
    LockedTimeouts,
    Outcome,
    Repeat,
    SagaClear,
    Timeout,
    Transaction,
)
from timeoutmgr.message.instants import Micros
from timeoutmgr.persistence.memory_insight import MemoryContents
from timeoutmgr.persistence.memory_store import MemoryTimeoutStore

MINUTE = 60_000_000


class ScriptedStore(MemoryTimeoutStore):
    """The next calls of a method raise *faults*; *after* runs when a call has returned."""

    def __init__(self, clock: Clock, endpoint: str = "sales", offset: Micros = 0) -> None:
        super().__init__(endpoint, clock, MemoryContents(), MINUTE, 30 * 24 * 60 * MINUTE)
        self.faults: dict[str, deque[Exception]] = {}
        self.after: dict[str, Callable[[], None]] = {}
        self.calls: Counter[str] = Counter()
        self.joined: list[tuple[str, Transaction | None]] = []
        self.released: list[str] = []
        self.outcomes: list[Outcome] = []
        self.tells_its_time = True
        self._offset = offset

    def fail(self, method: str, *errors: Exception) -> None:
        self.faults.setdefault(method, deque()).extend(errors)

    def now(self, *, transaction: Transaction | None = None) -> Micros:
        self._called("now")
        return super().now() + self._offset

    def ping(self) -> None:
        self._called("ping")

    def store_many(
        self, timeouts: Sequence[Timeout], *, transaction: Transaction | None = None
    ) -> Sequence[Repeat]:
        self._called("store_many", transaction)
        return super().store_many(timeouts)

    def claim(
        self,
        now: Micros,
        limit: int,
        owner: str,
        *,
        chunks: int = 1,
        ahead: Micros = 0,
        transaction: Transaction | None = None,
    ) -> Chunk:
        self._called("claim", transaction)
        chunk = super().claim(now, limit, owner, chunks=chunks, ahead=ahead)
        self.after.get("claim", lambda: None)()
        return chunk

    def lock_for_dispatch(
        self,
        token: str,
        keys: Sequence[Key],
        *,
        ahead: Micros = 0,
        transaction: Transaction | None = None,
    ) -> AbstractContextManager[LockedTimeouts]:
        self._called("lock_for_dispatch", transaction)
        return self._locked(super().lock_for_dispatch(token, keys, ahead=ahead))

    @contextmanager
    def _locked(self, taking: AbstractContextManager[LockedTimeouts]) -> Iterator[LockedTimeouts]:
        with taking as locked:
            self.after.get("lock_for_dispatch", lambda: None)()
            yield locked if self.tells_its_time else _Silent(locked)

    def record(self, token: str, mine: Sequence[Timeout], outcomes: Sequence[Outcome]) -> None:
        self._called("close")
        self.outcomes += outcomes
        super().record(token, mine, outcomes)

    def release(self, token: str, *, maybe_sent: bool = False) -> None:
        self._called("release")
        self.released.append(token)
        super().release(token, maybe_sent=maybe_sent)

    def next_due(self) -> Micros | None:
        self._called("next_due")
        return super().next_due()

    def cancel_saga(
        self,
        saga_id: str,
        *,
        sent_until: Micros | None = None,
        keeping: Collection[str] = (),
        transaction: Transaction | None = None,
        channel: str | None = None,
    ) -> Sequence[str]:
        self._called("cancel_saga", transaction)
        return super().cancel_saga(saga_id, sent_until=sent_until, keeping=keeping, channel=channel)

    def clear_saga(
        self, order: SagaClear, *, transaction: Transaction | None = None
    ) -> Sequence[str]:
        self._called("clear_saga", transaction)
        return super().clear_saga(order)

    def _called(self, method: str, transaction: Transaction | None = None) -> None:
        self.calls[method] += 1
        self.joined.append((method, transaction))
        faults = self.faults.get(method)
        if faults:
            raise faults.popleft()


class _Silent:
    """Locked rows of a store without ``now``, its own time."""

    def __init__(self, locked: LockedTimeouts) -> None:
        self.timeouts = locked.timeouts
        self.close = locked.close
