"""The partitions of the pending timeouts, as read from PostgreSQL's catalog."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Table, text

from timeoutmgr.database import Database
from timeoutmgr.message.instants import EARLIEST, LATEST, Micros, from_micros
from timeoutmgr.resilience.after_fork import cached_property

# --- ranges of due times, a partition for each, and the next change to make; pure -----------------
# One range per day for the near future, and ranges seven times as wide for later times, so that a
# few dozen cover all of time. A range is cut into finer ranges long before its rows are due. The
# past is one range; it absorbs a day when hardly anything is left of that day. Together, the ranges
# always cover all of time: no row is ever without a partition.

DAY: Final = 86_400_000_000
WIDTHS: Final = (DAY, 7 * DAY, 49 * DAY, 343 * DAY)
_LEADS: Final = {7 * DAY: 7 * DAY, 49 * DAY: 49 * DAY, 343 * DAY: 98 * DAY}
"""By width: how long before its start a range is cut into finer ranges."""
_FAR_LEAD: Final = 343 * DAY
KEPT: Final = DAY
"""How long a past day keeps its own range; timeouts stored later go into the range of the past."""


@dataclass(frozen=True, slots=True, order=True)
class DueRange:
    """Due times from *start* on and before *end*; None means unbounded."""

    start: Micros | None
    end: Micros | None

    @property
    def name(self) -> str:
        """The name of its table after the prefix and ``timeouts_``."""
        if self.start is None:
            return "all" if self.end is None else f"past_{_date(self.end)}"
        if self.end is None:
            return f"far_{_date(self.start)}"
        return f"{_date(self.start)}_{(self.end - self.start) // DAY}"

    def is_in(self, outer: DueRange) -> bool:
        """Return whether *outer* contains this range."""
        return _low(self) >= _low(outer) and _high(self) <= _high(outer)


ALL: Final = DueRange(None, None)


@dataclass(frozen=True, slots=True)
class Change:
    """A change of adjacent *old* ranges to *new* ranges, which cover the same time."""

    old: tuple[DueRange, ...]
    new: tuple[DueRange, ...]


def fresh(now: Micros) -> list[DueRange]:
    """Return the ranges of a table that is created *now*."""
    return _cut(ALL, _cuts(now))


def split(ranges: Sequence[DueRange], now: Micros) -> Change | None:
    """Return the split of the first of *ranges* that is too coarse for its time, or None."""
    for one in ranges:
        new = _finer(one, now)
        if len(new) > 1:
            return Change((one,), tuple(new))
    return None


def missing(ranges: Sequence[DueRange], now: Micros) -> int:
    """Return how many ranges are missing until each of *ranges* is as fine as its time needs."""
    return sum(len(_finer(one, now)) - 1 for one in ranges)


def over(ranges: Sequence[DueRange], now: Micros) -> list[DueRange]:
    """Return the *ranges* that lie entirely in the past, in order; the first is the past itself."""
    return [one for one in sorted(ranges, key=_low) if _high(one) <= _day(now) - KEPT]


def joined(ranges: Sequence[DueRange]) -> Change:
    """Return the change that joins adjacent *ranges* into one."""
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
    """Yield the starts of the ranges that suit *now*, after the range of the past."""
    at = _day(now) - KEPT
    ends = (now + 7 * DAY, now + 49 * DAY, now + 98 * DAY, now + _FAR_LEAD)
    for width, end, coarser in zip(WIDTHS, ends, (*WIDTHS[1:], WIDTHS[-1]), strict=True):
        # Up to the start of a range of the next width.
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


_LOOKS: Final = 5
_BOUND: Final = r"\((MINVALUE|MAXVALUE|'?-?\d+'?)\)"
_BOUNDS: Final = re.compile(rf"FOR VALUES FROM {_BOUND} TO {_BOUND}")

_PARENT: Final = text(
    "SELECT CAST(c.oid AS bigint) AS oid, n.nspname AS schema, c.relname AS name,"
    " pg_has_role(c.relowner, 'USAGE') AS owned,"
    " has_schema_privilege(n.oid, 'CREATE') AS may_create"
    " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE c.oid = to_regclass(:name) AND c.relkind = 'p'"
)
_PARTS: Final = text(
    "SELECT c.relname AS name, n.nspname AS schema, c.relkind = 'r' AS plain,"
    " pg_get_expr(c.relpartbound, c.oid) AS bounds"
    " FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
    " JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE i.inhparent = :oid"
)
_COLUMNS: Final = text(
    "SELECT attname FROM pg_attribute WHERE attrelid = :oid AND attnum > 0"
    " AND NOT attisdropped AND attgenerated = '' ORDER BY attnum"
)


@dataclass(frozen=True, slots=True)
class Whole:
    """The table of all pending timeouts, and its schema."""

    database: Database
    timeouts: Table

    @property
    def name(self) -> str:
        """Its quoted name, with the schema unless the connection's own schema is used."""
        parts = (self.timeouts.schema, self.timeouts.name)
        return ".".join(_quoted(part) for part in parts if part is not None)


