"""What the cases of the delayed message stores share: facts, fixtures, and ways to drain."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any, ClassVar, Final

import pytest

from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import (
    Clock,
    DelayedMessageStore,
    DelayedMessageStoreWithInfrastructure,
    FetchesInBatches,
    RemovesInBatches,
    StoresInBatches,
    Timeout,
    Transaction,
    TransactionMode,
)
from timeoutmgr.database import Database
from timeoutmgr.delayed_delivery import StoreStart
from timeoutmgr.instants import Micros
from timeoutmgr.testing.conformance.samples import SetClock, Undone

AT_ONCE: Final = 50
MOST: Final = 10_000
"""More messages than any case stores."""


class DelayedStores:
    """Makes stores of one endpoint on one storage, each as another process would have it."""

    def __init__(self, make: Callable[[], DelayedMessageStore], clock: Clock) -> None:
        self._make = make
        self._made: list[DelayedMessageStore] = []
        self.clock: Final = clock
        self.endpoint: Final = f"conformance-{uuid.uuid4().hex[:12]}"

    def __call__(self, mode: TransactionMode = TransactionMode.RECEIVE_ONLY) -> DelayedMessageStore:
        """Return a store that is set up, where it can be, and initialized."""
        store = self.made()
        StoreStart(store, self.endpoint, mode, install=True, accept_loss=True).start()
        return store

    def made(self) -> DelayedMessageStore:
        """Return a store with which nothing was done."""
        store = self._make()
        self._made.append(store)
        return store

    @contextmanager
    def rolled_back(self, store: DelayedMessageStore) -> Iterator[Transaction]:
        """Open a transaction of the store's database that comes to nothing."""
        try:
            with database_of(store).begin() as transaction:
                yield transaction
                raise Undone
        except Undone:
            return

    def close(self) -> None:
        """Close all that were made."""
        for store in self._made:
            getattr(store, "close", lambda: None)()


class DelayedSuite:
    """The facts and the fixtures; every case is a method of a subclass."""

    row_locks: ClassVar[bool]
    """A transaction holds locks: on an error it takes back what it removed."""
    transactions: ClassVar[bool]
    """It has a ``database``, and takes part in that one's transactions."""
    settable_clock: ClassVar[bool]
    """It goes by the instant that it is asked for. False: by a clock of its own, its ``now()``."""
    fetches_in_batches: ClassVar[bool] = False
    stores_in_batches: ClassVar[bool] = False
    removes_in_batches: ClassVar[bool] = False
    """It has ``fetch_due``, ``store_many``, ``remove_many``."""
    lapses: ClassVar[bool] = False
    """What was fetched is free after ``holds_for``, also if its holder neither ended nor died."""
    holds_for: ClassVar[timedelta] = timedelta(seconds=60)
    limits_text: ClassVar[bool] = True
    """It has columns, and refuses what they do not take."""
    races: ClassVar[int] = 100
    """How often a race is run; ``--timeoutmgr-races`` overrides it."""

    @pytest.fixture
    def make_store(self) -> Callable[[], DelayedMessageStore]:
        """Override it: return a maker of stores, all on one storage that is empty.

        The suite sets them up and initializes them, for an endpoint that nobody else has.
        """
        raise NotImplementedError("a subclass overrides the fixture make_store")

    @pytest.fixture
    def clock(self) -> Clock:
        """Return what the stores are asked by."""
        return SetClock() if self.settable_clock else SystemClock()

    @pytest.fixture
    def stores(
        self, make_store: Callable[[], DelayedMessageStore], clock: Clock
    ) -> Iterator[DelayedStores]:
        """Return a maker of stores, all of which are closed in the end."""
        made = DelayedStores(make_store, clock)
        yield made
        made.close()

    @pytest.fixture
    def store(self, stores: DelayedStores) -> DelayedMessageStore:
        """Return a store."""
        return stores()

    @pytest.fixture
    def now(self, store: DelayedMessageStore, clock: Clock) -> Micros:
        """Return the time that due times are compared with, at the start of the test."""
        own: Callable[[], Micros] = getattr(store, "now", clock.now)
        return clock.now() if self.settable_clock else own()

    @pytest.fixture
    def rounds(self, request: pytest.FixtureRequest) -> int:
        """Return how often to run a race."""
        asked: int | None = request.config.getoption("--timeoutmgr-races", None)
        return asked or self.races


def forms(store: DelayedMessageStore) -> dict[str, bool]:
    """Return which batch forms *store* has, by the facts that tell of them."""
    return {
        "fetches_in_batches": isinstance(store, FetchesInBatches),
        "stores_in_batches": isinstance(store, StoresInBatches),
        "removes_in_batches": isinstance(store, RemovesInBatches),
    }


def has_infrastructure(store: DelayedMessageStore) -> bool:
    """Return whether *store* creates what it needs."""
    return isinstance(store, DelayedMessageStoreWithInfrastructure)


def database_of(store: DelayedMessageStore) -> Database:
    """Return the database that *store* says it is in."""
    database: Any = getattr(store, "database", None)
    assert isinstance(database, Database), "`transactions` is True, but there is no database"
    return database


def fetch(
    store: DelayedMessageStore, clock: Clock, transaction: Any, limit: int = AT_ONCE
) -> list[Timeout]:
    """Return what is due in one fetch, by the form that the store has."""
    if isinstance(store, FetchesInBatches):
        return list(store.fetch_due(clock.now(), limit, transaction=transaction))
    one = store.fetch_next_due_timeout(clock.now(), transaction=transaction)
    return [] if one is None else [one]


@contextmanager
def failing(store: DelayedMessageStore) -> Iterator[Any]:
    """Open a transaction of the store's own that ends with an error."""
    try:
        with store.transaction() as transaction:
            yield transaction
            raise Undone
    except Undone:
        return
    raise AssertionError("an error in its transaction is for the caller")


def put(store: DelayedMessageStore, *timeouts: Timeout) -> None:
    """Store *timeouts*, one by one."""
    for one in timeouts:
        store.store(one)


def fetched(store: DelayedMessageStore, clock: Clock) -> list[Timeout]:
    """Return all that is due and free, oldest first, and give it back."""
    found: list[Timeout] = []
    with ExitStack() as held:
        while batch := fetch(store, clock, held.enter_context(store.transaction())):
            found += batch
            _require_once(found)
    return found


def drain(store: DelayedMessageStore, clock: Clock, limit: int = AT_ONCE) -> list[str]:
    """Remove all that is due and free, batch by batch; return the ids in their order."""
    gone: list[str] = []
    while True:
        with store.transaction() as transaction:
            batch = fetch(store, clock, transaction, limit)
            for one in batch:
                assert store.remove(one, transaction=transaction), "it is nobody else's"
        if not batch:
            return gone
        gone += ids(batch)
        assert len(gone) < MOST, "what is removed is handed out again and again"


def _require_once(found: Sequence[Timeout]) -> None:
    assert len(found) == len({one.id for one in found}), f"handed out twice: {ids(found)}"


def ids(timeouts: Sequence[Timeout]) -> list[str]:
    """Return the ids, in order."""
    return [one.id for one in timeouts]
