"""A store behind a broken line raises an outage, and keeps all rows of a call or none."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Timeout, TimeoutFilter, TimeoutStore
from timeoutmgr.database import Database, DatabaseSettings
from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.message.message import Message
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.testing.faultproxy import Direction, FaultProxy


@pytest.fixture(params=["postgres", "mysql"])
def database_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def database_proxy(database_url: str) -> Iterator[FaultProxy]:
    with FaultProxy.before(database_url) as proxy:
        yield proxy


@pytest.fixture
def store(database_url: str, database_proxy: FaultProxy, unique: str) -> Iterator[TimeoutStore]:
    with closing(SqlPersistence(database_url, prefix=f"{unique}_")) as near:
        near.install()
    settings = DatabaseSettings(connect_timeout=1)
    database = Database(database_proxy.url(database_url), settings)
    with closing(SqlPersistence(database, prefix=f"{unique}_")) as far:
        yield far.timeouts("e", SystemClock())


def timeout(name: str) -> Timeout:
    return Timeout(id=name, due=2**50, destination="q", message=Message(id=name))


def stored(store: TimeoutStore) -> list[str]:
    return [one.id for one in store.list(TimeoutFilter())]


def test_a_commit_of_unknown_result_raises_and_storing_again_stores_once(
    store: TimeoutStore, database_proxy: FaultProxy
) -> None:
    store.store_many([timeout("before")])
    database_proxy.lose_reply(containing=b"COMMIT")

    with pytest.raises(StorageUnavailable):
        store.store_many([timeout("a"), timeout("b")])
    assert database_proxy.fired == 1

    assert stored(store) == ["a", "b", "before"]  # it was committed, and the answer was lost
    store.store_many([timeout("a"), timeout("b")])
    assert stored(store) == ["a", "b", "before"]


def test_a_claim_whose_commit_is_unknown_loses_nothing(
    store: TimeoutStore, database_proxy: FaultProxy
) -> None:
    store.store_many([Timeout(id="a", due=5, destination="q", message=Message(id="m"))])
    database_proxy.lose_reply(containing=b"COMMIT")

    try:
        first = store.claim(SystemClock().now(), 9, "o").keys
    except StorageUnavailable:
        first = ()
    assert database_proxy.fired == 1
    key_of_a = store.key_of("a")
    assert key_of_a is not None
    with store.lock_for_dispatch("", [key_of_a]) as found:
        ids = [one.id for one in found.timeouts]

    assert [key.id for key in first] in ([], ["a"])
    assert ids == ["a"]


@pytest.mark.parametrize("count", [0, 7, 60, 130, 250, 400])
def test_a_request_that_is_cut_anywhere_stores_all_or_nothing(
    store: TimeoutStore, database_proxy: FaultProxy, count: int
) -> None:
    store.store_many([timeout("before")])
    database_proxy.cut_after(count, Direction.REQUESTS)

    def store_pairs() -> None:
        for number in range(20):  # enough to meet the cut, wherever the driver's packets end
            store.store_many([timeout(f"{number} a"), timeout(f"{number} b")])

    with pytest.raises(StorageUnavailable):
        store_pairs()

    left = [name for name in stored(store) if name != "before"]
    assert len(left) % 2 == 0
    assert {name[:-1] + "b" for name in left} == {name for name in left if name.endswith("b")}


def test_a_cut_within_a_call_is_an_outage_and_the_next_call_connects_again(
    store: TimeoutStore, database_proxy: FaultProxy
) -> None:
    store.ping()
    database_proxy.cut_after(1, Direction.REQUESTS)

    with pytest.raises(StorageUnavailable):
        store.store_many([timeout("a")])
    store.store_many([timeout("b")])

    assert stored(store) == ["b"]


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_a_database_that_answers_no_new_connection_is_an_outage_in_time(
    store: TimeoutStore, database_proxy: FaultProxy
) -> None:
    """MySQL's driver is not in here: it waits a minute for the greeting, its read time-out."""
    database_proxy.blackhole()

    began = time.monotonic()
    with pytest.raises(StorageUnavailable):
        store.ping()
    took = time.monotonic() - began
    database_proxy.heal()

    assert took < 6  # PostgreSQL's library knows no less than two seconds
    store.ping()


def test_a_refused_connection_is_an_outage_at_once(
    store: TimeoutStore, database_proxy: FaultProxy
) -> None:
    database_proxy.refuse()
    with pytest.raises(StorageUnavailable):
        store.ping()

    database_proxy.heal()
    store.ping()


def test_a_slow_line_is_no_outage(store: TimeoutStore, database_proxy: FaultProxy) -> None:
    database_proxy.slow(0.02, 0.01)

    began = time.monotonic()
    store.store_many([timeout("a")])

    assert time.monotonic() - began >= 0.01
    assert stored(store) == ["a"]
