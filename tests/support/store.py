"""The in-memory store with scripted faults, which also takes part in a simulated transaction."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from timeoutmgr.contracts import Chunk, Clock, Key, Outcome, Repeat, Taken, Timeout, Transaction
from timeoutmgr.instants import Micros
from timeoutmgr.persistence.memory_store import Contents, MemoryTimeoutStore

MINUTE = 60_000_000


class ScriptedStore(MemoryTimeoutStore):
    """*faults* are raised by the next calls of a method; *after* runs when one has returned."""

    def __init__(self, clock: Clock, endpoint: str = "sales", offset: Micros = 0) -> None:
        super().__init__(endpoint, clock, Contents(), MINUTE, 30 * 24 * 60 * MINUTE)
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

    def take_many(
        self,
        token: str,
        keys: Sequence[Key],
        *,
        ahead: Micros = 0,
        transaction: Transaction | None = None,
    ) -> AbstractContextManager[Taken]:
        self._called("take_many", transaction)
        return self._taken(super().take_many(token, keys, ahead=ahead))

    @contextmanager
    def _taken(self, taking: AbstractContextManager[Taken]) -> Iterator[Taken]:
        with taking as taken:
            self.after.get("take_many", lambda: None)()
            yield taken if self.tells_its_time else _Silent(taken)

    def record(self, token: str, mine: Sequence[Timeout], outcomes: Sequence[Outcome]) -> None:
        self._called("close")
        self.outcomes += outcomes
        super().record(token, mine, outcomes)

    def release(self, token: str, *, maybe_handed_on: bool = False) -> None:
        self._called("release")
        self.released.append(token)
        super().release(token, maybe_handed_on=maybe_handed_on)

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
    ) -> int:
        self._called("cancel_saga", transaction)
        return super().cancel_saga(saga_id, sent_until=sent_until, keeping=keeping)

    def _called(self, method: str, transaction: Transaction | None = None) -> None:
        self.calls[method] += 1
        self.joined.append((method, transaction))
        faults = self.faults.get(method)
        if faults:
            raise faults.popleft()


class _Silent:
    """What is taken, of a store that does not tell its time with it."""

    def __init__(self, taken: Taken) -> None:
        self.timeouts = taken.timeouts
        self.close = taken.close
