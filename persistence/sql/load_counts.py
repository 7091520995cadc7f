"""Background counts of pending timeouts, for histograms of more timeouts than can be read.

A *tile* is a row of the table ``load``: it counts the timeouts that are tried in an interval, as of
an instant. Near tiles are a minute wide, far tiles a day. A pass counts the tiles of one width, a
slice of timeouts at a time, in the order of the key. Each slice is a transaction that locks the row
with the progress of the pass; other processes skip a locked row. So one process of the endpoint
counts at a time, and after its death another process continues after its last slice. A tile is
written once it is completely counted.

Nothing is counted unless a histogram was requested within the last hour.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from sqlalchemy import Connection, Row, and_, case, delete, func, or_, select, update

from timeoutmgr.contracts import Count, Key
from timeoutmgr.contracts.insight import HOUR
from timeoutmgr.contracts.reports import DAY
from timeoutmgr.crashpoints import reach
from timeoutmgr.message.instants import EARLIEST, Micros

from .batch_writes import insert_missing
from .context import StoreContext, go_by_key
from .searches import end_of
from .walks import Walk

_MINUTE: Final = HOUR // 60
_ALL: Final = ""
"""The destination of a tile's total."""
_PAST: Final = EARLIEST
"""The start of the tile of all overdue timeouts, which can be cut only if it is empty."""


@dataclass(frozen=True, slots=True)
class _Tier:
    """The tiles of one width: up to *reach* from now, after the narrower tiles.

    They are counted at the interval *every* while in demand, and shown if they are *fresh*.
    """

    width: Micros
    reach: Micros
    every: Micros

    @property
    def fresh(self) -> Micros:
        """Maximum age of a tile that is shown: upkeep runs once a minute, and may be late."""
        return 2 * self.every + 5 * _MINUTE


_TIERS: Final = (
    _Tier(_MINUTE, reach=2 * HOUR, every=_MINUTE),
    _Tier(15 * _MINUTE, reach=2 * DAY, every=10 * _MINUTE),
    _Tier(HOUR, reach=32 * DAY, every=HOUR),
    _Tier(DAY, reach=370 * DAY, every=HOUR),
)
"""Each width divides the next, so that tiles never overlap. With totals and one destination, they
are less than 3,000 rows."""
_FRESH: Final = {tier.width: tier.fresh for tier in _TIERS}

ASKED_FOR: Final = HOUR
"""How long after a request tiles are counted."""
_ASK_EVERY: Final = 600.0
"""Seconds between two requests for counts that one process writes."""
_CHECK_EVERY: Final = 30.0
"""Seconds between two checks of one process for a pass that is due."""
MOST_DESTINATIONS: Final = 100
"""Maximum destinations of a tile with rows of their own; with more, only the total is kept."""

FIRST: Final = 2_000
"""Number of timeouts in a process' first slice."""
_MOST: Final = 200_000
"""Maximum number of timeouts in a slice."""
_SLICE: Final = 0.05
"""Seconds that a slice may take in the database; its speed sets the size of the next slice."""
_SLICE_OF_WRITER: Final = 0.01
"""The same on SQLite, where a slice blocks all other writers."""


