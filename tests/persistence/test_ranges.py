from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeoutmgr.message.instants import EARLIEST, LATEST, Micros, to_micros
from timeoutmgr.persistence.sql.partitions.catalog import (
    ALL,
    DAY,
    DueRange,
    fresh,
    joined,
    over,
    split,
)

NOW = to_micros(datetime(2026, 11, 21, 15, 30, tzinfo=UTC))
INSTANTS = st.integers(min_value=400 * DAY, max_value=to_micros(datetime(2200, 1, 1, tzinfo=UTC)))


def settled(ranges: list[DueRange], now: Micros) -> list[DueRange]:
    """Return the ranges that split and join make of *ranges*, all of them empty, by *now*."""
    while (change := split(ranges, now)) is not None:
        at = ranges.index(change.old[0])
        ranges = [*ranges[:at], *change.new, *ranges[at + 1 :]]
    past = over(ranges, now)
    return [*joined(past).new, *ranges[len(past) :]] if len(past) > 1 else ranges


def covers_all(ranges: list[DueRange]) -> bool:
    ends = [one.end for one in ranges]
    return [None, *ends[:-1]] == [one.start for one in ranges] and ends[-1] is None


@given(INSTANTS)
def test_fresh_ranges_cover_all_of_time_in_a_few_dozen(now: Micros) -> None:
    ranges = fresh(now)

    assert covers_all(ranges)
    assert len(ranges) <= 41
    assert len({one.name for one in ranges}) == len(ranges)


@given(INSTANTS)
def test_a_week_ahead_is_in_ranges_of_a_day(now: Micros) -> None:
    days = [one for one in fresh(now) if one.start and one.end and one.end - one.start == DAY]

    assert days[0].start is not None
    assert days[-1].end is not None
    assert days[0].start <= now - DAY
    assert days[-1].end >= now + 7 * DAY


@given(INSTANTS, st.lists(st.integers(min_value=0, max_value=900 * DAY), max_size=30))
def test_maintenance_at_any_time_makes_the_ranges_of_a_fresh_table(
    now: Micros, pauses: list[Micros]
) -> None:
    ranges = fresh(now)

    for pause in pauses:
        now += pause
        ranges = settled(ranges, now)

        assert covers_all(ranges)
        assert len({one.name for one in ranges}) == len(ranges)
        assert split(ranges, now) is None
        assert len(ranges) <= 45


@given(INSTANTS, st.integers(min_value=1, max_value=2_000))
def test_daily_maintenance_keeps_the_ranges_of_a_fresh_table(now: Micros, days: int) -> None:
    ranges = fresh(now)
    for day in range(min(days, 120)):
        ranges = settled(ranges, now + day * DAY)

        assert ranges == fresh(now + day * DAY)


@given(INSTANTS)
def test_one_partition_for_all_is_cut_into_fresh_ranges(now: Micros) -> None:
    change = split([ALL], now)

    assert change is not None
    assert list(change.new) == fresh(now)


def test_a_past_that_reaches_into_the_future_is_cut_again() -> None:
    # As after a clock that was years ahead.
    wrong = fresh(NOW + 4_000 * DAY)

    assert settled(wrong, NOW)[: len(fresh(NOW)) - 1] == fresh(NOW)[:-1]
    assert covers_all(settled(wrong, NOW))


def test_a_range_is_named_by_its_first_day_and_its_length() -> None:
    names = [one.name for one in fresh(NOW)]

    assert names[:3] == ["past_20261120", "20261120_1", "20261121_1"]
    assert "20261203_7" in names
    assert names[-1] == "far_20280323"
    assert ALL.name == "all"


@pytest.mark.parametrize("due", [EARLIEST, 0, NOW, LATEST])
def test_every_due_time_there_can_be_has_one_range(due: Micros) -> None:
    holding = [
        one
        for one in fresh(NOW)
        if (one.start is None or one.start <= due) and (one.end is None or due < one.end)
    ]

    assert len(holding) == 1
