"""The instants of a schedule: parses its text, and uses APScheduler's triggers. Pure: no I/O.

A schedule in local time counts in naive wall-clock times. Each wall time then becomes an instant:
if summer time skips it, the first instant after the gap; if it occurs twice, the first of both. So
each wall time gives at most one instant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from datetime import time as clock_time
from itertools import islice, pairwise
from typing import Final, Protocol

from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from timeoutmgr.errors import ConfigurationError, InvalidMessage
from timeoutmgr.message.instants import (
    LATEST,
    MICROSECOND,
    Micros,
    from_micros,
    parse_duration,
    to_micros,
    zone_of,
)

EXPECTED: Final = (
    "'15m', '15 minutes', '1 hour from 2030-01-01T00:05Z', '1 day at 06:00 Europe/Berlin', "
    "'1 week on monday at 06:00 Europe/Berlin', 'cron: 0 6 * * 1-5 Europe/Berlin', or a timedelta "
    "of whole seconds"
)
_UNITS: Final = ("second", "minute", "hour", "day", "week")
_DAYS: Final = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
"""Days as cron numbers them; 7 is Sunday too."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_SUNDAY: Final = datetime(1970, 1, 4, tzinfo=UTC)
_LONGEST: Final = timedelta(days=3660)
_SHORTEST: Final = 1_000_000
"""Microseconds of the first window in which ``latest`` searches."""

_SPAN: Final = re.compile(
    rf"(?P<number>[1-9]\d{{0,8}}) (?P<unit>{'|'.join(_UNITS)})s?"
    r"(?: from (?P<start>\S+)|(?: on (?P<day>[a-z]+))? at (?P<time>\d\d:\d\d(?::\d\d)?)"
    r"(?: (?P<zone>\S+))?)?",
    re.ASCII | re.IGNORECASE,
)


class Trigger(Protocol):
    """The part of an APScheduler trigger that occurrences need."""

    def get_next_fire_time(
        self, previous_fire_time: datetime | None, now: datetime, /
    ) -> datetime | None:
        """Return the first time that is not before *now*; None if there is none."""
        ...


@dataclass(frozen=True, slots=True)
class Occurrences:
    """The instants of the schedule that *text* describes; equal texts give equal instants."""

    text: str
    _trigger: Trigger
    _zone: tzinfo

    def after(self, instant: Micros) -> Micros | None:
        """Return the first occurrence later than *instant*, None if there is none."""
        at = from_micros(instant)
        try:
            wall = at.astimezone(self._zone).replace(tzinfo=UTC)
            while True:
                found = self._trigger.get_next_fire_time(None, wall + MICROSECOND)
                if found is None:
                    return None
                wall = max(found, wall + MICROSECOND)
                occurrence = to_micros(resolve(found.replace(tzinfo=None), self._zone))
                # In the second of two repeated hours, wall times have instants that have passed.
                if occurrence > instant:
                    return occurrence if occurrence <= LATEST else None
        except (OverflowError, ValueError):
            return None  # past the year 9999

    def latest(self, after: Micros, until: Micros, limit: int) -> tuple[list[Micros], bool]:
        """Return the newest *limit* occurrences after *after*, up to *until*, oldest first.

        The second value says whether there are older occurrences. The search goes back from *until*
        in doubling windows, so that its cost depends on *limit*, not on the time since *after*.
        """
        window = _SHORTEST
        while True:
            begin = max(after, until - window)
            found = list(self._between(begin, until))
            if begin == after or len(found) > limit:
                return found[-limit:], len(found) > limit
            window *= 2

    def longest_wait(self, since: Micros) -> timedelta:
        """Return the longest time from *since*, or from an occurrence, to the next occurrence.

        It checks the next 400: for a daily schedule, this is a year with both clock changes.
        """
        instants = [since, *islice(self._between(since, LATEST), 400)]
        waits = (later - earlier for earlier, later in pairwise(instants))
        return max(waits, default=0) * MICROSECOND

    def _between(self, after: Micros, until: Micros) -> Iterator[Micros]:
        found = self.after(after)
        while found is not None and found <= until:
            yield found
            found = self.after(found)


def parse(every: str | timedelta) -> Occurrences:
    """Return the occurrences that *every* describes; raise ConfigurationError if it is unclear."""
    if isinstance(every, str):
        with suppress(ValueError):  # it is no duration as settings spell it (``15m``)
            every = parse_duration(every)
    if isinstance(every, timedelta):
        seconds, rest = divmod(every, timedelta(seconds=1))
        if rest or seconds < 1:
            raise _unclear(every, "a timedelta is at least one second, and of whole seconds")
        every = f"{seconds} seconds"
    if not isinstance(every, str):
        raise _unclear(every, "it is neither a text nor a timedelta")
    text = " ".join(every.split())
    if text.lower().startswith("cron:"):
        found = _of_cron(text)
    else:
        match = _SPAN.fullmatch(text)
        if match is None:
            raise _unclear(every, "it has none of these forms")
        found = _on_the_wall(text, match) if match["time"] else _of_span(text, match)
    if found.after(0) is None:
        raise _unclear(every, "it has no occurrence")
    return found