@dataclass(slots=True)
class _Tally:
    """A tile's timeouts counted so far, by destination; *as_of* is the instant of the first count.

    With too many destinations, or if no histogram asked for destinations, *by* is None.
    """

    as_of: Micros
    total: int = 0
    by: dict[str, int] | None = field(default_factory=dict)

    def add(self, destination: str | None, number: int) -> None:
        """Count *number* more; None stands for unknown destinations."""
        self.total += number
        if destination is None:
            self.by = None
        elif self.by is not None:
            self.by[destination] = self.by.get(destination, 0) + number
            if len(self.by) > MOST_DESTINATIONS:
                self.by = None

    def text(self) -> str:
        """Return the tally as text for the row of a pass."""
        # MySQL stores 65,535 bytes: escaped as ASCII, 100 long non-Latin names would exceed it.
        return json.dumps([self.as_of, self.total, self.by], ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class _Pass:
    """A pass over the tiles of one width from *start* to *end*, counted up to the key *at*.

    *tally* has the counts so far of the first unwritten tile.
    """

    width: Micros
    start: Micros
    end: Micros
    at: Key | None
    tally: _Tally | None
    by_destination: bool

    @property
    def is_first(self) -> bool:
        """Whether the pass includes the overdue timeouts."""
        return self.width == _TIERS[0].width

    @property
    def written(self) -> Micros:
        """The start of the first unwritten tile."""
        if self.at is None:
            return _PAST if self.is_first else self.start
        return self.tile(self.at.due)

    def tile(self, due: Micros) -> Micros:
        """Return the start of the tile that contains *due*."""
        return _PAST if due < self.start else due - due % self.width

    def tiles(self, until: Micros) -> Iterator[tuple[Micros, Micros]]:
        """Yield start and width of each unwritten tile, up to the tile *until*."""
        begin = self.written
        if begin == _PAST and until > _PAST:
            yield _PAST, self.start - _PAST
            begin = self.start
        for start in range(begin, until, self.width):
            yield start, self.width


class LoadCounter:
    """Counts the tiles of one endpoint, a slice per step; not safe for concurrent threads."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._size = FIRST
        self._next_check = float("-inf")
        self._next_notes = dict.fromkeys((False, True), float("-inf"))
        passes = context.tables.load_passes
        mine = passes.c.endpoint == context.endpoint
        self._find = select(passes).where(mine).order_by(passes.c.width)
        self._lock = (
            select(passes).where(mine).order_by(passes.c.width).with_for_update(skip_locked=True)
        )

    def request(self, by_destination: bool) -> None:
        """Record that histograms are in demand; a process writes this once in ten minutes."""
        monotonic = self._context.clock.monotonic()
        if monotonic >= self._next_notes[by_destination]:
            self._context.database.run(lambda each: self._request(each, by_destination))
            self._next_notes[by_destination] = monotonic + _ASK_EVERY

    def step(self) -> bool:
        """Count the next slice, if a pass is due; return whether there may be more.

        If no slice was due, the next check is in half a minute. Raises StorageUnavailable.
        """
        clock, database = self._context.clock, self._context.database
        begun = clock.monotonic()
        if begun < self._next_check:
            return False
        # First without a lock: on SQLite it would lock the whole file for nothing.
        with database.read() as connection:
            rows = connection.execute(self._find).all()
            is_due = self._due(connection, rows) is not None
        counted = database.run(self._slice) if is_due else None
        if counted is None:
            self._next_check = begun + _CHECK_EVERY
            return False
        if counted >= self._size:
            limit = _SLICE_OF_WRITER if database.is_sqlite else _SLICE
            allowed = int(counted * limit / max(clock.monotonic() - begun, 1e-6))
            self._size = max(FIRST, min(_MOST, 2 * self._size, allowed))
        return True

    def _request(self, connection: Connection, by_destination: bool) -> None:
        passes, now = self._context.tables.load_passes, self._context.now(connection)
        mine = passes.c.endpoint == self._context.endpoint
        asked = {"asked": now} | ({"asked_by_destination": now} if by_destination else {})
        # An abandoned pass starts again. In this order: MySQL already sees values assigned before.
        until = case((passes.c.asked > now - ASKED_FOR, passes.c.until))
        noted = update(passes).where(mine).ordered_values(("until", until), *asked.items())
        if connection.execute(noted).rowcount < len(_TIERS):
            new = {"endpoint": self._context.endpoint, **asked}
            insert_missing(connection, passes, [new | {"width": each.width} for each in _TIERS])

    def _due(self, connection: Connection, rows: Sequence[Row[Any]]) -> _Pass | None:
        """Return the begun or due pass with the narrowest tiles, or None."""
        if len(rows) < len(_TIERS):  # never asked for, or another process is counting
            return None
        now = self._context.now(connection)
        if now - rows[0].asked >= ASKED_FOR:
            return None
        by_destination = now - (rows[0].asked_by_destination or 0) < ASKED_FOR
        for number, (tier, row) in enumerate(zip(_TIERS, rows, strict=True)):
            if row.until is not None:
                return _begun(row, by_destination)
            if row.ended is None or now - row.ended >= tier.every:
                start = now - now % _MINUTE if number == 0 else _end(number - 1, now)
                return _Pass(tier.width, start, _end(number, now), None, None, by_destination)
        return None

    def _slice(self, connection: Connection) -> int | None:
        """Count timeouts of the due pass; return how many, or None without a due pass."""
        go_by_key(connection)
        one = self._due(connection, connection.execute(self._lock).all())
        if one is None:
            return None
        now = self._context.now(connection)
        walk = self._walk(one)
        end = end_of(connection, walk, self._size)
        before = 0 if one.tally is None else one.tally.total
        tallies = self._tallies(connection, one, walk if end is None else walk.until(end), now)
        until = one.end if end is None else one.tile(end.due)
        self._write(connection, one, until, tallies, now)
        reach("load.tiles_written")
        self._move_on(connection, one, end, tallies.get(until), now)
        reach("load.slice_counted")
        return sum(tally.total for tally in tallies.values()) - before

    def _walk(self, one: _Pass) -> Walk:
        timeouts = self._context.tables.timeouts
        along = [timeouts.c.endpoint == self._context.endpoint, timeouts.c.due < one.end]
        if not one.is_first:
            along.append(timeouts.c.due >= one.start)
        walk = Walk(self._context, timeouts, along)
        return walk if one.at is None else walk.behind(one.at)

    def _tallies(
        self, connection: Connection, one: _Pass, part: Walk, now: Micros
    ) -> dict[Micros, _Tally]:
        """Count the timeouts of *part* by tile, continuing the count of the first tile."""
        due = part.at.c.due
        number = case((due < one.start, -1), else_=(due - one.start) // one.width).label("number")
        # Without destinations, an index suffices: reading random pages takes ten times longer.
        names = [part.at.c.destination] if one.by_destination else []
        some = part.rows(number, *names).subquery()
        keys = [some.c.number, *(some.c[each.name] for each in names)]
        grouped = select(func.count(), *keys).group_by(*keys)
        tallies = defaultdict[Micros, _Tally](lambda: _Tally(now))
        if one.tally is not None:
            tallies[one.written] = one.tally
        for count, tile, *name in connection.execute(grouped):
            start = _PAST if tile < 0 else one.start + int(tile) * one.width
            tallies[start].add(name[0] if name else None, count)
        return dict(tallies)

    def _write(
        self,
        connection: Connection,
        one: _Pass,
        until: Micros,
        tallies: dict[Micros, _Tally],
        now: Micros,
    ) -> None:
        """Replace the tiles from the first unwritten tile up to the tile *until*."""
        begin, load = one.written, self._context.tables.load
        if begin == until:
            return
        overlaps = [load.c.endpoint == self._context.endpoint, load.c.bucket < until]
        if begin != _PAST:
            # A wider tile may begin earlier; deleting it leaves a hole until the next slice.
            overlaps += [load.c.bucket > begin - DAY, load.c.bucket + load.c.width > begin]
        connection.execute(delete(load).where(*overlaps))
        rows = list[dict[str, Any]]()
        for start, width in one.tiles(until):
            tally = tallies.get(start) or _Tally(now)  # no timeouts: without destinations
            row: dict[str, Any] = {"endpoint": self._context.endpoint, "bucket": start}
            row |= {"width": width, "as_of": tally.as_of}
            kept = None if tally.by is None else len(tally.by)
            rows.append(row | {"destination": _ALL, "count": tally.total, "destinations": kept})
            rows += [
                row | {"destination": name, "count": count, "destinations": None}
                for name, count in (tally.by or {}).items()
            ]
        self._context.writing.insert_rows(connection, load, rows)

    def _move_on(
        self, connection: Connection, one: _Pass, end: Key | None, tally: _Tally | None, now: Micros
    ) -> None:
        """Store the progress of the pass."""
        passes = self._context.tables.load_passes
        where = (passes.c.endpoint == self._context.endpoint, passes.c.width == one.width)
        values: dict[str, Any] = dict.fromkeys(("since", "until", "due", "id", "tally"))
        if end is None:
            values["ended"] = now
        else:
            values |= {"since": one.start, "until": one.end, "due": end.due, "id": end.id}
            values["tally"] = None if tally is None else tally.text()
        connection.execute(update(passes).where(*where).values(**values))


def _end(number: int, now: Micros) -> Micros:
    """Return the end of the tiles of tier *number*: the start of a tile of the next tier."""
    end = now + _TIERS[number].reach
    return end - end % _TIERS[min(number + 1, len(_TIERS) - 1)].width


def _begun(row: Row[Any], by_destination: bool) -> _Pass:
    tally = None if row.tally is None else _Tally(*json.loads(row.tally))
    return _Pass(row.width, row.since, row.until, Key(row.due, row.id), tally, by_destination)


# --- what a histogram reads ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Tile:
    """A fresh tile; *number* is None if it has no count for the destination."""

    begin: Micros
    end: Micros
    as_of: Micros
    number: int | None


class CountedLoad:
    """Reads the tiles of one endpoint."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context

    def counts(
        self, connection: Connection, edges: Sequence[Micros], destination: str | None, now: Micros
    ) -> list[Count | None]:
        """Return the number between each two *edges*; None if fresh tiles do not tell it."""
        tiles = self._tiles(connection, edges, destination, now)
        begins = [tile.begin for tile in tiles]
        return [
            None
            if end <= now
            else _sum(tiles[max(0, bisect_right(begins, begin) - 1) :], begin, end)
            for begin, end in pairwise(edges)
        ]

    def _tiles(
        self, connection: Connection, edges: Sequence[Micros], destination: str | None, now: Micros
    ) -> list[_Tile]:
        found = self._rows(connection, edges, _ALL)
        of_it = {}
        if destination is not None and found:
            rows = self._rows(connection, edges, destination)
            of_it = {row.bucket: _number(row) for row in rows}
        tiles = []
        for row in found:
            if now - row.as_of > _FRESH.get(row.width, _TIERS[0].fresh):
                continue
            number: int | None = _number(row)
            if destination is not None and number:
                number = None if row.destinations is None else of_it.get(row.bucket, 0)
            tiles.append(_Tile(row.bucket, row.bucket + row.width, row.as_of, number))
        return tiles

    def _rows(
        self, connection: Connection, edges: Sequence[Micros], destination: str
    ) -> Sequence[Row[Any]]:
        load = self._context.tables.load
        some = and_(load.c.bucket > edges[0] - DAY, load.c.bucket < edges[-1])
        where = (
            load.c.endpoint == self._context.endpoint,
            load.c.destination == destination,
            or_(load.c.bucket == _PAST, some),
        )
        return connection.execute(select(load).where(*where).order_by(load.c.bucket)).all()


def _number(row: Row[Any]) -> int:
    return int(row._mapping["count"])  # a row has a method of that name


def _sum(tiles: Sequence[_Tile], begin: Micros, end: Micros) -> Count | None:
    """Return the number from *begin* to *end*; None if *tiles* have a gap or would be cut."""
    at, total, as_of = begin, 0, None
    for tile in tiles:
        if at >= end:
            break
        if tile.end <= at:
            continue
        if max(tile.begin, begin) != at or tile.number is None:
            return None
        is_cut = tile.begin < begin or tile.end > end
        if is_cut and tile.number:
            return None
        total += tile.number
        as_of = tile.as_of if as_of is None else min(as_of, tile.as_of)
        at = tile.end
    return Count(total, as_of=as_of) if at >= end else None
