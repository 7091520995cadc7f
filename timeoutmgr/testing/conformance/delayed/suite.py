"""Facts, fixtures and helpers of the cases of delayed message stores."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar, Final

import pytest

from timeoutmgr.contracts import (
    Clock,
    Closes,
    DelayedMessageStore,
    FetchesInBatches,
    HasStoreClock,
    RemovesInBatches,
    StoresInBatches,
    Timeout,
    Transaction,
    TransactionMode,
)
from timeoutmgr.database import Database
from timeoutmgr.features.delayed_delivery import StoreStart
from timeoutmgr.features.delayed_delivery import database_of as database_if_any
from timeoutmgr.message.instants import Micros
from timeoutmgr.testing.conformance.samples import Undone
from timeoutmgr.testing.conformance.shared_cases import SharedSuite, Subject, ids

AT_ONCE: Final = 50
MOST: Final = 10_000
"""More messages than any case stores."""


class DelayedStores:
    """Creates stores of one endpoint on one storage, each like the store of another process."""

    def __init__(self, make: Callable[[], DelayedMessageStore], clock: Clock) -> None:
        self._make = make
        self._made: list[DelayedMessageStore] = []
        self.clock: Final = clock
        self.endpoint: Final = f"conformance-{uuid.uuid4().hex[:12]}"

    def __call__(self, mode: TransactionMode = TransactionMode.RECEIVE_ONLY) -> DelayedMessageStore:
        """Return an initialized store; set it up first, if it can be set up."""
        store = self.made()
        StoreStart(store, self.endpoint, mode, install=True, accept_loss=True).start()
        return store

    def made(self) -> DelayedMessageStore:
        """Return a new store that is neither set up nor initialized."""
        store = self._make()
        self._made.append(store)
        return store

    def close(self) -> None:
        """Close all created stores."""
        for store in self._made:
            if isinstance(store, Closes):
                store.close()


class DelayedSubject(Subject):
    """A delayed message store under the names of the shared cases."""

    lists_later = False

    def __init__(self, stores: DelayedStores, *, joined: bool) -> None:
        mode = TransactionMode.TRANSACTION_SCOPE if joined else TransactionMode.RECEIVE_ONLY
        self._stores = stores
        self._store = stores(mode)

    def put(self, *timeouts: Timeout, transaction: Any = None) -> None:
        """Store *timeouts*: several in one batch, if the store has the batch form."""
        if isinstance(self._store, StoresInBatches) and len(timeouts) != 1:
            self._store.store_many(timeouts, transaction=transaction)
            return
        for one in timeouts:
            self._store.store(one, transaction=transaction)

    def next_due(self) -> Micros | None:
        """Return when to fetch the first message, None if the store is empty."""
        return self._store.next()

    def kept(self) -> list[Timeout]:
        """Return every due, free message by due time."""
        return fetched(self._store, self._stores.clock)

    def comparable(self, one: Timeout) -> Timeout:
        """Return *one* with the fields that a send needs; a store may forget the rest."""
        return replace(one, saga_id=None, created=0, next_try=0)

    @contextmanager
    def held(self, limit: int = 1) -> Iterator[list[Timeout]]:
        """Fetch due messages in transactions that stay open; remove nothing."""
        found: list[Timeout] = []
        with ExitStack() as held:
            while wanted := limit - len(found):
                transaction = held.enter_context(self._store.transaction())
                batch = fetch(self._store, self._stores.clock, transaction, wanted)
                if not batch:
                    break
                found += batch
            _require_once(found)
            yield found

    def drain(self, limit: int = 50) -> list[str]:
        """Remove every due, free message batch by batch; return the ids in order."""
        return drain(self._store, self._stores.clock, limit)

    def drop(self, one: Timeout) -> bool:
        """Remove *one*; return whether the store had it."""
        return self._store.remove(one)

    def dispatch_in(self, transaction: Transaction) -> str:
        """Fetch and remove the oldest due message in *transaction*; return its id."""
        [one] = fetch(self._store, self._stores.clock, transaction, 1)
        assert self._store.remove(one, transaction=transaction)
        return one.id

    def is_closed(self, one: Timeout) -> bool:
        """Return whether the store is empty: *one* was removed."""
        return self._store.next() is None and not self._store.remove(one)

    def committed(self) -> AbstractContextManager[Transaction]:
        """Open a transaction of the store's database."""
        return database_of(self._store).begin()


