"""A search reads as many rows as its time allows, and says so if it ends before the last row."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.persistence.conftest import Stores
from tests.persistence.making import NOW, timeout
from timeoutmgr.contracts import Count, GroupBy, Groups, Key, LoadWindow, TimeoutFilter
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.persistence.sql import insight as looking
from timeoutmgr.persistence.sql import searches
from timeoutmgr.persistence.sql.insight import StoreInsight
from timeoutmgr.persistence.sql.store import SqlTimeoutStore

NOBODY = TimeoutFilter(destination="nobody")
ROWS = 30


class Stopwatch:
    """Monotonic seconds, *step* of them for each look."""

    def __init__(self, step: float) -> None:
        self._seconds, self._step = 0.0, step

    def __call__(self) -> float:
        self._seconds += self._step
        return self._seconds

    def go_on(self, seconds: float) -> None:
        """Let *seconds* pass."""
        self._seconds += seconds


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that a test can fill."""
    monkeypatch.setattr(searches, "FIRST", 2)
    monkeypatch.setattr(searches, "_FEWEST", 1)


@pytest.fixture
def insight(
    sql_of: Callable[[str], SqlPersistence], unique: str
) -> Callable[[Stopwatch], StoreInsight]:
    """Answers about ROWS timeouts to ``billing``, by the given seconds."""
    store = Stores(sql_of("sqlite"), unique)()
    store.store_many([timeout(f"{n:02}", NOW + n) for n in range(ROWS)])
    assert isinstance(store, SqlTimeoutStore)
    context = store.context
    return lambda seconds: StoreInsight(context, seconds)


def test_a_search_of_fast_rows_reads_them_all(
    insight: Callable[[Stopwatch], StoreInsight],
) -> None:
    fast = insight(Stopwatch(0.0))

    assert fast.count_in_bounds(NOBODY) == Count(0)
    assert fast.list_in_bounds(NOBODY).searched_to is None
    assert fast.load(LoadWindow(NOW, 10, 3)).counts == [Count(10)] * 3


def test_a_search_of_fast_rows_ends_behind_so_many_rows(
    insight: Callable[[Stopwatch], StoreInsight], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looking, "LOOKED_AT", 10)
    fast = insight(Stopwatch(0.0))

    assert fast.count_in_bounds(NOBODY) == Count(0, exact=False)
    assert fast.list_in_bounds(NOBODY).searched_to == Key(NOW + 9, "09")


def test_a_search_of_slow_rows_ends_when_the_time_is_up(
    insight: Callable[[Stopwatch], StoreInsight],
) -> None:
    slow = insight(Stopwatch(searches.TIME / 4))
    count = slow.count_in_bounds(TimeoutFilter(destination="billing", due_from=NOW))
    page = slow.list_in_bounds(NOBODY)

    assert not count.exact
    assert 2 < count.number < ROWS
    assert page.searched_to is not None
    assert NOW + 1 < page.searched_to.due < NOW + ROWS - 1


def test_the_first_part_is_read_however_long_it_takes(
    insight: Callable[[Stopwatch], StoreInsight],
) -> None:
    late = insight(Stopwatch(searches.TIME * 2))
    seen, after = list[str](), None

    while True:
        page = late.list_in_bounds(TimeoutFilter(destination="billing"), after=after)
        seen += [one.id for one in page.timeouts]
        if (after := page.searched_to) is None:
            break

    assert seen == [f"{n:02}" for n in range(ROWS)]
    assert late.count_in_bounds(TimeoutFilter(destination="billing")) == Count(2, exact=False)


def test_buckets_behind_the_end_of_the_time_are_lower_bounds(
    insight: Callable[[Stopwatch], StoreInsight],
) -> None:
    late = insight(Stopwatch(searches.TIME * 2))

    counts = late.load(LoadWindow(NOW, 10, 3)).counts

    assert counts == [Count(10), Count(0, exact=False), Count(0, exact=False)]


@pytest.mark.parametrize("by", GroupBy)
def test_groups_of_slow_rows_end_when_the_time_is_up(
    insight: Callable[[Stopwatch], StoreInsight], by: GroupBy
) -> None:
    late = insight(Stopwatch(searches.TIME * 2))
    parts, after = list[int](), None

    while True:
        groups = late.groups(TimeoutFilter(), by, limit=ROWS, after=after)
        parts.append(groups.counted)
        if (after := groups.searched_to) is None:
            break

    assert parts == [searches.FIRST] * (ROWS // searches.FIRST)


def test_groups_of_fast_rows_have_as_many_as_are_asked_for(
    insight: Callable[[Stopwatch], StoreInsight],
) -> None:
    fast = insight(Stopwatch(0.0))

    groups = fast.groups(TimeoutFilter(), GroupBy.DESTINATION, limit=ROWS - 1)

    assert groups == Groups({"billing": ROWS - 1})


def test_searches_of_one_read_share_the_time(
    sql_of: Callable[[str], SqlPersistence], unique: str
) -> None:
    store = Stores(sql_of("sqlite"), unique)()
    store.store_many([timeout(f"{n:02}", NOW + n) for n in range(ROWS)])
    assert isinstance(store, SqlTimeoutStore)
    passing = Stopwatch(0.0)
    answers = StoreInsight(store.context, passing)

    with store.one_read():
        first = answers.count_in_bounds(NOBODY)
        passing.go_on(searches.TIME)
        second = answers.count_in_bounds(NOBODY)
    alone = answers.count_in_bounds(NOBODY)

    assert (first, second, alone) == (Count(0), Count(0, exact=False), Count(0))
