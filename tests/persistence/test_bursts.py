"""A drain claims chunk behind chunk, and misses no row that is stored amid it meanwhile."""

from __future__ import annotations

import pytest
from sqlalchemy import event

from tests.persistence.conftest import Stores
from tests.persistence.making import NOW, SECOND, dispatch, ids, outcomes, rolled_back, timeout
from timeoutmgr.contracts import Outcome, OutcomeKind
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.persistence.sql.claim.hints import LONGEST_BURST


@pytest.mark.behaviour(124)
def test_within_a_burst_a_claim_reads_on_from_the_last_key(sql: Stores) -> None:
    store, persistence = sql(), sql.persistence
    assert isinstance(persistence, SqlPersistence)
    store.store_many([timeout(f"{n}") for n in range(9)])
    reads: list[str] = []

    def note(*arguments: object) -> None:
        if "ORDER BY" in str(arguments[2]):
            reads.append(str(arguments[2]))

    store.claim(NOW, 2, "o")
    event.listen(persistence.database.engine, "before_cursor_execute", note)
    try:
        chunks = [ids(store.claim(NOW, 2, "o")) for _ in range(3)]
    finally:
        event.remove(persistence.database.engine, "before_cursor_execute", note)

    assert chunks == [["2", "3"], ["4", "5"], ["6", "7"]]
    assert len(reads) == 3


def test_a_row_that_this_process_stores_before_a_burst_goes_next(sql: Stores) -> None:
    store = sql()
    store.store_many([timeout(f"{n}") for n in range(9)])
    store.claim(NOW, 2, "o")

    store.store_many([timeout("late", NOW - SECOND)])

    assert ids(store.claim(NOW, 2, "o")) == ["late"]


def test_a_row_that_this_process_releases_goes_next(sql: Stores) -> None:
    store = sql()
    store.store_many([timeout(f"{n}") for n in range(9)])
    chunk = store.claim(NOW, 2, "o")

    store.release(chunk.token)

    assert ids(store.claim(NOW, 2, "o")) == ["0", "1"]


def test_a_claim_in_a_transaction_goes_on_behind_the_last_committed_claim(sql: Stores) -> None:
    store, persistence = sql(atomic=True), sql.persistence
    assert isinstance(persistence, SqlPersistence)
    store.store_many([timeout(f"{n}") for n in range(9)])

    def claimed() -> list[str]:
        with persistence.database.begin() as transaction:
            return ids(store.claim(NOW, 2, "o", transaction=transaction))

    assert claimed() == ["0", "1"]
    with rolled_back(persistence.database) as transaction:
        assert ids(store.claim(NOW, 2, "o", transaction=transaction)) == ["2", "3"]

    assert [claimed(), claimed()] == [["2", "3"], ["4", "5"]]


def test_a_row_that_another_process_stores_before_a_burst_goes_within_a_second(sql: Stores) -> None:
    ours, theirs = sql(), sql()
    ours.store_many([timeout(f"{n}") for n in range(5)])
    ours.claim(NOW, 2, "o")

    theirs.store_many([timeout("late", NOW - SECOND)])

    assert ids(ours.claim(NOW, 2, "o")) == ["2", "3"]
    assert ids(ours.claim(NOW, 2, "o")) == ["4"]
    sql.clock.at += SECOND
    assert ids(ours.claim(NOW, 2, "o")) == ["late"]
    assert ours.claim(NOW, 2, "o").keys == ()


def test_an_endless_burst_does_not_starve_rows_before_it(sql: Stores) -> None:
    ours, theirs = sql(), sql()
    ours.store_many([timeout(f"{n:03}") for n in range(LONGEST_BURST * 2)])
    ours.claim(NOW, 1, "o")
    theirs.store_many([timeout("late", NOW - SECOND)])

    chunks = []
    for _ in range(LONGEST_BURST):
        sql.clock.at += SECOND // 10
        chunks.append(ids(ours.claim(NOW, 1, "o")))

    assert ["late"] in chunks


def test_a_retry_that_waited_behind_a_burst_is_claimed(sql: Stores) -> None:
    store = sql()
    store.store_many([timeout(f"{n}") for n in range(6)])
    chunk = store.claim(NOW, 2, "o")
    later = NOW + SECOND
    with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
        again = Outcome(key=chunk.keys[0], kind=OutcomeKind.RETRY, at=NOW, next_try=later)
        locked.close([again, *outcomes(chunk.keys[1:])])
    while rest := dispatch(store, store.claim(NOW, 2, "o")):
        assert "0" not in rest
    sql.clock.at = later

    assert dispatch(store, store.claim(later, 2, "o")) == ["0"]
