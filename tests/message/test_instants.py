from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from freezegun import freeze_time
from hypothesis import given
from hypothesis import strategies as st

from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import TimeoutFilter
from timeoutmgr.deadletter.queues import StoredCopyFilter
from timeoutmgr.errors import ConfigurationError, InvalidMessage
from timeoutmgr.message.instants import (
    EARLIEST,
    LATEST,
    duration_micros,
    from_micros,
    from_timespan,
    from_wire,
    parse_duration,
    require_window,
    to_micros,
    to_timespan,
    to_wire,
)
from timeoutmgr.migration import Window
from timeoutmgr.pipeline.options import LatenessOptions, ScheduleOptions
from timeoutmgr.transport.error_queue_retry import FailureFilter

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.behaviour(17)
@pytest.mark.parametrize(
    ("at", "text"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), "1970-01-01 00:00:00:000000 Z"),
        (datetime(2024, 2, 29, 23, 59, 59, 999999, UTC), "2024-02-29 23:59:59:999999 Z"),
        (datetime(2030, 1, 2, 3, 4, 5, 6, UTC), "2030-01-02 03:04:05:000006 Z"),
        (datetime(1, 1, 1, tzinfo=UTC), "0001-01-01 00:00:00:000000 Z"),
        (datetime.max.replace(tzinfo=UTC), "9999-12-31 23:59:59:999999 Z"),
    ],
)
def test_the_wire_form_has_a_colon_before_six_digits_of_microseconds(
    at: datetime, text: str
) -> None:
    assert to_wire(to_micros(at)) == text


@pytest.mark.behaviour(18, 121)
@given(st.integers(EARLIEST, LATEST))
def test_an_instant_survives_the_wire_to_the_microsecond(instant: int) -> None:
    assert from_wire(to_wire(instant)) == instant


@given(st.integers(EARLIEST, LATEST))
def test_the_wire_form_is_always_28_characters_long(instant: int) -> None:
    assert len(to_wire(instant)) == 28


@given(
    st.datetimes(
        min_value=datetime(2, 1, 1), max_value=datetime(9998, 1, 1), timezones=st.timezones()
    )
)
def test_an_aware_datetime_is_the_same_instant_in_any_zone(at: datetime) -> None:
    assert to_micros(at) == to_micros(at.astimezone(UTC))


@given(st.integers(EARLIEST, LATEST))
def test_an_instant_survives_as_an_aware_datetime(instant: int) -> None:
    assert to_micros(from_micros(instant)) == instant


@pytest.mark.behaviour(18)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "2030-01-02 03:04:05:000006",
        "2030-01-02 03:04:05:000006 z",
        "2030-01-02T03:04:05:000006 Z",
        "2030-01-02 03:04:05.000006 Z",
        "2030-01-02 03:04:05:00006 Z",
        "2030-01-02 03:04:05:0000006 Z",
        " 2030-01-02 03:04:05:000006 Z",
        "2030-01-02 03:04:05:000006 Z\n",
        "2030-1-02 03:04:05:000006 Z",
        "2030-13-02 03:04:05:000006 Z",
        "2030-02-30 03:04:05:000006 Z",
        "2030-01-02 24:00:00:000000 Z",
        "2030-01-02 03:04:60:000000 Z",
        "0000-01-01 00:00:00:000000 Z",
        "٢٠٣٠-01-02 03:04:05:000006 Z",
        "2030-01-02 03:04:05:000006 +00:00",
    ],
)
def test_text_that_is_not_exactly_the_wire_form_is_no_instant(text: str) -> None:
    with pytest.raises(ValueError, match=r"instant|month|day|hour|second|year"):
        from_wire(text)


@given(st.text(max_size=40))
def test_any_text_is_an_instant_or_a_value_error(text: str) -> None:
    try:
        assert to_wire(from_wire(text)) == text
    except ValueError:
        return


@pytest.mark.behaviour(15)
def test_a_naive_datetime_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="no time zone"):
        to_micros(datetime(2030, 1, 1))


@pytest.mark.behaviour(15)
def test_an_offset_is_normalised_to_utc() -> None:
    at = datetime(2030, 1, 1, 12, tzinfo=timezone(timedelta(hours=5, minutes=30)))

    assert to_wire(to_micros(at)) == "2030-01-01 06:30:00:000000 Z"


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        pytest.param(2, 1, id="swapped"),
        pytest.param(2, 2, id="equal"),
        pytest.param(LATEST + 2, LATEST + 1, id="beyond the calendar"),
        pytest.param(
            datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1),
            datetime(2026, 10, 25, 2, 40, tzinfo=BERLIN),
            id="of the repeated hour",
        ),
    ],
)
def test_a_window_without_an_instant_is_refused_by_both_values(
    begin: int | datetime, end: int | datetime
) -> None:
    with pytest.raises(ConfigurationError, match=r"since is before until, got since .+ and until"):
        require_window(ConfigurationError, since=begin, until=end)


