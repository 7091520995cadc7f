"""Facts, fixtures and helpers of the cases of timeout stores."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import ClassVar, Final

import pytest

from timeoutmgr.contracts import (
    CancelResult,
    Chunk,
    Clock,
    Key,
    Outcome,
    OutcomeKind,
    Persistence,
    Timeout,
    TimeoutFilter,
    TimeoutState,
    TimeoutStore,
    Transaction,
)
from timeoutmgr.message.instants import Micros, duration_micros
from timeoutmgr.testing.conformance.samples import SetClock, undone
from timeoutmgr.testing.conformance.shared_cases import SharedSuite, Subject

ALL: Final = TimeoutFilter()
MOST_CHUNKS: Final = 10_000
"""More chunks than any case drains."""


class Stores:
    """Creates stores of the suite's endpoint or of other endpoints; they share a clock."""

    def __init__(self, persistence: Persistence, endpoint: str, clock: Clock) -> None:
        self.persistence: Final = persistence
        self.endpoint: Final = endpoint
        self.clock: Final = clock

    def __call__(self, endpoint: str | None = None, *, atomic: bool = False) -> TimeoutStore:
        """Return a store."""
        name = endpoint or self.endpoint
        return self.persistence.timeouts(name, self.clock, atomic_dispatch=atomic)

    def committed(self) -> AbstractContextManager[Transaction]:
        """Open a transaction of the persistence's database."""
        assert self.persistence.database is not None, "`transactions` is True, but no database"
        return self.persistence.database.begin()

    def rolled_back(self) -> AbstractContextManager[Transaction]:
        """Open a transaction that is rolled back."""
        return undone(self.committed())


class TimeoutSubject(Subject):
    """A timeout store under the names of the shared cases."""

    lists_later = True

    def __init__(self, stores: Stores, *, joined: bool) -> None:
        self._stores = stores
        self._store = stores(atomic=joined)

    def put(self, *timeouts: Timeout, transaction: Transaction | None = None) -> None:
        """Store *timeouts* in one batch."""
        self._store.store_many(timeouts, transaction=transaction)

    def next_due(self) -> Micros | None:
        """Return the due time of the first timeout; None if the store is empty."""
        return self._store.next_due()

    def kept(self) -> list[Timeout]:
        """Return the pending timeouts by due time; ``find`` must agree with ``list``."""
        found = list(self._store.list(ALL))
        assert [self._store.find(one.id) for one in found] == [
            (TimeoutState.PENDING, one) for one in found
        ]
        return found

    def comparable(self, one: Timeout) -> Timeout:
        """Return *one*: a timeout store keeps every field."""
        return one

    @contextmanager
    def held(self, limit: int = 1) -> Iterator[list[Timeout]]:
        """Claim and lock due timeouts; release them without an outcome at the end."""
        chunk = self._store.claim(self._store.now(), limit, "o")
        with self._store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
            yield list(locked.timeouts)
            locked.close([])

    def drain(self, limit: int = 50) -> list[str]:
        """Dispatch all due, unlocked timeouts; return the ids in order."""
        return drain(self._store, limit=limit)

    def drop(self, one: Timeout) -> bool:
        """Cancel *one*; return whether it was pending."""
        return self._store.cancel(one.id) is CancelResult.CANCELLED

    def dispatch_in(self, transaction: Transaction) -> str:
        """Claim, lock and close the oldest due timeout in *transaction*; return its id."""
        now = self._store.now()
        chunk = self._store.claim(now, 1, "o", transaction=transaction)
        with self._store.lock_for_dispatch(
            chunk.token, chunk.keys, transaction=transaction
        ) as locked:
            [one] = locked.timeouts
            locked.close(outcomes(chunk.keys, now))
            return one.id

    def is_closed(self, one: Timeout) -> bool:
        """Return whether the store has the tombstone of a dispatch."""
        return self._store.find(one.id) == (TimeoutState.DISPATCHED, None)

    def committed(self) -> AbstractContextManager[Transaction]:
        """Open a transaction of the persistence's database."""
        return self._stores.committed()


