"""Which ranges of due times a partition each holds, and which change is due next; pure.

Days for the near future, and ranges seven times as wide for later times, so that a few
dozen cover all of time. A range is cut into finer ranges long before its rows are due. The past is
one range, which takes in a day when hardly anything is left of it. Together they always cover all
of time: no row is ever without a place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from timeoutmgr.message.instants import EARLIEST, LATEST, Micros, from_micros

DAY: Final = 86_400_000_000
WIDTHS: Final = (DAY, 7 * DAY, 49 * DAY, 343 * DAY)
_LEADS: Final = {7 * DAY: 7 * DAY, 49 * DAY: 49 * DAY, 343 * DAY: 98 * DAY}
"""By width: how long before it begins a range is cut into finer ranges."""
_FAR_LEAD: Final = 343 * DAY
KEPT: Final = DAY
"""How long a day stays by itself when it is over; a timeout that is stored later counts as past."""


@dataclass(frozen=True, slots=True, order=True)
class DueRange:
    """Due times from *start* on and before *end*; None is without bound."""

    start: Micros | None
    end: Micros | None

    @property
    def name(self) -> str:
        """Name of its table, behind prefix and ``timeouts_``."""
        if self.start is None:
            return "all" if self.end is None else f"past_{_date(self.end)}"
        if self.end is None:
            return f"far_{_date(self.start)}"
        return f"{_date(self.start)}_{(self.end - self.start) // DAY}"

    def is_in(self, outer: DueRange) -> bool:
        """Return whether *outer* holds all of it."""
        return _low(self) >= _low(outer) and _high(self) <= _high(outer)


ALL: Final = DueRange(None, None)


@dataclass(frozen=True, slots=True)
class Change:
    """A change of adjacent *old* ranges to *new* ranges, which cover the same time."""

    old: tuple[DueRange, ...]
    new: tuple[DueRange, ...]


def fresh(now: Micros) -> list[DueRange]:
    """Return the ranges of a table that is made *now*."""
    return _cut(ALL, _cuts(now))


def split(ranges: Sequence[DueRange], now: Micros) -> Change | None:
    """Return the change of the first of *ranges* that is too coarse for its time, or None."""
    for one in ranges:
        new = _finer(one, now)
        if len(new) > 1:
            return Change((one,), tuple(new))
    return None


def over(ranges: Sequence[DueRange], now: Micros) -> list[DueRange]:
    """Return the *ranges* that are wholly past, in their order; the first is the past."""
    return [one for one in sorted(ranges, key=_low) if _high(one) <= _day(now) - KEPT]


def joined(ranges: Sequence[DueRange]) -> Change:
    """Return the change of adjacent *ranges* to one range."""
    return Change(tuple(ranges), (DueRange(ranges[0].start, ranges[-1].end),))


def _finer(one: DueRange, now: Micros) -> list[DueRange]:
    if one.start is not None and one.end is not None:
        width = one.end - one.start
        lead = _LEADS.get(width)
        if lead is None or one.start >= now + lead or one.end <= _day(now) - KEPT:
            return [one]
        step = width // 7
        return _cut(one, range(one.start, one.end, step))
    past_is_long = one.start is None and _high(one) > _day(now)
    far_is_near = one.end is None and _low(one) < now + _FAR_LEAD
    return _cut(one, _cuts(now)) if past_is_long or far_is_near else [one]


def _cuts(now: Micros) -> Iterator[Micros]:
    """Yield where ranges begin that suit *now*, behind the past."""
    at = _day(now) - KEPT
    ends = (now + 7 * DAY, now + 49 * DAY, now + 98 * DAY, now + _FAR_LEAD)
    for width, end, coarser in zip(WIDTHS, ends, (*WIDTHS[1:], WIDTHS[-1]), strict=True):
        # Up to where a range of the next width begins.
        while at < end or at % coarser:
            yield at
            at += width
    yield at


def _cut(one: DueRange, cuts: Iterator[Micros] | Sequence[Micros]) -> list[DueRange]:
    inside = [at for at in cuts if _low(one) < at < _high(one)]
    starts = [one.start, *inside]
    return [DueRange(*pair) for pair in zip(starts, [*inside, one.end], strict=True)]


def _day(at: Micros) -> Micros:
    return at - at % DAY


def _low(one: DueRange) -> Micros:
    return EARLIEST - 1 if one.start is None else one.start


def _high(one: DueRange) -> Micros:
    return LATEST + 1 if one.end is None else one.end


def _date(at: Micros) -> str:
    return from_micros(at).strftime("%Y%m%d")
