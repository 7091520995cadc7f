"""Durations as people write them, in settings and on the command line. Pure functions."""

import math
from datetime import timedelta
from re import ASCII, IGNORECASE, compile
from typing import Final

from timeoutmgr.instants import from_timespan

EXPECTED: Final = "seconds, or text such as '90', '2m', '1h30m', 'PT2M' or '00:02:00'"

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


def parse_duration(text: str) -> timedelta:
    """Return the duration that *text* spells.

    A plain number is seconds. Raises ValueError, with what was expected, for all else. Months and
    years are refused: how long they are depends on when they begin.
    """
    given = text.strip()
    try:
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
    except OverflowError:
        raise ValueError(f"{text[:64]!r} is longer than any calendar") from None
    except ValueError:
        raise ValueError(f"{text[:64]!r} is not a duration; expected {EXPECTED}") from None


def seconds(number: float) -> timedelta:
    """Return *number* of seconds; raise ValueError where it is infinite, none, or too many."""
    if not math.isfinite(number):
        raise ValueError(f"a duration is finite, got {number!r}")
    try:
        return timedelta(seconds=number)
    except OverflowError:
        raise ValueError(f"{number!r} seconds are longer than any calendar") from None
