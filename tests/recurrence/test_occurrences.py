"""The instants of a schedule, compared with the arithmetic of zoneinfo."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import Micros, from_micros, to_micros
from timeoutmgr.recurrence.occurrences import Occurrences, parse, resolve

SECOND = 1_000_000
ZONES = (
    *("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kathmandu"),
    *("Africa/Casablanca", "America/St_Johns", "Antarctica/Troll", "UTC"),
)
"""With gaps of half an hour, of two hours, and of a whole day."""

CHANGES = (
    *("2030-03-31T01:00Z", "2030-10-27T01:00Z", "2030-03-10T07:00Z", "2030-11-03T06:00Z"),
    *("2030-04-06T15:00Z", "2030-10-05T15:30Z", "2011-12-30T10:00Z"),
)
"""Instants at which summer time begins or ends in some of the zones; Apia then lost a day."""

near_changes = st.builds(
    lambda change, minutes: to_micros(datetime.fromisoformat(change) + timedelta(minutes=minutes)),
    st.sampled_from(CHANGES),
    st.integers(-200, 200),
)
instants = near_changes | st.datetimes(datetime(2000, 1, 1), datetime(2037, 1, 1)).map(
    lambda at: to_micros(at.replace(tzinfo=UTC))
)
zones = st.sampled_from(ZONES)


def _runs(every: str, begin: datetime, number: int) -> list[str]:
    """Return the first occurrences after *begin* in its own zone."""
    occurrences, found = parse(every), []
    at: Micros | None = to_micros(begin)
    for _ in range(number):
        assert at is not None
        at = occurrences.after(at)
        assert at is not None
        found.append(from_micros(at).astimezone(begin.tzinfo).isoformat(timespec="minutes"))
    return found


def _berlin(*at: int) -> datetime:
    year, month, day, *clock = at
    hour, minute = clock or (0, 0)
    return datetime(year, month, day, hour, minute, tzinfo=ZoneInfo("Europe/Berlin"))


@pytest.mark.parametrize(
    ("every", "begin", "runs"),
    [
        ("15 minutes", datetime(2030, 1, 1, 0, 7, tzinfo=UTC), ["00:15", "00:30"]),
        ("15m", datetime(2030, 1, 1, 0, 7, tzinfo=UTC), ["00:15", "00:30"]),
        ("90", datetime(2030, 1, 1, 0, 0, tzinfo=UTC), ["00:01", "00:03"]),
        ("1 hour from 2030-01-01T00:05Z", datetime(2030, 1, 1, tzinfo=UTC), ["00:05", "01:05"]),
        ("2 days at 06:00", datetime(2030, 1, 1, tzinfo=UTC), ["2T06:00", "4T06:00"]),
        ("1 day at 06:00:30", datetime(2030, 1, 1, tzinfo=UTC), ["1T06:00", "2T06:00"]),
        ("1 week on Monday at 06:00", datetime(2030, 1, 1, tzinfo=UTC), ["07T06:00", "14T06:00"]),
        ("1 week on sun at 06:00", datetime(2030, 1, 1, tzinfo=UTC), ["06T06:00", "13T06:00"]),
        ("cron: 0 6 * * 1-5", datetime(2030, 1, 4, 7, tzinfo=UTC), ["07T06:00", "08T06:00"]),
        ("cron: 0 6 * * 0", datetime(2030, 1, 1, tzinfo=UTC), ["06T06:00", "13T06:00"]),
        ("cron: 0 6 * * 7", datetime(2030, 1, 1, tzinfo=UTC), ["06T06:00", "13T06:00"]),
        ("cron: 0 6 * * 0-7", datetime(2030, 1, 1, 7, tzinfo=UTC), ["02T06:00", "03T06:00"]),
        ("cron: 0 6 * * 0-7/2", datetime(2030, 1, 1, 7, tzinfo=UTC), ["03T06:00", "05T06:00"]),
        (
            "cron: 0 6 * * 5-7",
            datetime(2030, 1, 1, tzinfo=UTC),
            ["04T06:00", "05T06:00", "06T06:00"],
        ),
        ("cron: 0 6 * * fri-sun/2", datetime(2030, 1, 1, tzinfo=UTC), ["04T06:00", "06T06:00"]),
        ("cron: 0 6 * * */3", datetime(2030, 1, 1, tzinfo=UTC), ["02T06:00", "05T06:00"]),
        ("cron: */20 6 1 * *", datetime(2030, 1, 1, 6, 30, tzinfo=UTC), ["01T06:40", "01T06:00"]),
    ],
)
def test_each_form_has_its_instants(every: str, begin: datetime, runs: list[str]) -> None:
    for found, expected in zip(_runs(every, begin, len(runs)), runs, strict=True):
        assert found.endswith(f"{expected}+00:00"), (every, found)


@pytest.mark.parametrize(
    "every", ["1 day at 02:30 Europe/Berlin", "cron: 30 2 * * * Europe/Berlin"]
)
def test_a_skipped_local_time_runs_once_behind_the_gap(every: str) -> None:
    assert _runs(every, _berlin(2030, 3, 30), 3) == [
        "2030-03-30T02:30+01:00",
        "2030-03-31T03:00+02:00",
        "2030-04-01T02:30+02:00",
    ]


@pytest.mark.parametrize(
    "every", ["1 day at 02:30 Europe/Berlin", "cron: 30 2 * * * Europe/Berlin"]
)
def test_a_repeated_local_time_runs_once_the_first_time(every: str) -> None:
    assert _runs(every, _berlin(2030, 10, 26), 3) == [
        "2030-10-26T02:30+02:00",
        "2030-10-27T02:30+02:00",
        "2030-10-28T02:30+01:00",
    ]


def test_many_skipped_times_run_once() -> None:
    assert _runs("cron: */15 * * * * Europe/Berlin", _berlin(2030, 3, 31, 1, 40), 3) == [
        "2030-03-31T01:45+01:00",
        "2030-03-31T03:00+02:00",
        "2030-03-31T03:15+02:00",
    ]


def test_a_repeated_hour_rests_until_its_end() -> None:
    in_the_second = _berlin(2030, 10, 27, 2, 10).replace(fold=1)

    assert _runs("cron: */15 * * * * Europe/Berlin", in_the_second, 2) == [
        "2030-10-27T03:00+01:00",
        "2030-10-27T03:15+01:00",
    ]


def test_an_interval_pays_no_heed_to_summer_time() -> None:
    assert _runs("30 minutes", _berlin(2030, 10, 27, 2, 40), 3) == [
        "2030-10-27T02:00+01:00",
        "2030-10-27T02:30+01:00",
        "2030-10-27T03:00+01:00",
    ]


@given(begin=instants, zone=zones, minute=st.integers(0, 24 * 60 - 1))
def test_days_agree_with_zoneinfo(begin: Micros, zone: str, minute: int) -> None:
    """Each date of the calendar gives one run: at its local time, or behind the gap."""
    at, place = time(minute // 60, minute % 60), ZoneInfo(zone)
    today = from_micros(begin).astimezone(place).date()
    days = [today + timedelta(days=day) for day in range(-2, 6)]
    expected = sorted({to_micros(_local(datetime.combine(day, at), place)) for day in days})

    found = _some(parse(f"1 day at {at:%H:%M} {zone}"), begin, 3)

    assert found == [instant for instant in expected if instant > begin][:3]


@given(begin=instants, zone=zones, every=st.sampled_from((5, 7, 15, 30)))
def test_cron_agrees_with_zoneinfo(begin: Micros, zone: str, every: int) -> None:
    place = ZoneInfo(zone)
    start = from_micros(begin).astimezone(place).replace(tzinfo=None, second=0, microsecond=0)
    walls = (start + timedelta(minutes=minute) for minute in range(-300, 1_800))  # Apia lost a day
    matching = [wall for wall in walls if wall.minute % every == 0]
    expected = sorted({to_micros(_local(wall, place)) for wall in matching})

    found = _some(parse(f"cron: */{every} * * * * {zone}"), begin, 3)

    assert found == [instant for instant in expected if instant > begin][:3]


@given(begin=instants, seconds=st.integers(1, 10**7))
def test_an_interval_is_a_multiple_of_its_length_since_1970(begin: Micros, seconds: int) -> None:
    step = seconds * SECOND

    [found] = _some(parse(timedelta(seconds=seconds)), begin, 1)

    assert found == (begin // step + 1) * step


@given(begin=instants, zone=zones, minute=st.integers(0, 24 * 60 - 1))
def test_the_latest_occurrences_are_the_end_of_all_of_them(
    begin: Micros, zone: str, minute: int
) -> None:
    occurrences = parse(f"1 day at {minute // 60:02}:{minute % 60:02} {zone}")
    until = begin + 12 * 86_400 * SECOND
    every = [at for at in _some(occurrences, begin, 20) if at <= until]

    assert occurrences.latest(begin, until, 1) == (every[-1:], len(every) > 1)
    assert occurrences.latest(begin, until, 5) == (every[-5:], len(every) > 5)
    assert occurrences.latest(begin, until, 50) == (every, False)
    assert occurrences.latest(until, until, 50) == ([], False)


@given(begin=instants)
def test_the_latest_of_a_year_of_seconds_is_found_at_once(begin: Micros) -> None:
    until = begin + 365 * 86_400 * SECOND

    [found], more = parse("1 second").latest(begin, until, 1)

    assert (found, more) == (until // SECOND * SECOND, True)


@given(wall=st.datetimes(datetime(2000, 1, 1), datetime(2037, 1, 1)), zone=zones)
def test_a_local_time_becomes_one_instant(wall: datetime, zone: str) -> None:
    place = ZoneInfo(zone)

    found = resolve(wall, place)

    assert found == _local(wall, place)


@pytest.mark.parametrize(
    ("every", "reason"),
    [
        ("", "none of these forms"),
        ("often", "none of these forms"),
        ("0 minutes", "none of these forms"),
        ("1 month", "none of these forms"),
        ("1 hour at 06:00", "goes with days"),
        ("1 week at 06:00", "goes with days"),
        ("1 day on monday at 06:00", "goes with days"),
        ("1 week on someday at 06:00", "no weekday"),
        ("1 day at 25:00", "no time of day"),
        ("1 day at 06:00 Europe/Atlantis", "no time zone"),
        ("1 day at 06:00 ../../etc/passwd", "no time zone"),
        ("1 hour from noon", "no time with a zone"),
        ("1 hour from 2030-01-01T00:00", "no time with a zone"),
        ("9999 days", "more than 3660 days"),
        ("999999999 weeks", "more than 3660 days"),
        ("cron: 0 6 * *", "five fields"),
        ("cron: 61 6 * * *", "higher than the maximum"),
        ("cron: 0 6 1 * 1", "restrict one"),
        ("1 hour from 0001-01-01T00:00+14:00", "outside of the years 1 to 9999"),
        ("1 hour from 9999-12-31T23:00-14:00", "outside of the years 1 to 9999"),
        ("1 week on monx at 06:00", "'monx' is no weekday"),
        ("1 week on mo at 06:00", "'mo' is no weekday"),
        ("cron: 0 6 * * 8", "no weekday"),
        ("cron: 0 6 * * 1-", "'' is no weekday"),
        ("cron: 0 6 * * ²", "'²' is no weekday"),
        ("cron: 0 6 * * 1/", "no step"),
        ("cron: 0 6 * * 1/0", "no step"),
        ("cron: 0 0 30 2 *", "no occurrence"),
        (timedelta(0), "at least one second"),
        (timedelta(seconds=1.5), "whole seconds"),
        (7, "neither a text nor a timedelta"),
    ],
)
def test_an_unclear_text_is_refused_with_the_forms_and_the_reason(every: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=f"1 day at 06:00 Europe/Berlin.*{reason}"):
        parse(every)


def test_the_end_of_the_calendar_ends_a_schedule() -> None:
    assert parse("1 week").after(to_micros(datetime(9999, 12, 31, tzinfo=UTC))) is None
    assert parse("1 day at 06:00").after(to_micros(datetime(9999, 12, 31, 7, tzinfo=UTC))) is None


def _some(occurrences: Occurrences, begin: Micros, number: int) -> list[Micros]:
    found: list[Micros] = []
    for _ in range(number):
        at = occurrences.after(found[-1] if found else begin)
        assert at is not None
        found.append(at)
    return found


def _local(wall: datetime, zone: ZoneInfo) -> datetime:
    """Return the instant of *wall* by search: the first second whose local time is not earlier."""
    low = wall.replace(tzinfo=UTC) - timedelta(hours=26)
    high = wall.replace(tzinfo=UTC) + timedelta(hours=26)
    exact = [
        found
        for fold in (0, 1)
        if (found := wall.replace(tzinfo=zone, fold=fold).astimezone(UTC))
        .astimezone(zone)
        .replace(tzinfo=None)
        == wall
    ]
    if exact:
        return min(exact)
    while high - low > timedelta(seconds=1):
        middle = low + (high - low) // 2
        if middle.astimezone(zone).replace(tzinfo=None) >= wall:
            high = middle
        else:
            low = middle
    return high.replace(microsecond=0)