@pytest.mark.parametrize(("begin", "end"), [(None, 1), (1, None), (1, 2)])
def test_a_window_that_is_open_or_has_an_instant_passes(begin: int | None, end: int | None) -> None:
    require_window(ConfigurationError, since=begin, until=end)


@pytest.mark.parametrize(
    "make",
    [
        lambda begin, end: TimeoutFilter(due_from=to_micros(begin), due_before=to_micros(end)),
        lambda begin, end: TimeoutFilter(tried_from=to_micros(begin), tried_before=to_micros(end)),
        lambda begin, end: FailureFilter(since=begin, until=end),
        lambda begin, end: StoredCopyFilter(kept_from=to_micros(begin), kept_before=to_micros(end)),
        lambda begin, end: Window(cutoff=to_micros(begin), until=to_micros(end)),
        lambda begin, end: LatenessOptions(stores=("s",), since=begin, until=end),
        lambda begin, end: ScheduleOptions(
            store="s", dataset="d", endpoint="e", since=begin, until=end
        ),
    ],
)
def test_each_filter_and_job_refuses_a_window_whose_ends_are_swapped(make: Any) -> None:
    first, last = (datetime(2030, 1, day, tzinfo=UTC) for day in (1, 2))
    make(first, last)

    with pytest.raises((InvalidMessage, ConfigurationError), match=r"2030-01-02.*2030-01-01.*swap"):
        make(last, first)


@pytest.mark.behaviour(18)
def test_the_repeated_hour_in_autumn_is_two_different_hours() -> None:
    new_york = ZoneInfo("America/New_York")
    first = datetime(2030, 11, 3, 1, 30, tzinfo=new_york, fold=0)
    second = datetime(2030, 11, 3, 1, 30, tzinfo=new_york, fold=1)

    assert to_micros(second) - to_micros(first) == 3_600_000_000


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(0), "00:00:00"),
        (timedelta(seconds=1), "00:00:01"),
        (timedelta(hours=23, minutes=59, seconds=59), "23:59:59"),
        (timedelta(days=1), "1.00:00:00"),
        (timedelta(days=10, microseconds=1), "10.00:00:00.0000010"),
        (timedelta(milliseconds=250), "00:00:00.2500000"),
        (timedelta.max, "10675199.02:48:05.4775800"),
    ],
)
def test_a_duration_is_spelt_as_dotnet_spells_it(duration: timedelta, text: str) -> None:
    assert to_timespan(duration) == text


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=10_675_199)))
def test_a_duration_survives_its_spelling(duration: timedelta) -> None:
    assert from_timespan(to_timespan(duration)) == duration


@pytest.mark.parametrize(
    "text", ["", "1", "1:2:3", "00:00", "-00:00:01", "00:00:00.", "a.00:00:00"]
)
def test_text_that_is_no_duration_raises(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        from_timespan(text)


def test_the_system_clock_counts_utc_microseconds() -> None:
    with freeze_time("2030-06-01 12:00:00.123456"):
        assert to_wire(SystemClock().now()) == "2030-06-01 12:00:00:123456 Z"


def test_the_system_clocks_monotonic_seconds_advance_with_time() -> None:
    with freeze_time("2030-06-01 12:00:00") as frozen:
        clock = SystemClock()
        before = clock.monotonic()
        frozen.tick(timedelta(seconds=90))

        assert clock.monotonic() - before == pytest.approx(90)


def test_the_system_clock_never_rounds_up() -> None:
    before = time.time_ns()

    seen = SystemClock().now()

    assert before // 1000 <= seen <= time.time_ns() // 1000


@pytest.mark.parametrize("text", ["9999999d", "3652060d", "-999999999999", "P999999W"])
def test_a_duration_that_no_two_instants_have_between_them_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is longer than any calendar; choose a shorter duration"):
        parse_duration(text)


def test_a_duration_of_all_years_is_read() -> None:
    assert parse_duration("3652058d") == timedelta(days=3_652_058)


@pytest.mark.parametrize("wrong", ["2030-01-01T00:00Z", 7, None])
def test_a_time_or_a_duration_of_another_type_is_refused_with_its_value(wrong: Any) -> None:
    with pytest.raises(InvalidMessage, match=re.escape(f"aware datetime, got {wrong!r}")):
        to_micros(wrong)
    with pytest.raises(InvalidMessage, match=re.escape(f"is a timedelta, got {wrong!r}")):
        duration_micros(wrong)
