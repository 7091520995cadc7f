"""Instants: UTC microseconds internally, aware datetimes in the API, text on the wire.

Internally an instant is an ``int``: databases lose time zones and fractions, but not integers. The
wire form is NServiceBus' ``yyyy-MM-dd HH:mm:ss:ffffff Z`` (a colon before the microseconds, always
UTC), so that endpoints of both kinds read each other's due times. This module also parses durations
in settings and on the command line.
"""

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from re import ASCII, IGNORECASE, compile
from typing import Final, TypeAlias, TypeVar

from timeoutmgr.errors import InvalidMessage, TimeoutManagerError

Micros: TypeAlias = int
"""UTC microseconds since 1970-01-01."""
Default = TypeVar("Default")

MICROSECOND: Final = timedelta(microseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
LATEST: Final[Micros] = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // MICROSECOND
"""The last microsecond of the year 9999; also fits every supported column."""
EARLIEST: Final[Micros] = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // MICROSECOND
_CALENDAR: Final = datetime.max - datetime.min

_WIRE: Final = compile(r"\d{4}-\d{2}-\d{2} (?:[01]\d|2[0-3]):\d{2}:\d{2}:\d{6} Z", ASCII)


def to_micros(at: datetime) -> Micros:
    """Return *at* as UTC microseconds.

    Raises InvalidMessage for a naive datetime: its time zone is unknown.
    """
    if not isinstance(at, datetime):
        raise InvalidMessage(f"a time is an aware datetime, got {at!r:.80}")
    if at.tzinfo is None or at.utcoffset() is None:
        raise InvalidMessage(
            f"{at!r} has no time zone; pass an aware datetime, such as "
            "datetime(2030, 1, 1, tzinfo=UTC)"
        )
    # Subtraction of aware datetimes is exact; .timestamp() would go through a float.
    return (at - _EPOCH) // MICROSECOND


def from_micros(instant: Micros) -> datetime:
    """Return *instant* as an aware datetime in UTC."""
    return _EPOCH + timedelta(microseconds=instant)


def require_window(error: type[TimeoutManagerError], **bounds: Micros | datetime | None) -> None:
    """Raise *error* if the window of *bounds*, a begin and an end by name, is empty.

    The end is exclusive; None means no bound.
    """
    known = {name: to_micros(at) if isinstance(at, datetime) else at for name, at in bounds.items()}
    (first, begin), (last, end) = known.items()
    if begin is None or end is None or begin < end:
        return
    shown = [from_micros(at) if EARLIEST <= at <= LATEST else at for at in (begin, end)]
    raise error(
        f"{first} is before {last}, got {first} {shown[0]} and {last} {shown[1]}, between which is "
        "nothing; swap the two, or leave one out"
    )


def zone_of(name: str) -> tzinfo:
    """Return the zone *name*, such as ``Europe/Berlin``. Raises ValueError with the reason."""
    if name.upper() in ("UTC", "Z"):
        return UTC
    from zoneinfo import ZoneInfo  # most processes need no zone

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(
            f"{name!r:.80} is no time zone here; a host without zones needs the package tzdata"
        ) from error


def duration_micros(duration: timedelta) -> int:
    """Return *duration* in microseconds."""
    if not isinstance(duration, timedelta):
        raise InvalidMessage(f"a duration is a timedelta, got {duration!r:.80}")
    return duration // MICROSECOND


def to_wire(instant: Micros) -> str:
    """Return *instant* in the form of a header."""
    seconds, micros = divmod(instant, 1_000_000)
    return f"{_to_the_second(seconds)}:{micros:06} Z"


@lru_cache(maxsize=256)
def _to_the_second(seconds: int) -> str:
    # Consecutive messages share few seconds in their times of sending and due times.
    return from_micros(seconds * 1_000_000).isoformat(" ", "seconds")[:19]


def from_wire(text: str) -> Micros:
    """Parse the instant in a header.

    Raises ValueError if the text is not exactly in the wire form, or is not a real date.
    """
    match = _WIRE.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text[:64]!r} is not an instant; expected 'yyyy-MM-dd HH:mm:ss:ffffff Z' in UTC"
        )
    return _of_the_second(text[:19]) + int(text[20:26])


def instant_of(headers: Mapping[str, str], name: str, default: Default) -> Micros | Default:
    """Return the instant in header *name*; *default* if it is missing or malformed."""
    try:
        return from_wire(headers.get(name, ""))
    except ValueError:
        return default


@lru_cache(maxsize=256)
def _of_the_second(text: str) -> Micros:
    return (datetime.fromisoformat(f"{text}+00:00") - _EPOCH) // MICROSECOND


