"""Hints that save statements of a claim; only the claims decide which keys are free.

A claimer also works without hints, with more reads. Hints belong to one process, and are safe for
many threads: a lost hint costs a read, and a wrong hint a transaction that finds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Select, and_, bindparam, func, select

from timeoutmgr.contracts import Clock, Key
from timeoutmgr.database.arrays import NumberArray, TextArray
from timeoutmgr.message.instants import EARLIEST, Micros
from timeoutmgr.persistence.sql.context import StoreContext
from timeoutmgr.persistence.sql.rows import before_key, from_key
from timeoutmgr.resilience.after_fork import ThreadSafe

from .rows import Claim

# --- gaps between the claims in force, and the gaps that have due keys ----------------------------


@dataclass(frozen=True, slots=True)
class Gap:
    """Keys from *start* on and before *end*; *end* is None if no claim follows."""

    start: Key
    end: Key | None


def gaps_between(start: Key, active: Sequence[Claim]) -> Iterator[Gap]:
    """Yield the gaps from *start* on between *active*, in order; the last gap has no end."""
    for claim in active:
        if start < claim.interval.first:
            yield Gap(start, claim.interval.first)
        start = max(start, behind(claim.interval.last))
    yield Gap(start, None)


def behind(key: Key) -> Key:
    """Return a key right after *key*, before any other possible: ids have no control characters."""
    return Key(key.due, key.id + "\x01")


class Gaps:
    """Selects the gaps that are worth a query.

    A drain has dozens of claims in force, and almost nothing between them. Querying PostgreSQL for
    each gap would take longer than reading the chunk.
    """

    def __init__(self, context: StoreContext, *, enabled: bool = True) -> None:
        can_ask = enabled and context.database.dialect.name == "postgresql"
        self._at_once: Final = _not_empty(context) if can_ask else None

    def with_due_keys(
        self, connection: Connection, gaps: Sequence[Gap], until: Micros
    ) -> Sequence[Gap]:
        """Return *gaps*, without gaps that have nothing due by *until* if a check is cheap."""
        *closed, last = gaps
        if self._at_once is None or len(closed) < 2:
            return gaps
        found = connection.execute(
            self._at_once,
            {
                "start_dues": [gap.start.due for gap in closed],
                "start_ids": [gap.start.id for gap in closed],
                "end_dues": [gap.end.due for gap in closed if gap.end],
                "end_ids": [gap.end.id for gap in closed if gap.end],
                "now": until,
            },
        )
        return [*(closed[number - 1] for number in sorted(found.scalars())), last]


def _not_empty(context: StoreContext) -> Select[Any]:
    """Return the statement for the numbers, from 1, of the gaps that have due keys.

    It finds the first row from the start of a gap on, and compares it with the end. As a bound of
    the search, the end would not stop it within one instant; see ``rows.OnKeys``.
    """
    timeouts = context.tables.timeouts
    arrays: Any = func.unnest(
        bindparam("start_dues", type_=NumberArray()),
        bindparam("start_ids", type_=TextArray()),
        bindparam("end_dues", type_=NumberArray()),
        bindparam("end_ids", type_=TextArray()),
    )
    gaps = arrays.table_valued(
        "start_due", "start_id", "end_due", "end_id", with_ordinality="number", name="gap"
    ).render_derived()
    first = (
        select(timeouts.c.due, timeouts.c.id)
        .where(
            timeouts.c.endpoint == context.endpoint,
            timeouts.c.hidden_by.is_(None),
            from_key(context, timeouts.c.due, timeouts.c.id, _pair(gaps, "start")),
            timeouts.c.due <= gaps.c.end_due,  # prunes the partitions after it
        )
        .order_by(timeouts.c.due, timeouts.c.id)
        .limit(1)
        .lateral("first_row")
    )
    inside = and_(
        before_key(context, first.c.due, first.c.id, _pair(gaps, "end")),
        first.c.due <= bindparam("now"),
    )
    return select(gaps.c.number).select_from(gaps).join(first, inside)


def _pair(gaps: Any, side: str) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
    # For two columns, unlike for a column and a value, PostgreSQL must be told the collation.
    return gaps.c[f"{side}_due"], gaps.c[f"{side}_id"].collate("C")


FROM_THE_BEGINNING: Final = Key(EARLIEST, "")
FULL_SCAN: Final = 1.0
"""Seconds after which the next read starts from the very beginning again."""
LONGEST_BURST: Final = 20
"""Maximum chunks of one burst; after them, a claim reads all gaps again.

