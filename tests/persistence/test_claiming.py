"""Each key goes to a single claimer of many, and a claim passes by no due key."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.persistence.conftest import Stores
from tests.persistence.explaining import statements
from tests.persistence.making import NOW, SECOND, SetClock, dispatch, ids, outcomes, timeout
from timeoutmgr.contracts import Chunk, OutcomeKind, TimeoutFilter, TimeoutStore
from timeoutmgr.message.instants import Micros
from timeoutmgr.persistence import SqlPersistence, SqlSettings, SqlTimeoutStore
from timeoutmgr.persistence.sql.claim.claimer import OWN_AGAIN, PACE, SOONEST

ALL = TimeoutFilter()


def test_an_empty_store_hands_out_nothing(store: TimeoutStore) -> None:
    assert store.claim(NOW, 10, "o") == Chunk("", (), None)
    assert store.next_due() is None


@pytest.mark.behaviour(26, 120)
def test_a_timeout_is_claimed_from_its_microsecond_on(store: TimeoutStore, clock: SetClock) -> None:
    store.store_many([timeout("a", NOW + 1)])

    before = store.claim(NOW, 10, "o")
    clock.at = NOW + 1
    after = store.claim(NOW + 1, 10, "o")

    assert before == Chunk("", (), NOW + 1)
    assert ids(after) == ["a"]


def test_a_row_of_another_process_is_claimed_from_its_microsecond_on(
    stores: Stores, clock: SetClock
) -> None:
    stores().store_many([timeout("a", NOW + 1)])

    before = stores().claim(NOW, 10, "o")
    clock.at = NOW + 1
    after = stores().claim(NOW + 1, 10, "o")

    assert before == Chunk("", (), NOW + 1)
    assert ids(after) == ["a"]


def test_a_known_key_is_claimed_ahead_and_nothing_behind_it(
    store: TimeoutStore, clock: SetClock
) -> None:
    store.store_many([timeout("a", NOW + 2_000), timeout("b", NOW + 2_001)])

    chunk = store.claim(NOW, 10, "o", ahead=2_000)

    assert chunk.next_due == NOW + 2_001
    assert ids(chunk) == ["a"]


@pytest.mark.parametrize("ahead", [0, 1_999])
def test_a_key_that_is_due_later_than_asked_is_not_claimed(
    ahead: Micros, store: TimeoutStore, clock: SetClock
) -> None:
    store.store_many([timeout("a", NOW + 2_000)])

    assert store.claim(NOW, 10, "o", ahead=ahead) == Chunk("", (), NOW + 2_000)


def test_a_key_that_was_claimed_ahead_is_not_locked_before_it_is_due(
    store: TimeoutStore, clock: SetClock
) -> None:
    store.store_many([timeout("a", NOW + 2_000)])
    chunk = store.claim(NOW, 10, "o", ahead=2_000)

    with store.lock_for_dispatch(chunk.token, chunk.keys) as early:
        early.close([])
    clock.at = NOW + 2_000
    again = store.claim(clock.at, 10, "o")

    assert early.timeouts == []
    assert ids(again) == ["a"]


@pytest.mark.behaviour(49)
def test_the_oldest_go_first_however_old(store: TimeoutStore) -> None:
    store.store_many([timeout("b", 5), timeout("c", NOW), timeout("a", -SECOND)])

    chunk = store.claim(NOW, 2, "o")

    assert ids(chunk) == ["a", "b"]
    assert chunk.next_due == NOW


@pytest.mark.behaviour(37)
def test_next_due_is_the_next_in_the_future(store: TimeoutStore) -> None:
    store.store_many([timeout("a"), timeout("b", NOW + 7), timeout("c", NOW + 9)])

    chunk = store.claim(NOW, 5, "o")

    assert ids(chunk) == ["a"]
    assert chunk.next_due == NOW + 7
    assert store.next_due() == NOW


@pytest.mark.behaviour(47)
def test_a_claimed_key_is_not_claimed_again(store: TimeoutStore) -> None:
    store.store_many([timeout(name) for name in "abcd"])

    first, second, third = (store.claim(NOW, 2, owner) for owner in "opq")

    assert [ids(first), ids(second), ids(third)] == [["a", "b"], ["c", "d"], []]
    assert third.token == ""
    assert third.next_due is not None
    assert NOW < third.next_due <= NOW + SECOND


def test_a_released_claim_is_free_at_once_and_not_marked(store: TimeoutStore) -> None:
    store.store_many([timeout("a")])
    store.release(store.claim(NOW, 2, "o").token)

    chunk = store.claim(NOW, 2, "p")
    store.release(chunk.token)

    assert ids(chunk) == ["a"]
    assert store.cancel("a") == "cancelled"


@pytest.mark.behaviour(48)
def test_a_claim_lapses_by_the_clock(store: TimeoutStore, clock: SetClock) -> None:
    store.store_many([timeout("a")])
    store.claim(NOW, 2, "o")

    clock.at = NOW + 60 * SECOND - 1
    early = store.claim(clock.at, 2, "o")
    clock.at += 1
    late = store.claim(clock.at, 2, "o")

    assert ids(early) == []
    assert ids(late) == ["a"]


@pytest.mark.behaviour(44)
def test_a_row_that_comes_late_into_a_claimed_range_is_found_when_that_is_closed(
    store: TimeoutStore,
) -> None:
    store.store_many([timeout("a", NOW - 30), timeout("c", NOW - 10)])
    chunk = store.claim(NOW, 10, "o")
    store.store_many([timeout("b", NOW - 20)])

    meanwhile = store.claim(NOW, 10, "o")
    if meanwhile.token:  # memory claims single keys
        store.release(meanwhile.token)
    else:
        assert meanwhile.next_due is not None
        assert meanwhile.next_due <= NOW + 50_000
    dispatch(store, chunk)

    assert ids(store.claim(NOW, 10, "o")) == ["b"]


@pytest.mark.behaviour(44)
def test_a_row_that_comes_late_before_a_claimed_range_is_found_at_once(
    store: TimeoutStore,
) -> None:
    store.store_many([timeout("b"), timeout("c")])
    store.claim(NOW, 10, "o")
    store.store_many([timeout("a", NOW - 99), timeout("d")])

    first = store.claim(NOW, 10, "o")
    second = store.claim(NOW, 10, "o")

    assert ids(first) + ids(second) == ["a", "d"]


@pytest.mark.behaviour(53)
def test_rows_written_straight_into_the_table_are_found(sql: Stores) -> None:
    from timeoutmgr.persistence.sql.rows import to_row
    from timeoutmgr.persistence.sql.tables import tables

    persistence = sql.persistence
    assert isinstance(persistence, SqlPersistence)
    with persistence.database.begin() as connection:
        row = to_row(sql.endpoint, timeout("a"))
        connection.execute(tables(None, "suite_").timeouts.insert(), row)

    assert ids(sql().claim(NOW, 10, "o")) == ["a"]


@pytest.mark.behaviour(45)
def test_more_rows_of_one_instant_than_a_page_all_go_out_once(store: TimeoutStore) -> None:
    names = [f"{n:05}" for n in range(10_000)]
    for at in range(0, len(names), 1_000):
        store.store_many([timeout(name) for name in names[at : at + 1_000]])

    seen: list[str] = []
    while (chunk := store.claim(NOW, 500, "o")).keys:
        seen += dispatch(store, chunk) if len(seen) % 2_000 else ids(chunk)

    assert sorted(seen) == names


def test_a_hidden_row_is_not_claimed(sql: Stores) -> None:
    from timeoutmgr.persistence.sql.tables import tables

    persistence = sql.persistence
    assert isinstance(persistence, SqlPersistence)
    store, rows = sql(), tables(None, "suite_").timeouts
    store.store_many([timeout("a"), timeout("b")])
    with persistence.database.begin() as connection:
        hide = rows.update().where(rows.c.endpoint == sql.endpoint, rows.c.id == "a")
        connection.execute(hide.values(hidden_by="run"))

    chunk = store.claim(NOW, 10, "o")

    assert ids(chunk) == ["b"]
    assert chunk.next_due is None


def test_a_retry_waits_for_its_instant_and_delays_no_other_row(
    store: TimeoutStore, clock: SetClock
) -> None:
    store.store_many([timeout(f"{n:02}") for n in range(40)])
    chunk = store.claim(NOW, 30, "o")
    with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
        first = outcomes(chunk.keys, OutcomeKind.RETRY)
        locked.close([replace(outcome, next_try=NOW + SECOND) for outcome in first])

    rest = store.claim(NOW, 30, "o")
    assert len(dispatch(store, rest)) == 10
    idle = store.claim(NOW, 30, "o")
    clock.at = NOW + SECOND
    again = store.claim(clock.at, 30, "o")

    assert idle == Chunk("", (), NOW + SECOND)
    assert len(again.keys) == 30
    with store.lock_for_dispatch(again.token, again.keys) as locked:
        assert {one.attempts for one in locked.timeouts} == {1}


def test_an_idle_claim_is_one_statement(sql: Stores) -> None:
    store = sql()
    store.store_many([timeout("a", NOW + SECOND)])
    store.claim(NOW, 10, "o")

    with _statements(sql) as statements:
        store.claim(NOW, 10, "o")

    assert len(statements) == 1, statements


def test_a_claim_beside_no_other_reads_the_claims_and_the_timeouts_once(sql: Stores) -> None:
    store = sql()
    store.store_many([timeout("a", NOW), timeout("b", NOW + SECOND)])
    assert isinstance(store, SqlTimeoutStore)
    timeouts = store.context.tables.timeouts.name

    with _statements(sql) as statements:
        chunk = store.claim(NOW, 10, "o")

    assert chunk.next_due == NOW + SECOND
    claims = store.context.tables.claims.name
    assert sum(each.startswith(f"SELECT {timeouts}.") for each in statements) == 1
    assert sum(each.startswith(f"SELECT {claims}.") for each in statements) == 1


def test_a_key_that_is_known_to_be_due_is_claimed_without_a_peek(sql: Stores) -> None:
    store, elsewhere = sql(), sql()
    store.store_many([timeout("a", NOW + SECOND)])
    assert store.claim(NOW, 10, "o").next_due == NOW + SECOND

    with _statements(sql) as known:
        assert [key.id for key in store.claim(NOW + SECOND, 10, "o").keys] == ["a"]
    elsewhere.store_many([timeout("b", NOW + SECOND)])
    with _statements(sql) as unknown:
        assert [key.id for key in store.claim(NOW + SECOND, 10, "o").keys] == ["b"]

    assert isinstance(store, SqlTimeoutStore)
    peek = f"SELECT {store.context.tables.timeouts.name}."
    assert [each[0].startswith(peek) for each in (known, unknown)] == [False, True]


def test_a_claim_reads_on_where_a_known_key_was_removed(sql: Stores) -> None:
    store, elsewhere = sql(), sql()
    store.store_many([timeout("a", NOW + SECOND)])
    store.claim(NOW, 10, "o")
    store.cancel("a")
    elsewhere.store_many([timeout("b", NOW - SECOND)])

    assert [key.id for key in store.claim(NOW + SECOND, 10, "o").keys] == ["b"]


@contextmanager
def _statements(sql: Stores) -> Iterator[list[str]]:
    """Record the statements, settings apart."""
    assert isinstance(sql.persistence, SqlPersistence)
    with statements(sql.persistence.database.engine, but=("BEGIN", "SET LOCAL")) as found:
        yield found


@pytest.mark.behaviour(46, 47, 125)
def test_pollers_that_compete_with_writers_claim_nothing_twice(stores: Stores) -> None:
    store = stores()
    total, written, seen, errors = 2_000, threading.Event(), [], []
    lock = threading.Lock()

    def write(part: int) -> None:
        for at in range(part * 1_000, part * 1_000 + 1_000, 50):
            store.store_many([timeout(f"{n:05}", NOW - n % 97) for n in range(at, at + 50)])

    def poll(owner: str) -> None:
        try:
            while True:
                done = written.is_set()
                chunk = store.claim(NOW, 60, owner)
                if chunk.keys:
                    got = dispatch(store, chunk)
                    with lock:
                        seen.extend(got)
                elif done and store.count(ALL) == 0:
                    return
        except BaseException as error:
            errors.append(error)

    writers = [threading.Thread(target=write, args=(part,)) for part in range(2)]
    pollers = [threading.Thread(target=poll, args=(f"owner {n}",)) for n in range(3)]
    for thread in [*writers, *pollers]:
        thread.start()
    for thread in writers:
        thread.join()
    written.set()
    for thread in pollers:
        thread.join()

    assert errors == []
    assert sorted(seen) == [f"{n:05}" for n in range(total)]


@pytest.mark.behaviour(126)
def test_endpoints_do_not_see_each_other(stores: Stores) -> None:
    store, other = stores(), stores(endpoint=stores.endpoint + "2")
    store.store_many([timeout("a")])
    other.store_many([timeout("a", NOW + 5)])

    chunk = other.claim(NOW, 5, "o")

    assert chunk == Chunk("", (), NOW + 5)
    assert ids(store.claim(NOW, 5, "o")) == ["a"]


@pytest.mark.behaviour(50)
def test_no_more_ids_are_in_flight_than_is_set(
    sqlite_url: str, unique: str, persistence_of: Callable[..., SqlPersistence]
) -> None:
    settings = SqlSettings(clock="host", max_in_flight=5)
    persistence = persistence_of(sqlite_url, settings=settings)
    persistence.install()
    store = persistence.timeouts(unique, SetClock())
    store.store_many([timeout(name) for name in "abcdefgh"])

    first, second = store.claim(NOW, 4, "o"), store.claim(NOW, 4, "o")
    full = store.claim(NOW, 4, "o")

    assert (ids(first), ids(second)) == (list("abcd"), ["e"])
    assert (full.keys, full.next_due) == ((), NOW + SOONEST)


def test_the_next_poll_beside_own_claims_waits_for_a_dispatcher_to_end_many_of_them(
    sqlite_url: str, unique: str, persistence_of: Callable[..., SqlPersistence]
) -> None:
    persistence = persistence_of(sqlite_url, settings=SqlSettings(clock="host"))
    persistence.install()
    store = persistence.timeouts(unique, SetClock())
    names = [f"{number:04}" for number in range(2_000)]

    store.store_many([timeout(name) for name in names[:100]])
    store.claim(NOW, 100, "o")
    beside_few = store.claim(NOW, 100, "o").next_due
    store.store_many([timeout(name) for name in names[100:]])
    store.claim(NOW, 1_900, "o")
    beside_many = store.claim(NOW, 100, "o").next_due

    assert beside_few == NOW + OWN_AGAIN
    assert beside_many == NOW + 2_000 * PACE > NOW + OWN_AGAIN
