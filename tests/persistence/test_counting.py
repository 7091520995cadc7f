"""Counting is exact while it is cheap, and says so where it is not."""

from __future__ import annotations

import pytest

from tests.persistence.conftest import Stores
from tests.persistence.making import NOW, SECOND, dispatch, timeout
from timeoutmgr.contracts import Count, CountsInBounds, TimeoutFilter
from timeoutmgr.persistence.sql import looking

ALL = TimeoutFilter()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a test can pass."""
    monkeypatch.setattr(looking, "COUNTED", 5)
    monkeypatch.setattr(looking, "LOOKED_AT", 10)


def test_what_is_few_is_counted_exactly(stores: Stores) -> None:
    store = stores()
    store.store_many([timeout(f"{n}", NOW + n, saga="s") for n in range(5)])
    assert isinstance(store, CountsInBounds)

    for which in (ALL, TimeoutFilter(saga_id="s"), TimeoutFilter(destination="billing")):
        assert store.count_in_bounds(which) == Count(5)
    assert store.count_in_bounds(TimeoutFilter(due_before=NOW + 2)) == Count(2)


def test_of_more_it_is_said_that_there_are_more(sql: Stores) -> None:
    store = sql()
    store.store_many([timeout(f"{n}", NOW + n, saga="s") for n in range(6)])
    assert isinstance(store, CountsInBounds)

    for which in (ALL, TimeoutFilter(saga_id="s"), TimeoutFilter(destination="billing")):
        assert store.count_in_bounds(which) == Count(5, exact=False)
    assert str(store.count_in_bounds(ALL)) == "5+"
    assert store.count(ALL) == 6


def test_where_no_index_helps_only_the_first_rows_are_read(sql: Stores) -> None:
    store = sql()
    store.store_many([timeout("first", NOW, destination="other")])
    store.store_many([timeout(f"{n:02}", NOW + 1 + n) for n in range(9)])
    assert isinstance(store, CountsInBounds)
    other = TimeoutFilter(destination="other")
    assert store.count_in_bounds(other) == Count(1)

    store.store_many([timeout("next", NOW + SECOND - 1)])
    store.store_many([timeout("last", NOW + SECOND, destination="other")])

    assert store.count_in_bounds(other) == Count(1, exact=False)
    assert store.count_in_bounds(TimeoutFilter(destination="other", due_from=NOW + 3)) == Count(1)


def test_statistics_name_what_may_be_more(sql: Stores) -> None:
    store = sql()
    store.store_many([timeout(f"{n}", NOW - n) for n in range(6)])
    store.store_many([timeout(f"later {n}", NOW + SECOND) for n in range(3)])

    found = store.statistics()
    assert (found.pending, found.due, found.at_least) == (5, 5, frozenset({"pending", "due"}))

    dispatch(store, store.claim(NOW, 4, "o"))
    found = store.statistics()
    assert (found.pending, found.due, found.at_least) == (5, 2, frozenset({"outcomes"}))
