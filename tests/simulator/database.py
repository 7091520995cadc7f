"""The storage's disk: rows, keys with their tombstones, claims, and the locks on rows.

The rules are the same that ``tests/model`` has proved on every interleaving (``tables.py``,
``rowlocks.py``, ``fenced.py``), on tables that are changed in place: a run has hundreds of
timeouts. A statement, and a transaction that holds no lock over a publish, is one step.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from timeoutmgr.contracts import Key, Outcome, OutcomeKind, Timeout, TimeoutState
from timeoutmgr.message.instants import Micros

from .ledger import LockedChunk
from .process import Process
from .timeline import MINUTE

CLAIM_TIME: Final = MINUTE
POLL_AGAIN: Final = 2_000_000
"""The next poll while other processes have the due rows: rare, or polls would fill a run."""
STATES: Final = {
    OutcomeKind.DISPATCHED: TimeoutState.DISPATCHED,
    OutcomeKind.FAILED: TimeoutState.FAILED,
}


@dataclass(slots=True)
class Row:
    """A pending timeout; *holder* has its row lock."""

    timeout: Timeout
    next_try: Micros = 0
    maybe_sent: bool = False
    holder: LockedChunk | None = None


@dataclass(slots=True)
class Known:
    """The authority on one id."""

    state: TimeoutState
    due: Micros
    maybe_sent: bool = False


@dataclass(slots=True)
class Claim:
    """A claimed interval of a process; *locked* is the fence of a database without row locks."""

    first: Key
    last: Key
    owner: Process
    until: Micros
    locked: bool = False

    def covers(self, key: Key) -> bool:
        return self.first <= key <= self.last

    def is_over(self, now: Micros) -> bool:
        return self.until <= now or self.owner.is_seen_dead(now)


@dataclass(slots=True)
class Database:
    """The tables of one endpoint. *row_locks*: as PostgreSQL and MySQL; without, as SQLite."""

    row_locks: bool
    away: bool = False
    rows: dict[Key, Row] = field(default_factory=dict)
    order: list[Key] = field(default_factory=list)
    known: dict[str, Known] = field(default_factory=dict)
    claims: dict[str, Claim] = field(default_factory=dict)
    tokens: int = 0

    def insert(self, timeouts: Iterable[Timeout]) -> list[str]:
        """Insert the timeouts with new ids; return these ids."""
        fresh = []
        for timeout in timeouts:
            if timeout.id not in self.known:
                self.known[timeout.id] = Known(TimeoutState.PENDING, timeout.due)
                self.put(timeout.key, Row(timeout))
                fresh.append(timeout.id)
        return fresh

    def put(self, key: Key, row: Row) -> None:
        self.rows[key] = row
        insort(self.order, key)

    def remove(self, key: Key) -> Row:
        del self.order[bisect_left(self.order, key)]
        return self.rows.pop(key)

    def inside(self, claim: Claim) -> list[Row]:
        first = bisect_left(self.order, claim.first)
        return [self.rows[key] for key in self.order[first : bisect_right(self.order, claim.last)]]

    def covering(self, key: Key) -> list[Claim]:
        return [claim for claim in self.claims.values() if claim.covers(key)]

    def may_have_sent(self, claim: Claim) -> bool:
        """Return whether under *claim* something may have been sent that is not recorded."""
        return self.row_locks or claim.locked

    def may_be_locked(self, token: str) -> bool:
        """Return whether the claim of *token* is there, and nobody's yet."""
        claim = self.claims.get(token)
        return claim is not None and not claim.locked

    def drop_ended(self, now: Micros) -> None:
        """Drop ended claims whose rows are not locked; flag their rows as maybe sent."""
        for token, claim in list(self.claims.items()):
            if not claim.is_over(now):
                continue
            if self.may_have_sent(claim):
                rows = self.inside(claim)
                if any(row.holder is not None for row in rows):
                    continue
                for row in rows:
                    row.maybe_sent = True
            del self.claims[token]

    def free_keys(self, now: Micros, limit: int) -> tuple[list[Key], Micros | None]:
        """Return due keys of one gap between claims, and when there is more to look for."""
        free: list[Key] = []
        end: Key | None = None
        poll_again: list[Micros] = []
        for key in self.order:
            if key.due > now:
                poll_again.append(key.due)
                break
            if self.rows[key].next_try > now:
                poll_again.append(self.rows[key].next_try)
            elif any(claim.covers(key) for claim in self.claims.values()):
                poll_again.append(now + POLL_AGAIN)
            elif len(free) == limit or (end is not None and key > end):
                poll_again.append(key.due)
                break
            else:
                if not free:
                    starts = [c.first for c in self.claims.values() if c.first > key]
                    end = min(starts, default=None)
                free.append(key)
        return free, min(poll_again, default=None)

    def due(self, keys: Iterable[Key], now: Micros) -> list[Key]:
        """Return the stored keys of *keys* that may be tried now, in order."""
        there = sorted(key for key in set(keys) if key in self.rows)
        return [key for key in there if max(key.due, self.rows[key].next_try) <= now]

    def claim(self, keys: Sequence[Key], owner: Process, now: Micros, *, locked: bool) -> str:
        self.tokens += 1
        token = f"claim{self.tokens}"
        self.claims[token] = Claim(keys[0], keys[-1], owner, now + CLAIM_TIME, locked)
        return token

    def record(self, outcomes: Sequence[Outcome]) -> None:
        """Record *outcomes* of rows that are where they were locked."""
        for outcome in outcomes:
            row = self.rows.get(outcome.key)
            if row is None:
                continue
            if outcome.kind is OutcomeKind.RETRY:
                row.next_try = outcome.next_try
                row.maybe_sent |= outcome.maybe_sent
                row.timeout = replace(row.timeout, attempts=row.timeout.attempts + 1)
            else:
                self.known[outcome.key.id].state = STATES[outcome.kind]
                self.remove(outcome.key)

    def flag_maybe_sent(self, keys: Collection[Key]) -> None:
        for key in keys:
            if key in self.rows:
                self.rows[key].maybe_sent = True

    def cancel(self, key: Key, *, maybe_sent: bool) -> None:
        self.known[key.id] = Known(TimeoutState.CANCELLED, key.due, maybe_sent)
        self.remove(key)

    def move(self, key: Key, due: Micros, *, maybe_sent: bool) -> None:
        row = self.remove(key)
        self.known[key.id].due = due
        self.put(Key(due, key.id), Row(replace(row.timeout, due=due), maybe_sent=maybe_sent))

    def unlock(self, chunk: LockedChunk) -> None:
        """Roll the open transaction of *chunk* back: its row locks go."""
        for key in chunk.keys:
            row = self.rows.get(key)
            if row is not None and row.holder is chunk:
                row.holder = None
