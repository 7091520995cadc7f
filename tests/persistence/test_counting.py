"""Counts and lists are complete while they are cheap, and say so where they are not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.persistence.conftest import Stores
from tests.persistence.making import NOW, SECOND, dispatch, outcomes, timeout
from timeoutmgr.cli.doctor import checks
from timeoutmgr.contracts import (
    Count,
    GroupBy,
    Insight,
    Key,
    OutcomeKind,
    TimeoutFilter,
)
from timeoutmgr.persistence.sql import insight as looking
from timeoutmgr.persistence.sql import searches

ALL = TimeoutFilter()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a test can pass."""
    monkeypatch.setattr(looking, "COUNTED", 5)
    monkeypatch.setattr(looking, "LOOKED_AT", 10)


def test_few_rows_are_counted_exactly(stores: Stores) -> None:
    store = stores()
    store.store_many([timeout(f"{n}", NOW + n, saga="s") for n in range(5)])
    assert isinstance(store, Insight)

    for which in (ALL, TimeoutFilter(saga_id="s"), TimeoutFilter(destination="billing")):
        assert store.count_in_bounds(which) == Count(5)
    assert store.count_in_bounds(TimeoutFilter(due_before=NOW + 2)) == Count(2)


def test_of_more_it_is_said_that_there_are_more(sql: Stores) -> None:
    store = sql()
    store.store_many([timeout(f"{n}", NOW + n, saga="s") for n in range(6)])
    assert isinstance(store, Insight)

    for which in (ALL, TimeoutFilter(saga_id="s"), TimeoutFilter(destination="billing")):
        assert store.count_in_bounds(which) == Count(5, exact=False)
    assert str(store.count_in_bounds(ALL)) == "5+"
    assert store.count(ALL) == 6


def test_where_no_index_helps_only_the_first_rows_are_read(sql: Stores) -> None:
    store = sql()
    store.store_many([timeout("first", NOW, destination="other")])
    store.store_many([timeout(f"{n:02}", NOW + 1 + n) for n in range(9)])
    assert isinstance(store, Insight)
    other = TimeoutFilter(destination="other")
    assert store.count_in_bounds(other) == Count(1)

    store.store_many([timeout("next", NOW + SECOND - 1)])
    store.store_many([timeout("last", NOW + SECOND, destination="other")])

    assert store.count_in_bounds(other) == Count(1, exact=False)
    assert store.count_in_bounds(TimeoutFilter(destination="other", due_from=NOW + 3)) == Count(1)


def test_the_doctor_counts_on_where_the_store_ends_a_count(
    sql: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searches, "FIRST", 10)
    monkeypatch.setattr(searches, "TIME", 0)
    store = sql()
    store.store_many([timeout(f"{n:02}", NOW + n) for n in range(24)])
    store.store_many([timeout("ghost", NOW + SECOND, destination="ghost")])
    assert isinstance(store, Insight)
    assert store.groups(ALL, GroupBy.DESTINATION, limit=100).searched_to is not None

    assert checks._counted(store) == {"billing": 24, "ghost": 1}


def test_a_search_for_a_destination_ends_behind_so_many_rows(sql: Stores) -> None:
    store = sql()
    store.store_many([timeout(f"{n:02}", NOW + n) for n in range(10)])
    store.store_many([timeout("other", NOW + 10, destination="other")])
    store.store_many([timeout(f"{n}", NOW + n) for n in range(11, 25)])
    assert isinstance(store, Insight)
    other = TimeoutFilter(destination="other")

    first = store.list_in_bounds(other)
    second = store.list_in_bounds(other, after=first.searched_to)
    third = store.list_in_bounds(other, after=second.searched_to)

    assert (first.timeouts, first.searched_to) == ([], Key(NOW + 9, "09"))
    assert [one.id for one in second.timeouts] == ["other"]
    assert second.searched_to == Key(NOW + 19, "19")
    assert (third.timeouts, third.searched_to) == ([], None)


def test_a_full_page_goes_on_behind_its_last_timeout(sql: Stores) -> None:
    store = sql()
    store.store_many([timeout(f"{n:02}", NOW + n) for n in range(25)])
    assert isinstance(store, Insight)
    billing = TimeoutFilter(destination="billing")

    page = store.list_in_bounds(billing, limit=3)

    assert [one.id for one in page.timeouts] == ["00", "01", "02"]
    assert page.searched_to is None
    assert store.list_in_bounds(billing, limit=10).searched_to is None
    assert store.list_in_bounds(billing, limit=11).searched_to == Key(NOW + 9, "09")


def test_a_search_with_an_index_has_no_end(sql: Stores) -> None:
    store = sql()
    store.store_many([timeout(f"{n:02}", NOW + n) for n in range(25)])
    store.store_many([timeout(f"s{n}", NOW + SECOND + n, saga="s") for n in range(10)])
    assert isinstance(store, Insight)

    for which, found in (
        (ALL, 35),
        (TimeoutFilter(saga_id="s"), 10),
        (TimeoutFilter(saga_id="s", destination="billing"), 10),
        (TimeoutFilter(id_prefix="s"), 10),
    ):
        page = store.list_in_bounds(which)
        assert (len(page.timeouts), page.searched_to) == (found, None)


def test_a_saga_of_more_rows_than_can_be_read_is_searched_in_order(sql: Stores) -> None:
    store = sql()
    store.store_many([timeout(f"{n:02}", NOW + n, saga="s") for n in range(25)])
    assert isinstance(store, Insight)

    page = store.list_in_bounds(TimeoutFilter(saga_id="s"))

    assert (len(page.timeouts), page.searched_to) == (10, Key(NOW + 9, "09"))


def test_a_timeout_that_waits_for_another_try_is_searched_by_its_first_due_time(
    sql: Stores,
) -> None:
    store = sql()
    store.store_many([timeout("waits", NOW, destination="other")])
    chunk = store.claim(NOW, 1, "o")
    with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
        retry = outcomes(chunk.keys, OutcomeKind.RETRY)
        locked.close([replace(one, next_try=NOW + SECOND) for one in retry])
    store.store_many([timeout(f"{n}", NOW + 1 + n) for n in range(9)])
    assert isinstance(store, Insight)

    page = store.list_in_bounds(TimeoutFilter(destination="other", due_before=NOW + 20))

    assert [one.id for one in page.timeouts] == ["waits"]
    assert page.searched_to is None


def test_statistics_name_the_counts_that_may_be_higher(sql: Stores) -> None:
    store = sql()
    store.store_many([timeout(f"{n}", NOW - n) for n in range(6)])
    store.store_many([timeout(f"later {n}", NOW + SECOND) for n in range(3)])

    found = store.statistics()
    assert (found.pending, found.due, found.at_least) == (5, 5, frozenset({"pending", "due"}))

    dispatch(store, store.claim(NOW, 4, "o"))
    found = store.statistics()
    assert (found.pending, found.due, found.at_least) == (5, 2, frozenset({"outcomes"}))