A key that another process frees or stores before the burst waits until then.
"""


@dataclass(frozen=True, slots=True)
class CursorPosition:
    """The start of a read; *number* tells whether the position is still current."""

    start: Key
    number: int


class KeyCursor(ThreadSafe):
    """The first key that the last read found.

    A removed row stays in an index until no transaction can see it any more. While an old snapshot
    is open (a backup, a long report), a read from the beginning walks over all rows dispatched
    since then, and each read takes longer than the last. A read from the cursor skips them.

    ``notify_stored`` moves the cursor back to a row that is stored before it, once the row is
    visible. Rows that other processes store there are found by the next read from the beginning:
    after FULL_SCAN, and before an answer that nothing is due.
    """

    def __init__(self, clock: Clock, *, enabled: bool = True) -> None:
        self._clock = clock
        self._enabled = enabled
        super().__init__()
        self._start = FROM_THE_BEGINNING
        self._number = 0
        self._full_scan = clock.monotonic() + FULL_SCAN

    def position(self) -> CursorPosition:
        """Return the key from which to read now."""
        with self._lock:
            if self._clock.monotonic() >= self._full_scan:
                self._start = FROM_THE_BEGINNING
                self._full_scan = self._clock.monotonic() + FULL_SCAN
            return CursorPosition(self._start, self._number)

    def retreat(self) -> bool:
        """Go back to the very beginning; return whether the cursor was elsewhere."""
        with self._lock:
            before, self._start = self._start, FROM_THE_BEGINNING
            return before != FROM_THE_BEGINNING

    def advance(self, position: CursorPosition, first: Key) -> None:
        """Note that the read from *position* found *first*; a later ``notify_stored`` wins."""
        with self._lock:
            if self._enabled and position.number == self._number:
                self._start = first

    def notify_stored(self, due: Micros) -> None:
        """Go back to *due*, where a stored row is visible now."""
        with self._lock:
            self._number += 1
            self._start = min(self._start, Key(due, ""))


class Burst:
    """The end of the last full chunk: the next claim continues after it, and skips the gaps."""

    def __init__(self, *, enabled: bool = True) -> None:
        self._enabled = enabled
        self._end: Key | None = None
        self._chunks = 0

    def pop(self) -> Key | None:
        """Return the end of the last chunk and end the burst; None outside of a burst."""
        end, self._end = self._end, None
        return end

    def advance(self, end: Key | None, chunks: int) -> None:
        """Continue after *end*, *chunks* later; None or too many chunks end the burst."""
        self._end = end if self._enabled else None
        if end is not None and chunks:
            self._chunks += chunks
            if self._chunks >= LONGEST_BURST:
                # An old row may have arrived before the burst meanwhile.
                self._chunks, self._end = 0, None

    def stop(self) -> None:
        """End the burst: there may be keys before it."""
        self._end = None


class NextDue:
    """The earliest due time that this process knows: a claim at it needs no peek."""

    def __init__(self, *, enabled: bool = True) -> None:
        self._enabled = enabled
        self._due: Micros | None = None

    def note(self, due: Micros | None) -> None:
        """Note that a timeout is due at *due*."""
        if self._enabled and due is not None and (self._due is None or due < self._due):
            self._due = due

    def pop(self, until: Micros) -> bool:
        """Return whether a timeout is known to be due by *until*, and forget it."""
        due, self._due = self._due, None
        return due is not None and due <= until