class StoreSuite(SharedSuite):
    """The facts and the fixtures; every case is a method of a subclass."""

    settable_clock = True
    stores_in_batches = True
    races = 500
    keeps_schedules = False
    """Whether the store keeps the schedules of recurring timeouts."""
    reroutes = False
    """Whether the store can change the destination of pending timeouts."""
    clears_in_order = False
    """Whether the store clears sagas in the order of the manager's queue."""
    finds_by_labels = False
    """Whether the store finds timeouts by the labels of their messages."""
    has_insight = False
    """Whether the store answers questions about its timeouts at a bounded cost."""
    pauses_dispatch = False
    """Whether the store can hold back due timeouts."""
    changes_in_bulk = False
    """Whether the store has bulk runs."""
    keeps_audit = False
    """Whether the store keeps an audit of its changes."""
    claim_time: ClassVar[timedelta] = timedelta(seconds=60)
    """Time after which an open claim expires."""
    tombstone_retention: ClassVar[timedelta] = timedelta(days=30)
    """Time for which the store remembers a closed id."""

    @pytest.fixture
    def make_persistence(self) -> Callable[[], Persistence]:
        """Override this: return a factory of installed persistences that share one storage."""
        raise NotImplementedError("a subclass overrides the fixture make_persistence")

    @pytest.fixture
    def persistence(self, make_persistence: Callable[[], Persistence]) -> Iterator[Persistence]:
        """Create a persistence; close it after the test."""
        made = make_persistence()
        yield made
        made.close()

    @pytest.fixture
    def stores(self, persistence: Persistence, clock: Clock) -> Stores:
        """Return a factory of stores for a new endpoint."""
        return Stores(persistence, f"conformance-{uuid.uuid4().hex[:12]}", clock)

    @pytest.fixture
    def store(self, stores: Stores) -> TimeoutStore:
        """Return a store."""
        return stores()

    @pytest.fixture
    def make_subject(self, stores: Stores) -> Callable[..., Subject]:
        """Return a factory of stores in the form that the shared cases use."""
        return lambda joined=False: TimeoutSubject(stores, joined=joined)

    @pytest.fixture
    def now(self, store: TimeoutStore) -> Micros:
        """Return the store's time at the start of the test."""
        return store.now()

    def lapse(self, clock: SetClock) -> None:
        """Move the clock until the open claims have expired."""
        clock.at += duration_micros(self.claim_time)


def ids(found: Chunk | Sequence[Timeout]) -> list[str]:
    """Return the ids in a chunk or a list, in order."""
    return [one.id for one in (found.keys if isinstance(found, Chunk) else found)]


def store_and_claim(store: TimeoutStore, now: Micros, limit: int, *timeouts: Timeout) -> Chunk:
    """Store *timeouts*, and return a claim of at most *limit*."""
    store.store_many(timeouts)
    return store.claim(now, limit, "o")


def pending(store: TimeoutStore) -> list[str]:
    """Return the ids of the pending timeouts, by due time."""
    return ids(store.list(ALL, limit=100_000))


def outcomes(
    keys: Sequence[Key],
    at: Micros,
    kind: OutcomeKind = OutcomeKind.DISPATCHED,
    next_try: Micros = 0,
) -> list[Outcome]:
    """Return outcomes that are the same for all *keys*."""
    return [Outcome(key=key, kind=kind, at=at, next_try=next_try) for key in keys]


def dispatch(store: TimeoutStore, token: str, keys: Sequence[Key]) -> list[str]:
    """Lock *keys*, close the locked timeouts as dispatched, and return their ids."""
    with store.lock_for_dispatch(token, keys) as locked:
        found = list(locked.timeouts)
        locked.close(outcomes([one.key for one in found], store.now()))
    return ids(found)


def retry(store: TimeoutStore, token: str, keys: Sequence[Key], next_try: Micros) -> None:
    """Lock *keys*, and schedule the next attempt of their timeouts at *next_try*."""
    with store.lock_for_dispatch(token, keys) as locked:
        locked.close(outcomes(keys, store.now(), OutcomeKind.RETRY, next_try))


def drain(store: TimeoutStore, owner: str = "o", limit: int = 100) -> list[str]:
    """Dispatch all due, unlocked timeouts; return the ids."""
    sent: list[str] = []
    for _ in range(MOST_CHUNKS):
        if not (chunk := store.claim(store.now(), limit, owner)).keys:
            return sent
        sent += dispatch(store, chunk.token, chunk.keys)
    raise AssertionError("keys are claimed again and again, and are not due or not locked")
