from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeoutmgr.message.instants import parse_duration, seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", timedelta()),
        ("90", timedelta(seconds=90)),
        (" 1.5 ", timedelta(seconds=1.5)),
        ("-1", timedelta(seconds=-1)),
        ("2m", timedelta(minutes=2)),
        ("2M", timedelta(minutes=2)),
        ("1h30m", timedelta(minutes=90)),
        ("1h 30m", timedelta(minutes=90)),
        ("250ms", timedelta(milliseconds=250)),
        ("7us", timedelta(microseconds=7)),
        ("2w1d", timedelta(days=15)),
        ("PT2M", timedelta(minutes=2)),
        ("P1DT12H", timedelta(hours=36)),
        ("pt0.5s", timedelta(milliseconds=500)),
        ("P2W", timedelta(weeks=2)),
        ("00:02:00", timedelta(minutes=2)),
        ("1.02:03:04.5", timedelta(days=1, hours=2, minutes=3, seconds=4.5)),
    ],
)
def test_a_duration_is_read_in_every_usual_form(text: str, expected: timedelta) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "2 parsecs",
        "m",
        "P",
        "PT",
        "P1M",
        "P1Y",
        "1:30",
        "nan",
        "inf",
        "1e3",
        "\uff12m",
        "1h-2m",
    ],
)
def test_the_refusal_of_a_wrong_duration_names_the_expected_form(text: str) -> None:
    with pytest.raises(ValueError, match="expected seconds, or text such as"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["9" * 30, "99999999999w", "P99999999999D"])
def test_more_than_a_calendar_holds_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"calendar"):
        parse_duration(text)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e300])
def test_seconds_are_finite_and_within_a_calendar(number: float) -> None:
    with pytest.raises(ValueError, match=r"finite|calendar"):
        seconds(number)


@given(st.text(max_size=40))
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    try:
        found = parse_duration(text)
    except ValueError:
        return

    assert isinstance(found, timedelta)
