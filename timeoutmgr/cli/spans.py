"""Spans of time in a few letters, for people. Pure functions."""

from typing import Final

from timeoutmgr.instants import Micros

_SECOND: Final = 1_000_000
_UNITS: Final = ((86_400, 2, "d"), (3_600, 2, "h"), (60, 2, "min"), (1, 0, "s"))
"""Seconds of a unit, from how many of it on it is used, and its name."""


def span(micros: Micros) -> str:
    """Return the length of *micros* in its largest fitting unit, rounded down: ``58 min``."""
    seconds = abs(micros) // _SECOND
    for length, least, name in _UNITS:
        if seconds >= length * least:
            return f"{seconds // length} {name}"
    raise AssertionError("every number of seconds is at least 0")


def distance(due: Micros, now: Micros) -> str:
    """Return when *due* is, seen from *now*: ``in 58 min``, ``2 h ago``."""
    return f"in {span(due - now)}" if due >= now else f"{span(now - due)} ago"
