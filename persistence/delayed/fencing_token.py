"""Rows in hand where there are no row locks: marked, and fenced by the mark when removed.

SQLite has one writer: a transaction that is open while a message is sent would keep everybody
from storing, or, where the queue is in the same file, wait for itself. So fetching commits a mark
on the rows, and removing misses what somebody else has marked since. A mark names the life of its
process (``timeoutmgr.database.owners``), and is void when that has ended; its time-out is for a
process that is stopped and not dead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from uuid import uuid4

from timeoutmgr.contracts import Timeout
from timeoutmgr.crashpoints import reach
from timeoutmgr.database import Database
from timeoutmgr.instants import Micros
from timeoutmgr.persistence.sql.lives import Lives

from .rows import DelayedRows

CLAIM_TIME: Final = 60_000_000
"""Microseconds for which a mark holds whose process neither ends it nor dies."""


class Fence:
    """What one fetch has in hand; used by one thread."""

    def __init__(self, database: Database, rows: DelayedRows, lives: Lives, owner: str) -> None:
        self._database = database
        self._rows = rows
        self._lives = lives
        self._owner = owner
        self._claim = ""
        self._held: set[str] = set()

    def due(self, at: Micros, limit: int) -> Sequence[Any]:
        """Return up to *limit* that are due, and hold them."""
        life = self._lives.name_of(self._owner)
        self._claim = f"{uuid4().hex}@{life}"
        claims = self._others()
        gone = self._lives.gone({_life(claim) for claim in claims})
        freed = [claim for claim in claims if _life(claim) in gone]

        def work(connection: Any) -> Sequence[Any]:
            self._rows.free(connection, freed)
            reach("fencing.freed")
            found = self._rows.due(connection, at, limit).rows
            ids = [row.id for row in found]
            if ids:
                self._rows.hold(connection, ids, self._claim, at + CLAIM_TIME)
                reach("fencing.held")
            return found

        found = self._database.run(work)
        self._held = {row.id for row in found}
        return found

    def remove(self, timeouts: Sequence[Timeout]) -> int:
        """Remove what is still held; return how many that were."""
        ids = [timeout.id for timeout in timeouts]
        removed = self._database.run(
            lambda connection: self._rows.remove(connection, ids, self._claim)
        )
        self._held.difference_update(ids)
        return removed

    def close(self) -> None:
        """Give back what was not removed."""
        if self._held:
            ids, self._held = sorted(self._held), set()
            self._database.run(lambda connection: self._rows.let_go(connection, ids, self._claim))

    def _others(self) -> set[str]:
        with self._database.read() as connection:
            return self._rows.claims(connection)


@contextmanager
def fenced(database: Database, rows: DelayedRows, lives: Lives, owner: str) -> Iterator[Fence]:
    """Lend a fence; what it still holds in the end is given back."""
    fence = Fence(database, rows, lives, owner)
    try:
        yield fence
    finally:
        fence.close()


def _life(claim: str) -> str:
    return claim.partition("@")[2]
