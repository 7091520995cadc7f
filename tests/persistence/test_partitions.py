"""PostgreSQL's partitions are made ahead, cut finer, and dropped, as time goes on."""

from __future__ import annotations

import pytest

from tests.persistence.installations import dispatch_all
from tests.persistence.making import NOW, SECOND, dispatch, ids, timeout
from tests.persistence.ranging import TODAY, Installation, fill, tend
from timeoutmgr.contracts import TimeoutFilter, TimeoutState
from timeoutmgr.message.instants import EARLIEST, LATEST
from timeoutmgr.persistence.sql.partitions.catalog import DAY, DueRange


def test_days_are_made_a_week_ahead_as_time_goes_on(new: Installation) -> None:
    store = new.store()
    for day in range(0, 60, 5):
        new.clock.at = NOW + day * DAY
        tend(store)

        one = new.of(new.clock.at + 7 * DAY - SECOND)
        assert (one.end or 0) - (one.start or 0) == DAY
        assert len(new.ranges) <= 45


@pytest.mark.parametrize("count", [900, 2_500])
def test_a_range_that_comes_near_is_cut_with_all_it_holds(new: Installation, count: int) -> None:
    store = new.store()
    far = new.of(NOW + 20 * DAY)
    assert far.start is not None
    assert far.end is not None
    names = fill(store, count, far.start, far.end - far.start)
    assert new.holds(far) == count

    new.clock.at = far.start - 6 * DAY
    tend(store)

    assert far not in new.ranges
    days = [one for one in new.ranges if one.is_in(far)]
    assert len(days) == 7
    assert [new.holds(day) for day in days] == [pytest.approx(count / 7, abs=1)] * 7
    assert store.count(TimeoutFilter()) == count
    new.clock.at = far.end
    assert sorted(dispatch_all(new)) == sorted(names)
    assert new.leftovers() == []


def test_a_day_that_is_over_is_dropped_when_it_is_empty(new: Installation) -> None:
    store = new.store()
    today = new.of(NOW)
    store.store_many([timeout("a")])
    dispatch(store, store.claim(NOW, 9, "o"))

    new.clock.at = TODAY + 2 * DAY
    tend(store)

    assert today not in new.ranges
    assert new.ranges[0] == DueRange(None, TODAY + DAY)


def test_a_day_that_is_over_is_kept_while_it_holds_many(new: Installation) -> None:
    store = new.store()
    fill(store, 1_500, TODAY, DAY)

    new.clock.at = TODAY + 5 * DAY
    tend(store)

    assert new.holds(DueRange(TODAY, TODAY + DAY)) == 1_500
    assert len(dispatch_all(new)) == 1_500


def test_the_remaining_rows_of_a_day_join_the_past(new: Installation) -> None:
    store = new.store()
    store.store_many([timeout("waits", TODAY + SECOND)])

    new.clock.at = TODAY + 9 * DAY
    tend(store)

    [past] = [one for one in new.ranges if one.start is None]
    assert new.holds(past) == 1
    assert dispatch_all(new) == ["waits"]


@pytest.mark.parametrize("due", [EARLIEST, 0, NOW - 400 * DAY, NOW - DAY, LATEST])
def test_no_due_time_is_without_a_place(new: Installation, due: int) -> None:
    store = new.store()
    new.clock.at = NOW + 3 * DAY
    tend(store)

    store.store_many([timeout("a", due)])

    found = store.find("a")
    assert found is not None
    assert found[0] is TimeoutState.PENDING
    assert ids(store.claim(new.clock.at, 9, "o")) == ([] if due == LATEST else ["a"])


def test_the_same_id_is_stored_once_across_all_ranges(new: Installation) -> None:
    store = new.store()
    store.store_many([timeout("a", NOW + 300 * DAY)])

    store.store_many([timeout("a", NOW)])
    store.reschedule("a", NOW + DAY)

    assert [one.due for one in store.list(TimeoutFilter())] == [NOW + DAY]


def test_maintenance_leaves_nothing_to_the_next_maintenance(new: Installation) -> None:
    store = new.store()
    tend(store)
    new.clock.at += 50 * DAY - new.clock.at % DAY  # a day begins by this clock and the wall's

    steps = tend(store)
    again = tend(store)

    assert steps > 0
    assert again == 0
