"""Hints that spare a claim statements; the claims alone decide which keys are free.

A claimer works without each of them, with more reads. They are of one process, and safe for many
threads: a lost hint costs a read, and a hint too many a transaction that finds nothing.
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

# --- the gaps between the claims in force, and the gaps with due keys -------------------------


@dataclass(frozen=True, slots=True)
class Gap:
    """Keys from *start* on and before *end*; None where no claim stands behind it."""

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
    """Return a key between *key* and the next that there can be: ids have no control signs."""
    return Key(key.due, key.id + "\x01")


class Gaps:
    """Picks the gaps that are worth a look.

    A drain has dozens of claims in force, and next to nothing between them. To ask PostgreSQL of
    each by itself would take longer than the chunk that is looked for.
    """

    def __init__(self, context: StoreContext, *, enabled: bool = True) -> None:
        can_ask = enabled and context.database.dialect.name == "postgresql"
        self._at_once: Final = _not_empty(context) if can_ask else None

    def with_due_keys(
        self, connection: Connection, gaps: Sequence[Gap], until: Micros
    ) -> Sequence[Gap]:
        """Return *gaps*, without gaps that are empty until *until* if that is cheap to find out."""
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
    """Return the statement that tells the numbers, from 1, of the gaps that hold something due.

    It finds the first row from the start of a gap on, and compares it with the end. As a bound of
    the search the end would not stop it within one instant, see ``rows.OnKeys``.
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
            timeouts.c.due <= gaps.c.end_due,  # for the partitions behind it
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
    # Of two columns, unlike of a column and a value, PostgreSQL must be told whose order counts.
    return gaps.c[f"{side}_due"], gaps.c[f"{side}_id"].collate("C")


FROM_THE_BEGINNING: Final = Key(EARLIEST, "")
FULL_SCAN: Final = 1.0
"""Seconds after which the next read begins at the very beginning again."""
LONGEST_BURST: Final = 20
"""Chunks of one burst; after them a claim reads all gaps again.

So a key that another process frees or stores before them waits that much longer.
"""


@dataclass(frozen=True, slots=True)
class CursorPosition:
    """A read from *start* on; *number* tells whether it is still the latest news."""

    start: Key
    number: int


class KeyCursor(ThreadSafe):
    """The first key that the last read found.

    A removed row stays in an index until no transaction can see it any more. While an old snapshot
    is open (a backup, a long report), a read from the beginning walks over all rows dispatched
    since, and each read takes longer than its predecessor. A read from the cursor skips them.

    ``notify_stored`` moves the cursor back to a row that comes to stand before it, once the row can
    be seen. Rows that other processes store there are found by the next read from the beginning:
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
        """Return the key to read from now."""
        with self._lock:
            if self._clock.monotonic() >= self._full_scan:
                self._start = FROM_THE_BEGINNING
                self._full_scan = self._clock.monotonic() + FULL_SCAN
            return CursorPosition(self._start, self._number)

    def retreat(self) -> bool:
        """Go back to the very beginning; return whether the cursor stood elsewhere."""
        with self._lock:
            before, self._start = self._start, FROM_THE_BEGINNING
            return before != FROM_THE_BEGINNING

    def advance(self, position: CursorPosition, first: Key) -> None:
        """Note that the read from *position* found *first*; a later ``notify_stored`` wins."""
        with self._lock:
            if self._enabled and position.number == self._number:
                self._start = first

    def notify_stored(self, due: Micros) -> None:
        """Go back to *due*, where a row was stored that can be seen now."""
        with self._lock:
            self._number += 1
            self._start = min(self._start, Key(due, ""))


class Burst:
    """The end of the last full chunk: the next claim reads on behind it, and skips the gaps."""

    def __init__(self, *, enabled: bool = True) -> None:
        self._enabled = enabled
        self._end: Key | None = None
        self._chunks = 0

    def pop(self) -> Key | None:
        """Return the end of the last chunk and end the burst; None outside of a burst."""
        end, self._end = self._end, None
        return end

    def advance(self, end: Key | None, chunks: int) -> None:
        """Go on behind *end* after *chunks* more; None, and too many chunks, end the burst."""
        self._end = end if self._enabled else None
        if end is not None and chunks:
            self._chunks += chunks
            if self._chunks >= LONGEST_BURST:
                # An old row may have come meanwhile, before the burst.
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
