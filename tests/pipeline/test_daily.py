"""Days that differ from the same weekday before."""

from __future__ import annotations

from datetime import date, timedelta

import pytest

from timeoutmgr.pipeline.transforms.daily import anomalies

MONDAY = date(2030, 1, 7)


def series(days: int, **changed: int) -> dict[date, int]:
    """Return 100 messages on each weekday, 10 at the weekend; *changed* by d<number of day>."""
    counts = {
        MONDAY + timedelta(days=number): 10 if number % 7 > 4 else 100 for number in range(days)
    }
    counts |= {MONDAY + timedelta(days=int(name[1:])): many for name, many in changed.items()}
    return {day: many for day, many in counts.items() if many}


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({}, []),
        ({"d28": 149}, []),  # not half as many again
        ({"d28": 150}, [(28, 150, 100)]),
        ({"d28": 0}, [(28, 0, 100)]),  # a day without a message has no row
        ({"d34": 0}, []),  # ten messages less may be chance
        ({"d33": 100}, [(33, 100, 10)]),  # a Saturday like a Monday
        ({"d14": 900}, []),  # two weeks before are no evidence
        ({"d21": 900}, [(21, 900, 100)]),  # and a single odd week spoils no later one
    ],
)
def test_a_day_is_compared_with_the_same_weekday_of_four_weeks(
    changed: dict[str, int], found: list[tuple[int, int, float]]
) -> None:
    days = anomalies(series(35, **changed), MONDAY + timedelta(days=34))

    assert [((one.day - MONDAY).days, one.messages, one.expected) for one in days] == found


def test_a_series_that_ends_is_unusual_until_now() -> None:
    last = MONDAY + timedelta(days=23)

    days = anomalies(series(21), last)

    assert [(one.day, one.messages) for one in days] == [
        (MONDAY + timedelta(days=number), 0) for number in (21, 22, 23)
    ]
    assert anomalies({}, last) == []
