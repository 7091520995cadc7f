"""Rows in hand where there are no row locks: marked, and fenced by the mark when removed.

SQLite has one writer: a transaction that is open while a message is sent would keep everybody
from storing, or, where the queue is in the same file, wait for itself. So fetching commits a mark
on the rows, and removing misses rows that another process has marked since. A mark names the owner
of its process (``timeoutmgr.database.session_locks``), and is void when that has ended; its
time-out is for a process that is stopped and not dead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from uuid import uuid4

from timeoutmgr.contracts import Timeout
from timeoutmgr.crashpoints import reach
from timeoutmgr.database import Database
from timeoutmgr.database.session_locks import Liveness
from timeoutmgr.message.instants import Micros

from .rows import DelayedRows

CLAIM_TIME: Final = 60_000_000
"""Microseconds for which a mark holds whose process neither ends it nor dies."""


class FencingToken:
    """The rows of one fetch; used by one thread."""

    def __init__(
        self, database: Database, rows: DelayedRows, liveness: Liveness, owner: str
    ) -> None:
        self._database = database
        self._rows = rows
        self._liveness = liveness
        self._owner = owner
        self._claim = ""
        self._held: set[str] = set()

    def due(self, at: Micros, limit: int) -> Sequence[Any]:
        """Return up to *limit* that are due, and hold them."""
        owner = self._liveness.name_of(self._owner)
        self._claim = f"{uuid4().hex}@{owner}"
        claims = self._others()
        dead = self._liveness.dead_owners({_owner_of(claim) for claim in claims})
        freed = [claim for claim in claims if _owner_of(claim) in dead]

        def work(connection: Any) -> Sequence[Any]:
            self._rows.free(connection, freed)
            reach("fencing.freed")
            found = self._rows.due(connection, at, limit).rows
            ids = [row.id for row in found]
            if ids:
                self._rows.reserve(connection, ids, self._claim, at + CLAIM_TIME)
                reach("fencing.held")
            return found

        found = self._database.run(work)
        self._held = {row.id for row in found}
        return found

    def remove(self, timeouts: Sequence[Timeout]) -> int:
        """Remove the rows that are still ours; return how many that were."""
        ids = [timeout.id for timeout in timeouts]
        removed = self._database.run(
            lambda connection: self._rows.remove(connection, ids, self._claim)
        )
        self._held.difference_update(ids)
        return removed

    def close(self) -> None:
        """Free the rows that were not removed."""
        if self._held:
            ids, self._held = sorted(self._held), set()
            self._database.run(lambda connection: self._rows.release(connection, ids, self._claim))

    def _others(self) -> set[str]:
        with self._database.read() as connection:
            return self._rows.claims(connection)


@contextmanager
def fenced(
    database: Database, rows: DelayedRows, liveness: Liveness, owner: str
) -> Iterator[FencingToken]:
    """Lend a token; rows that it still holds in the end are freed."""
    token = FencingToken(database, rows, liveness, owner)
    try:
        yield token
    finally:
        token.close()


def _owner_of(claim: str) -> str:
    return claim.partition("@")[2]
