"""What the cases of the stores share: fixtures, a clock, timeouts and outcomes."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import ClassVar, Final

import pytest

from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import (
    Chunk,
    Clock,
    Key,
    Outcome,
    OutcomeKind,
    Persistence,
    Timeout,
    TimeoutFilter,
    TimeoutStore,
    Transaction,
)
from timeoutmgr.instants import Micros, duration_micros
from timeoutmgr.testing.conformance.samples import SetClock, Undone

ALL: Final = TimeoutFilter()


class Stores:
    """Makes stores of one endpoint, or of others, that go by one clock."""

    def __init__(self, persistence: Persistence, endpoint: str, clock: Clock) -> None:
        self.persistence: Final = persistence
        self.endpoint: Final = endpoint
        self.clock: Final = clock

    def __call__(self, endpoint: str | None = None, *, atomic: bool = False) -> TimeoutStore:
        """Return a store."""
        name = endpoint or self.endpoint
        return self.persistence.timeouts(name, self.clock, atomic_dispatch=atomic)

    @contextmanager
    def committed(self) -> Iterator[Transaction]:
        """Open a transaction of the persistence's database."""
        assert self.persistence.database is not None, "`transactions` is True, but no database"
        with self.persistence.database.begin() as transaction:
            yield transaction

    @contextmanager
    def rolled_back(self) -> Iterator[Transaction]:
        """Open a transaction that comes to nothing."""
        try:
            with self.committed() as transaction:
                yield transaction
                raise Undone
        except Undone:
            return


class StoreSuite:
    """The facts and the fixtures; every case is a method of a subclass."""

    durable: ClassVar[bool]
    """As in the capabilities: it survives the process."""
    row_locks: ClassVar[bool]
    """As in the capabilities: a lock is held over the publish."""
    transactions: ClassVar[bool]
    """It has a database, and takes part in that one's transactions."""
    settable_clock: ClassVar[bool] = True
    """It goes by the clock it is given. False leaves out what needs time to pass."""
    limits_text: ClassVar[bool] = True
    """It has columns, and refuses what they do not take."""
    claim_time: ClassVar[timedelta] = timedelta(seconds=60)
    """When a claim lapses that nobody closed."""
    tombstone_retention: ClassVar[timedelta] = timedelta(days=30)
    """How long a closed id is remembered."""
    races: ClassVar[int] = 500
    """How often a race is run; ``--timeoutmgr-races`` overrides it."""

    @pytest.fixture
    def make_persistence(self) -> Callable[[], Persistence]:
        """Override it: return a maker of persistences that are installed, all on one storage."""
        raise NotImplementedError("a subclass overrides the fixture make_persistence")

    @pytest.fixture
    def persistence(self, make_persistence: Callable[[], Persistence]) -> Iterator[Persistence]:
        """Make one persistence, closed in the end."""
        made = make_persistence()
        yield made
        made.close()

    @pytest.fixture
    def clock(self) -> Clock:
        """Return what the stores go by."""
        return SetClock() if self.settable_clock else SystemClock()

    @pytest.fixture
    def stores(self, persistence: Persistence, clock: Clock) -> Stores:
        """Return a maker of stores for an endpoint that nobody else has."""
        return Stores(persistence, f"conformance-{uuid.uuid4().hex[:12]}", clock)

    @pytest.fixture
    def store(self, stores: Stores) -> TimeoutStore:
        """Return a store."""
        return stores()

    @pytest.fixture
    def now(self, store: TimeoutStore) -> Micros:
        """Return the store's time at the start of the test."""
        return store.now()

    @pytest.fixture
    def rounds(self, request: pytest.FixtureRequest) -> int:
        """Return how often to run a race."""
        asked: int | None = request.config.getoption("--timeoutmgr-races", None)
        return asked or self.races

    def lapse(self, clock: SetClock) -> None:
        """Let the claims of now lapse."""
        clock.at += duration_micros(self.claim_time)


def ids(found: Chunk | Sequence[Timeout]) -> list[str]:
    """Return the ids in a chunk or a list, in order."""
    return [one.id for one in (found.keys if isinstance(found, Chunk) else found)]


def pending(store: TimeoutStore) -> list[str]:
    """Return the ids that are stored, by due time."""
    return ids(store.list(ALL, limit=100_000))


def outcomes(
    keys: Sequence[Key],
    at: Micros,
    kind: OutcomeKind = OutcomeKind.DISPATCHED,
    next_try: Micros = 0,
) -> list[Outcome]:
    """Return the same outcome for all of *keys*."""
    return [Outcome(key=key, kind=kind, at=at, next_try=next_try) for key in keys]


def dispatch(store: TimeoutStore, token: str, keys: Sequence[Key]) -> list[str]:
    """Take *keys*, close what was there as dispatched, and return the ids of that."""
    with store.take_many(token, keys) as taken:
        found = list(taken.timeouts)
        taken.close(outcomes([one.key for one in found], store.now()))
    return ids(found)


def drain(store: TimeoutStore, owner: str = "o", limit: int = 100) -> list[str]:
    """Dispatch all that is due and free, and return the ids."""
    sent: list[str] = []
    while (chunk := store.claim(store.now(), limit, owner)).keys:
        sent += dispatch(store, chunk.token, chunk.keys)
    return sent
