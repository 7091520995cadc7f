"""Each id is stored once, however often its message is redelivered."""

from __future__ import annotations

import threading

import pytest

from tests.persistence.conftest import Stores
from tests.persistence.making import NOW, SECOND, dispatch, ids, outcomes, rolled_back, timeout
from timeoutmgr.contracts import (
    CancelResult,
    Key,
    Timeout,
    TimeoutFilter,
    TimeoutState,
    TimeoutStore,
)
from timeoutmgr.errors import MessageRejected
from timeoutmgr.message.instants import LATEST
from timeoutmgr.message.message import Message
from timeoutmgr.persistence import SqlPersistence

ALL = TimeoutFilter()


@pytest.mark.behaviour(21, 24)
def test_a_stored_timeout_comes_back_whole(store: TimeoutStore) -> None:
    message = Message(
        id="m ö",
        headers={"Ünïcode": "päßwörd\n\0", "empty": ""},
        body=bytes(range(256)) * 300,
        content_type="application/x; a=b ",
        content_encoding="binary",
    )
    stored = Timeout(
        id="a", due=NOW + 1, destination="Zürich", saga_id="s", created=7, message=message
    )

    store.store_many([stored])

    assert store.find("a") == (TimeoutState.PENDING, stored)
    assert store.list(ALL) == [stored]


def test_no_timeouts_are_stored_without_ado(store: TimeoutStore) -> None:
    store.store_many([])

    assert store.count(ALL) == 0


@pytest.mark.behaviour(34)
def test_storing_twice_is_storing_once(store: TimeoutStore) -> None:
    store.store_many([timeout("a"), timeout("b")])

    store.store_many([timeout("b", NOW + 5), timeout("c"), timeout("a")])

    assert [(one.id, one.due) for one in store.list(ALL)] == [("a", NOW), ("b", NOW), ("c", NOW)]


def test_of_one_id_twice_in_a_batch_the_first_counts(store: TimeoutStore) -> None:
    store.store_many([timeout("a", NOW), timeout("a", NOW + 9), timeout("b")])

    assert [(one.id, one.due) for one in store.list(ALL)] == [("a", NOW), ("b", NOW)]


@pytest.mark.behaviour(34)
def test_a_redelivery_does_not_revive_a_dispatched_timeout(store: TimeoutStore) -> None:
    store.store_many([timeout("a")])
    dispatch(store, store.claim(NOW, 10, "o"))

    store.store_many([timeout("a"), timeout("b")])

    assert [one.id for one in store.list(ALL)] == ["b"]
    assert store.find("a") == (TimeoutState.DISPATCHED, None)


def test_a_redelivery_does_not_undo_a_reschedule(store: TimeoutStore) -> None:
    store.store_many([timeout("a")])
    store.reschedule("a", NOW + SECOND)

    store.store_many([timeout("a")])

    assert [one.due for one in store.list(ALL)] == [NOW + SECOND]


@pytest.mark.behaviour(31)
def test_a_store_message_that_comes_after_the_cancel_is_dropped(store: TimeoutStore) -> None:
    assert store.cancel("a") is CancelResult.WILL_BE_CANCELLED

    store.store_many([timeout("a"), timeout("b")])

    assert [one.id for one in store.list(ALL)] == ["b"]
    assert store.find("a") == (TimeoutState.CANCELLED, None)


@pytest.mark.behaviour(121)
def test_microseconds_and_the_last_instant_are_kept(store: TimeoutStore) -> None:
    store.store_many([timeout("late", LATEST), timeout("b", NOW + 1), timeout("a", NOW + 2)])

    assert [one.due for one in store.list(ALL)] == [NOW + 1, NOW + 2, LATEST]
    assert store.claim(NOW, 10, "o").keys == ()
    assert store.claim(NOW + 1, 10, "o").keys == (Key(NOW + 1, "b"),)