def resolve(wall: datetime, zone: tzinfo) -> datetime:
    """Return the single instant of the naive time *wall* in *zone*.

    A skipped time becomes the first instant after the gap, a repeated time its first instant.
    """
    first = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if first.astimezone(zone).replace(tzinfo=None) == wall:
        return first
    # In a gap, the earlier offset gives an instant after the gap, the later offset one before it.
    before = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    behind, offset = first, first.astimezone(zone).utcoffset()
    while behind - before > timedelta(seconds=1):
        middle = before + (behind - before) // 2
        if middle.astimezone(zone).utcoffset() == offset:
            behind = middle
        else:
            before = middle
    return behind.replace(microsecond=0)


def _of_span(text: str, match: re.Match[str]) -> Occurrences:
    """Return an interval in UTC, counted from 1970 or from the given start."""
    start = _EPOCH if match["start"] is None else _start(text, match["start"])
    return Occurrences(text, _interval(text, match, start), UTC)


def _on_the_wall(text: str, match: re.Match[str]) -> Occurrences:
    """Return days or weeks with a time of day in a zone."""
    unit = match["unit"].lower()
    if (unit, match["day"] is not None) not in {("day", False), ("week", True)}:
        raise _unclear(text, "a time of day goes with days, or with weeks on a weekday")
    try:
        time = datetime.combine(_EPOCH, clock_time.fromisoformat(match["time"]), UTC) - _EPOCH
    except ValueError:
        raise _unclear(text, f"{match['time']} is no time of day") from None
    first = _EPOCH
    if match["day"] is not None:
        first = _FIRST_SUNDAY + timedelta(days=_day_number(text, match["day"].lower()))
    return Occurrences(text, _interval(text, match, first + time), _zone(text, match["zone"]))


def _interval(text: str, match: re.Match[str], start: datetime) -> Trigger:
    try:
        length = timedelta(**{f"{match['unit'].lower()}s": int(match["number"])})
    except OverflowError:
        length = timedelta.max
    if length > _LONGEST:
        raise _unclear(text, f"it is more than {_LONGEST.days} days")
    trigger: Trigger = IntervalTrigger(
        days=length.days, seconds=length.seconds, start_date=start, timezone=UTC
    )
    return trigger


def _start(text: str, given: str) -> datetime:
    try:
        return from_micros(to_micros(datetime.fromisoformat(given)))
    except OverflowError:
        raise _unclear(text, f"{given!r:.80} is outside of the years 1 to 9999 in UTC") from None
    except (ValueError, InvalidMessage):
        raise _unclear(
            text, f"{given!r:.80} is no time with a zone, as 2030-01-01T00:05Z"
        ) from None


def _of_cron(text: str) -> Occurrences:
    fields = text.partition(":")[2].split()
    if len(fields) not in (5, 6):
        raise _unclear(text, "cron has five fields and perhaps a zone")
    minute, hour, day, month, weekday = fields[:5]
    if "*" not in (day[0], weekday[0]):
        raise _unclear(
            text,
            "programs disagree whether both the day of the month and the weekday must match; "
            "restrict one of them",
        )
    try:
        trigger: Trigger = CronTrigger(
            minute=minute,
            hour=hour,
            day=day,
            month=month,
            day_of_week=_weekdays(text, weekday),
            timezone=UTC,
        )
    except ValueError as error:
        raise _unclear(text, str(error)) from error
    return Occurrences(text, trigger, _zone(text, fields[5] if len(fields) == 6 else None))


def _weekdays(text: str, field: str) -> str:
    """Return cron's weekdays by name: APScheduler's numbers begin with Monday, not Sunday."""
    found: set[int] = set()
    for part in field.split(","):
        days, has_step, step = part.partition("/")
        first, is_range, last = ("0-6" if days == "*" else days).partition("-")
        begin = _day_number(text, first.lower())
        end = _day_number(text, last.lower()) if is_range else 6 if has_step else begin
        if has_step and not re.fullmatch("0*[1-9][0-9]*", step):
            raise _unclear(text, f"{step!r:.80} is no step of days")
        end += 7 if end < begin else 0
        found.update(day % 7 for day in range(begin, end + 1, int(step or 1)))
    return ",".join(_DAYS[day][:3] for day in sorted(found))


def _day_number(text: str, name: str) -> int:
    """Return a day's number from 0 to 7: a range up to 7 ends with Sunday, and `7` begins there."""
    if re.fullmatch("0*[0-7]", name):
        return int(name)
    for number, day in enumerate(_DAYS):
        if len(name) >= 3 and day.startswith(name):
            return number
    raise _unclear(text, f"{name!r:.80} is no weekday")


def _zone(text: str, name: str | None) -> tzinfo:
    try:
        return UTC if name is None else zone_of(name)
    except ValueError as error:
        raise _unclear(text, str(error)) from error


def _unclear(every: object, reason: str) -> ConfigurationError:
    return ConfigurationError(f"every is {EXPECTED}; got {every!r:.120}: {reason}")
