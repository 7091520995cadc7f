"""Searches that end: rows of a walk in parts, until a bound of rows or of time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from sqlalchemy import Connection

from timeoutmgr.contracts import Key

from .walks import Walk

FIRST: Final = 1_000
"""Rows of the first part of a walk, however long they take."""
TIME: Final = 0.02
"""Seconds for the other parts, half of what an answer may take in the database."""
_GROWTH: Final = 4
_FEWEST: Final = 250
"""Rows for which another part is not worth its statements."""


@dataclass(slots=True)
class Search:
    """The bounds of one answer: at most *rows* of each walk, in about TIME from *since* on.

    A row takes a hundred times longer if it lies alone on a page of a disk than if it lies in
    memory beside the row before it. So the parts so far say how many rows the next part may have.
    *end* is the last key of the part that was yielded last, if rows are behind it. Without *since*
    the time is the search's own.
    """

    connection: Connection
    rows: int
    monotonic: Callable[[], float]
    since: float | None = None
    end: Key | None = None
    _began: float = field(init=False)
    _ends: float = field(init=False)
    _read: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Begin the time."""
        self._began = self.monotonic()
        self._ends = TIME + (self._began if self.since is None else self.since)

    def parts(self, walk: Walk, most: int | None = None) -> Iterator[Walk]:
        """Yield the parts of *walk* in order; the caller reads a part before it asks for the next.

        Of the walk its first *most* rows are enough. If an *end* is left behind the last part, the
        search ended there.
        """
        if most is not None and most <= FIRST:
            yield walk
            return
        left, rest = self.rows if most is None else min(self.rows, most), walk
        size = min(FIRST, left)
        while size:
            # Before the rows: rows that are dispatched meanwhile must not move the end on.
            self.end = end_of(self.connection, rest, size)
            part = rest if self.end is None else rest.until(self.end)
            yield replace(part, most=size)
            if self.end is None:
                return
            left -= size
            size = min(self._next_size(size), left)
            rest = walk.behind(self.end)

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return self.monotonic() >= self._ends

    def _next_size(self, size: int) -> int:
        """Return how many rows the rest of the time allows, behind a part of *size*; 0: too few."""
        self._read += size
        now = self.monotonic()
        allowed = int(self._read * (self._ends - now) / max(now - self._began, 1e-6))
        return min(allowed, _GROWTH * size) if allowed >= _FEWEST else 0


def end_of(connection: Connection, walk: Walk, size: int) -> Key | None:
    """Return the key of row number *size* of *walk*; None if there are no rows behind it."""
    in_order = walk.rows(*walk.order)
    last = connection.execute(in_order.offset(size - 1).limit(2)).all()
    return Key(*last[0]) if len(last) > 1 else None