@pytest.mark.parametrize(
    ("one", "other"), [("a", "A"), ("a", "a "), ("ss", "ß"), ("é", "e\u0301"), ("a", "ä")]
)
def test_names_are_compared_by_bytes(stores: Stores, one: str, other: str) -> None:
    store, twin = stores(), stores(endpoint=stores.endpoint.upper())

    store.store_many([timeout(one, saga=one), timeout(other, saga=other)])
    store.store_many([timeout(other), timeout(one)])

    assert store.count(ALL) == 2
    assert twin.count(ALL) == 0
    assert store.count(TimeoutFilter(saga_id=one)) == 1
    assert store.find(other + " ") is None
    assert store.cancel(other) is CancelResult.CANCELLED
    assert [found.id for found in store.list(ALL)] == [one]


def test_ids_are_in_the_order_of_their_bytes(stores: Stores) -> None:
    store = stores()
    stores.clock.at = NOW
    names = ["B", "a", "Z", "ä", "é", "0", "_", "ab", "a b", "\U0001f600", "\uffee"]

    store.store_many([timeout(name) for name in names])

    in_order = sorted(names, key=str.encode)
    assert [one.id for one in store.list(ALL)] == in_order
    assert ids(store.claim(NOW, 100, "o")) == in_order


@pytest.mark.parametrize(
    "bad",
    [
        timeout("x" * 256),
        timeout("a", saga="s" * 256),
        timeout("a", destination="d" * 256),
        timeout("a\0"),
        timeout("\ud800"),
    ],
)
def test_text_that_no_column_takes_is_rejected_and_nothing_stored(
    sql: Stores, bad: Timeout
) -> None:
    store = sql()

    with pytest.raises(MessageRejected):
        store.store_many([timeout("good"), bad])

    assert store.count(ALL) == 0


def test_the_longest_names_can_be_stored(store: TimeoutStore) -> None:
    longest = timeout("ä" * 255, saga="ö" * 255, destination="ü" * 255)

    store.store_many([longest])

    assert store.find(longest.id) == (TimeoutState.PENDING, longest)


def test_in_a_transaction_storing_comes_and_goes_with_it(sql: Stores) -> None:
    store, persistence = sql(), sql.persistence
    assert isinstance(persistence, SqlPersistence)
    store.store_many([timeout("old")])

    with rolled_back(persistence.database) as transaction:
        store.store_many([timeout("a"), timeout("old")], transaction=transaction)
    with persistence.database.begin() as transaction:
        store.store_many([timeout("b"), timeout("old")], transaction=transaction)

    assert [one.id for one in store.list(ALL)] == ["b", "old"]


def test_a_redelivery_that_meets_the_dispatch_does_not_resurrect(sql: Stores) -> None:
    """The store step begins before the dispatch commits, and must find the key all the same."""
    store, persistence = sql(), sql.persistence
    assert isinstance(persistence, SqlPersistence)
    store.store_many([timeout("a")])
    chunk = store.claim(NOW, 1, "o")
    redelivered = threading.Thread(target=store.store_many, args=([timeout("a"), timeout("b")],))

    with (
        persistence.database.begin() as transaction,
        store.lock_for_dispatch(chunk.token, chunk.keys, transaction=transaction) as locked,
    ):
        # On SQLite it can only begin when we have committed; elsewhere it runs at once.
        redelivered.start()
        locked.close(outcomes(chunk.keys))
    redelivered.join()

    assert store.find("a") == (TimeoutState.DISPATCHED, None)
    assert [one.id for one in store.list(ALL)] == ["b"]


def test_batches_that_share_ids_stored_at_once_do_not_clash(sql: Stores) -> None:
    store = sql()
    names = [f"{n:03}" for n in range(60)]
    start = threading.Barrier(4)
    errors: list[BaseException] = []

    def work(own: list[str]) -> None:
        start.wait()
        try:
            for at in range(0, 60, 20):
                store.store_many([timeout(name) for name in own[at : at + 20]])
        except BaseException as error:
            errors.append(error)

    orders = [names, names[::-1], names[30:] + names[:30], names[::2] + names[1::2]]
    threads = [threading.Thread(target=work, args=(order,)) for order in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert [one.id for one in store.list(ALL, limit=100)] == names
