"""The first claims on an endpoint, when nothing is there yet to be locked, wait for one another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier

import pytest
from sqlalchemy import ExceptionContext, event, text

from tests.persistence.conftest import Stores
from tests.persistence.making import NOW, ids, timeout
from tests.support.waiting import eventually
from timeoutmgr.contracts import Chunk, TimeoutStore
from timeoutmgr.persistence import SqlPersistence

CLAIMERS = 8
NAMES = [str(number) for number in range(CLAIMERS)]
ENDPOINTS = 10
WAITERS = text(
    "SELECT count(*) FROM information_schema.processlist "
    "WHERE db = DATABASE() AND info LIKE '%endpoints%' AND id <> CONNECTION_ID()"
)


@pytest.mark.behaviour(47, 125)
@pytest.mark.parametrize("number", range(ENDPOINTS))
def test_concurrent_first_claims_share_the_due_rows_and_none_is_tried_again(
    stores: Stores, number: int
) -> None:
    store = stores()
    store.store_many([timeout(name) for name in NAMES])
    together = Barrier(CLAIMERS)

    with conflicts_in(stores) as conflicts, ThreadPoolExecutor(CLAIMERS) as pool:
        claims = claim(pool, store, together.wait)
        chunks = [each.result(60) for each in claims]

    assert conflicts == []
    assert sorted(one for chunk in chunks for one in ids(chunk)) == NAMES


@pytest.mark.behaviour(47, 125)
def test_many_that_wait_for_a_first_claim_go_on_when_that_is_undone_and_none_is_tried_again(
    sql_of: Callable[[str], SqlPersistence], unique: str
) -> None:
    stores = Stores(sql_of("mysql"), unique)
    store, engine = stores(), sql_of("mysql").database.engine
    store.store_many([timeout(name) for name in NAMES])

    with conflicts_in(stores) as conflicts, ThreadPoolExecutor(CLAIMERS) as pool:
        with engine.connect() as first, engine.connect() as looking:
            assert ids(store.claim(NOW, CLAIMERS, "first", transaction=first)) == NAMES
            claims = claim(pool, store)
            eventually(
                lambda: looking.execute(WAITERS).scalar_one() == CLAIMERS, "all wait for the first"
            )
            first.rollback()
        chunks = [each.result(60) for each in claims]

    assert conflicts == []
    assert sorted(one for chunk in chunks for one in ids(chunk)) == NAMES


def claim(
    pool: ThreadPoolExecutor, store: TimeoutStore, begin: Callable[[], object] = lambda: None
) -> list[Future[Chunk]]:
    """Have each of many claim one key, as soon as it may *begin*."""

    def one(owner: str) -> Chunk:
        begin()
        return store.claim(NOW, 1, owner)

    return [pool.submit(one, f"owner {name}") for name in NAMES]


@contextmanager
def conflicts_in(stores: Stores) -> Iterator[list[str]]:
    """Yield the database's errors, also the errors that the store hides from the caller."""
    found: list[str] = []
    if not isinstance(stores.persistence, SqlPersistence):
        yield found  # memory has no conflicts to tell of
        return

    def note(context: ExceptionContext) -> None:
        found.append(str(context.original_exception))

    engine = stores.persistence.database.engine
    event.listen(engine, "handle_error", note)
    try:
        yield found
    finally:
        event.remove(engine, "handle_error", note)