class DelayedSuite(SharedSuite):
    """The facts and the fixtures; every case is a method of a subclass."""

    durable = True
    fetches_in_batches: ClassVar[bool] = False
    stores_in_batches: ClassVar[bool] = False
    removes_in_batches: ClassVar[bool] = False
    """Three facts: the store has ``fetch_due``, ``store_many``, ``remove_many``."""
    races = 100
    keeps_endpoints_apart: ClassVar[bool] = True
    """Several endpoints may use one storage. False: each endpoint has a storage of its own."""
    lapses: ClassVar[bool] = False
    """A fetched message is free after ``holds_for``, even if its transaction is still open."""
    holds_for: ClassVar[timedelta] = timedelta(seconds=60)

    @pytest.fixture
    def make_store(self) -> Callable[[], DelayedMessageStore]:
        """Override this: return a factory of stores that share one empty storage.

        The suite sets the stores up and initializes them for a new endpoint.
        """
        raise NotImplementedError("a subclass overrides the fixture make_store")

    @pytest.fixture
    def stores(
        self, make_store: Callable[[], DelayedMessageStore], clock: Clock
    ) -> Iterator[DelayedStores]:
        """Return a factory of stores; close them after the test."""
        made = DelayedStores(make_store, clock)
        yield made
        made.close()

    @pytest.fixture
    def store(self, stores: DelayedStores) -> DelayedMessageStore:
        """Return a store."""
        return stores()

    @pytest.fixture
    def now(self, store: DelayedMessageStore, clock: Clock) -> Micros:
        """Return the time with which the store compares due times, at the start of the test."""
        if isinstance(store, HasStoreClock) and not self.settable_clock:
            return store.now()
        return clock.now()

    @pytest.fixture
    def make_subject(self, stores: DelayedStores) -> Callable[..., Subject]:
        """Return a factory of stores in the form that the shared cases use."""
        return lambda joined=False: DelayedSubject(stores, joined=joined)


def forms(store: DelayedMessageStore) -> dict[str, bool]:
    """Return whether *store* has each batch form, by the name of the fact."""
    return {
        "fetches_in_batches": isinstance(store, FetchesInBatches),
        "stores_in_batches": isinstance(store, StoresInBatches),
        "removes_in_batches": isinstance(store, RemovesInBatches),
    }


def database_of(store: DelayedMessageStore) -> Database:
    """Return the database of *store*; fail if it names none."""
    database = database_if_any(store)
    assert database is not None, "`transactions` is True, but there is no database"
    return database


def fetch(
    store: DelayedMessageStore, clock: Clock, transaction: Any, limit: int = AT_ONCE
) -> list[Timeout]:
    """Return the messages of a single fetch, in a batch if the store can do that."""
    if isinstance(store, FetchesInBatches):
        return list(store.fetch_due(clock.now(), limit, transaction=transaction))
    one = store.fetch_next_due_timeout(clock.now(), transaction=transaction)
    return [] if one is None else [one]


@contextmanager
def failing(store: DelayedMessageStore) -> Iterator[Any]:
    """Open a transaction of the store that ends with an error."""
    try:
        with store.transaction() as transaction:
            yield transaction
            raise Undone
    except Undone:
        return
    raise AssertionError("an error in its transaction is for the caller")


def put(store: DelayedMessageStore, *timeouts: Timeout) -> None:
    """Store each of *timeouts* by itself."""
    for one in timeouts:
        store.store(one)


def fetched(store: DelayedMessageStore, clock: Clock) -> list[Timeout]:
    """Return all due, unlocked messages, oldest first, and unlock them again."""
    found: list[Timeout] = []
    with ExitStack() as held:
        while batch := fetch(store, clock, held.enter_context(store.transaction())):
            found += batch
            _require_once(found)
    return found


def drain(store: DelayedMessageStore, clock: Clock, limit: int = AT_ONCE) -> list[str]:
    """Remove all due, unlocked messages batch by batch; return the ids in order."""
    removed: list[str] = []
    while True:
        with store.transaction() as transaction:
            batch = fetch(store, clock, transaction, limit)
            for one in batch:
                assert store.remove(one, transaction=transaction), "it is nobody else's"
        if not batch:
            return removed
        removed += ids(batch)
        assert len(removed) < MOST, "what is removed is handed out again and again"


def _require_once(found: Sequence[Timeout]) -> None:
    assert len(found) == len({one.id for one in found}), f"handed out twice: {ids(found)}"