_TIMESPAN: Final = compile(r"(?:(\d{1,8})\.)?(\d{1,2}):(\d{2}):(\d{2})(?:\.(\d{1,7}))?", ASCII)

_LONGEST_SPAN: Final = (2**63 - 1) // 10
"""Microseconds of .NET's longest TimeSpan, 29,227 years."""


def to_timespan(duration: timedelta) -> str:
    """Return *duration* in the form of a header; at most the longest of .NET."""
    seconds, micros = divmod(min(duration_micros(duration), _LONGEST_SPAN), 1_000_000)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    text = f"{hour:02}:{minute:02}:{second:02}"
    return f"{f'{days}.' if days else ''}{text}{f'.{micros:06}0' if micros else ''}"


def from_timespan(text: str) -> timedelta:
    """Parse the duration in a header; raise ValueError if it is not a duration."""
    match = _TIMESPAN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:64]!r} is not a duration; expected '[d.]hh:mm:ss[.fffffff]'")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups()[:4])
    micros = int((match[5] or "").ljust(7, "0")[:6])
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, microseconds=micros)


EXPECTED_DURATION: Final = "seconds, or text such as '90', '2m', '1h30m', 'PT2M' or '00:02:00'"

_UNITS: Final = {
    "us": timedelta(microseconds=1),
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
_NUMBER: Final = r"\d+(?:\.\d+)?"
_SECONDS: Final = compile(rf"-?{_NUMBER}", ASCII)
_PARTS: Final = compile(rf"(?:{_NUMBER}(?:us|ms|[smhdw])\s*)+", ASCII | IGNORECASE)
_PART: Final = compile(rf"({_NUMBER})(us|ms|[smhdw])", ASCII | IGNORECASE)
_ISO: Final = compile(
    rf"P(?=.)(?:({_NUMBER})W)?(?:({_NUMBER})D)?"
    rf"(?:T(?=.)(?:({_NUMBER})H)?(?:({_NUMBER})M)?(?:({_NUMBER})S)?)?",
    ASCII | IGNORECASE,
)


class DurationTooLong(ValueError):
    """A duration beyond the years 1 to 9999."""


def parse_duration(text: str) -> timedelta:
    """Parse a duration.

    A plain number is seconds. Raises ValueError, which names the expected forms, for any other
    text. Months and years are refused, because their length depends on when they begin. A duration
    longer than the years 1 to 9999 is refused too: no two instants are so far apart.
    """
    try:
        found = _duration_of(text.strip())
    except OverflowError:
        found = timedelta.max
    except ValueError:
        raise ValueError(f"{text[:64]!r} is not a duration; expected {EXPECTED_DURATION}") from None
    if abs(found) > _CALENDAR:
        raise DurationTooLong(
            f"{text[:64]!r} is longer than any calendar; choose a shorter duration"
        )
    return found


def _duration_of(given: str) -> timedelta:
    if _SECONDS.fullmatch(given):
        return timedelta(seconds=float(given))
    if _PARTS.fullmatch(given):
        found = _PART.findall(given)
        return sum((_UNITS[unit.lower()] * float(n) for n, unit in found), timedelta())
    if match := _ISO.fullmatch(given):
        units = (_UNITS[unit] for unit in ("w", "d", "h", "m", "s"))
        pairs = zip(match.groups(), units, strict=True)
        return sum((unit * float(number or 0) for number, unit in pairs), timedelta())
    return from_timespan(given)


def seconds(number: float) -> timedelta:
    """Return *number* seconds as a duration; raise ValueError if infinite, NaN, or too large."""
    if not math.isfinite(number):
        raise ValueError(f"a duration is finite, got {number!r}")
    try:
        return timedelta(seconds=number)
    except OverflowError:
        raise ValueError(f"{number!r} seconds are longer than any calendar") from None


# --- time spans for people, in a single unit ----------------------------------------------------

_SECOND: Final = 1_000_000
_SPANS: Final = ((86_400, 2, "d"), (3_600, 2, "h"), (60, 2, "min"), (1, 0, "s"))
"""For each unit: its seconds, the number of units from which it is used, and its name."""


def span(micros: Micros) -> str:
    """Return *micros* as text in the largest fitting unit, rounded down: ``58 min``."""
    seconds = abs(micros) // _SECOND
    for length, least, name in _SPANS:
        if seconds >= length * least:
            return f"{seconds // length} {name}"
    raise AssertionError("every number of seconds is at least 0")


def distance(due: Micros, now: Micros) -> str:
    """Return *due* relative to *now*: ``in 58 min``, ``2 h ago``."""
    return f"in {span(due - now)}" if due >= now else f"{span(now - due)} ago"