@dataclass(frozen=True)
class Ranged:
    """The current partitioning of one installation's pending timeouts.

    *known* is false if another tool created the partitions: then we change nothing. *may_change*
    says whether this database user may create and drop partitions.
    """

    schema: str | None
    name: str
    ranges: tuple[DueRange, ...]
    columns: tuple[str, ...]
    known: bool
    may_change: bool

    @property
    def is_one(self) -> bool:
        """Whether a single partition holds all timeouts, as in older installations."""
        return self.ranges == (ALL,)

    @cached_property
    def whole(self) -> str:
        """The partitioned table, quoted."""
        return self.table("")

    def quoted(self, suffix: str) -> str:
        """Return the name of the whole table with *suffix* appended, quoted, without its schema."""
        return _quoted(self.name + suffix)

    def table(self, suffix: str) -> str:
        """Return the quoted table whose name is that of the whole table with *suffix* appended."""
        schema = "" if self.schema is None else f"{_quoted(self.schema)}."
        return schema + self.quoted(suffix)

    def of(self, one: DueRange) -> str:
        """Return the quoted table of the range *one*."""
        return self.table(f"_{one.name}")

    def columns_of(self, row: str = "") -> str:
        """Return all columns, separated by commas, each prefixed by *row* if it is given."""
        before = f"{row}." if row else ""
        return ", ".join(before + _quoted(column) for column in self.columns)

    def describe(self) -> str:
        """Return a sentence for people."""
        if not self.known:
            return f"{len(self.ranges)} partitions that are not ours; they are left alone"
        if self.is_one:
            return "one partition holds all of them"
        days = [one for one in self.ranges if _width(one) == DAY]
        until = days[-1].name.removesuffix("_1") if days else "none"
        return f"{len(self.ranges)} partitions by due time, one a day up to {until}"


def read_ranges(connection: Connection, whole: Whole) -> Ranged | None:
    """Return how *whole* is partitioned; None if it is not, or does not exist."""
    parent = connection.execute(_PARENT, {"name": whole.name}).one_or_none()
    if parent is None:
        return None
    parts = _parts(connection, parent.oid)
    found = {part.name: _range(part.bounds) for part in parts}
    return Ranged(
        schema=parent.schema,
        name=parent.name,
        ranges=tuple(sorted((one for one in found.values() if one is not None), key=_start)),
        columns=tuple(connection.execute(_COLUMNS, {"oid": parent.oid}).scalars()),
        known=_are_ours(parent, parts, found),
        may_change=parent.owned and parent.may_create,
    )


def _parts(connection: Connection, parent: int) -> Any:
    for _ in range(_LOOKS):
        parts = connection.execute(_PARTS, {"oid": parent}).all()
        # If a partition is just being dropped, its bounds can no longer be read.
        if all(part.bounds is not None for part in parts):
            break
    return parts


def bounds(one: DueRange) -> str:
    """Return the bounds of the range *one* as DDL."""
    start = "MINVALUE" if one.start is None else one.start
    end = "MAXVALUE" if one.end is None else one.end
    return f"FROM ({start}) TO ({end})"


def condition(one: DueRange) -> str:
    """Return the SQL condition that a due time is in the range *one*."""
    parts = [] if one.start is None else [f"due >= {one.start}"]
    return " AND ".join(parts if one.end is None else [*parts, f"due < {one.end}"])


def _are_ours(parent: Any, parts: Any, found: Mapping[str, DueRange | None]) -> bool:
    return bool(parts) and all(
        part.plain
        and part.schema == parent.schema
        and (one := found[part.name]) is not None
        and part.name == f"{parent.name}_{one.name}"
        for part in parts
    )


def _range(text: str | None) -> DueRange | None:
    match = _BOUNDS.fullmatch(text or "")
    return DueRange(*(_bound(each) for each in match.groups())) if match else None


def _bound(text: str) -> int | None:
    return None if text.endswith("VALUE") else int(text.strip("'"))


def _start(one: DueRange) -> tuple[bool, int]:
    return one.start is not None, one.start or 0


def _width(one: DueRange) -> int | None:
    return None if one.start is None or one.end is None else one.end - one.start


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
