"""Bounded searches: the rows of a walk in parts, up to a limit of rows or time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from sqlalchemy import Connection

from timeoutmgr.contracts import Key

from .walks import Walk

FIRST: Final = 1_000
"""Rows of the first part of a walk, whatever time they take."""
TIME: Final = 0.02
"""Seconds for the other parts, half of what an answer may take in the database."""
_GROWTH: Final = 4
_FEWEST: Final = 250
"""Minimum rows for which another part is worth its statements."""


@dataclass(slots=True)
class Search:
    """The bounds of one answer: at most *rows* of each walk, in about TIME from *since* on.

    A row that is alone on a disk page takes a hundred times longer than a row in memory beside its
    predecessor. So the time of earlier parts sets the size of the next. *end* is the last key of
    the last yielded part, if more rows follow. Without *since*, the search starts its own time.
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
        """Start the clock."""
        self._began = self.monotonic()
        self._ends = TIME + (self._began if self.since is None else self.since)

    def parts(self, walk: Walk, most: int | None = None) -> Iterator[Walk]:
        """Yield the parts of *walk* in order; the caller reads a part before it asks for the next.

        The first *most* rows of the walk are enough. If *end* is set after the last part, the
        search ended there.
        """
        if most is not None and most <= FIRST:
            yield walk
            return
        left, rest = self.rows if most is None else min(self.rows, most), walk
        size = min(FIRST, left)
        while size:
            # Before the rows: rows that are dispatched meanwhile must not move the end forward.
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
        """Return how many rows the remaining time allows after a part of *size*; 0 if too few."""
        self._read += size
        now = self.monotonic()
        allowed = int(self._read * (self._ends - now) / max(now - self._began, 1e-6))
        return min(allowed, _GROWTH * size) if allowed >= _FEWEST else 0


def end_of(connection: Connection, walk: Walk, size: int) -> Key | None:
    """Return the key of row number *size* of *walk*; None if no rows follow it."""
    in_order = walk.rows(*walk.order)
    last = connection.execute(in_order.offset(size - 1).limit(2)).all()
    return Key(*last[0]) if len(last) > 1 else None
