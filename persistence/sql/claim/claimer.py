"""Claims: short-lived intervals in the order of due times, with one small row per chunk.

The rows of timeouts do not record claims, so a claim of a hundred keys costs one insert. Intervals
in force never overlap; a key outside all intervals is free.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import uuid4

from sqlalchemy import Connection

from timeoutmgr.contracts import Chunk, Key, Transaction
from timeoutmgr.crashpoints import reach
from timeoutmgr.database import as_connection
from timeoutmgr.database.commits import after_commit
from timeoutmgr.message.instants import Micros
from timeoutmgr.persistence.sql.context import ClaimLock, StoreContext, go_by_key, lock_endpoint

from .hints import FROM_THE_BEGINNING, Burst, Gaps, KeyCursor, NextDue, behind, gaps_between
from .rows import (
    Claim,
    DueKeys,
    NewClaim,
    add_claims,
    claims_of,
    flag_free_rows,
    may_have_sent,
    remove_claims,
)

OWN_AGAIN: Final = 50_000
"""Minimum microseconds until the next poll while a claim of this owner covers due keys."""
OTHERS_AGAIN: Final = 250_000
"""Microseconds until the next poll while claims of other owners cover due keys."""
PACE: Final = 40
"""Microseconds until the next poll, per id in flight. A dispatch takes at least twice as long
(12,700 a second were measured), so the dispatcher does not run out of work."""
SOONEST: Final = 20_000
"""Minimum microseconds until a poll for room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """A request for up to *chunks* times *size* keys that are due by *now* plus *ahead*.

    *now* is the host's time, and counts only if the storage has no clock.
    """

    now: Micros
    size: int
    owner: str
    chunks: int = 1
    ahead: Micros = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimTransaction:
    """A transaction that holds the endpoint's lock.

    *now* is the time that counts, *until* the latest due time to claim, and *owner* the session
    lock of the claim.
    """

    connection: Connection
    now: Micros
    until: Micros
    owner: str


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """The claimed chunk and the end of its burst; *is_full* means no room for keys in flight."""

    chunk: Chunk
    burst: Key | None = None
    is_full: bool = False


class Claimer:
    """Claims the due keys of one endpoint.

    *without* disables hints: claims are the same, but cost more reads.
    """

    def __init__(self, context: StoreContext, *, without: Collection[type] = ()) -> None:
        self._context = context
        self._keys = DueKeys(context)
        self._lock = ClaimLock(context)
        self._gaps = Gaps(context, enabled=Gaps not in without)
        self._cursor = KeyCursor(context.clock, enabled=KeyCursor not in without)
        self._burst = Burst(enabled=Burst not in without)
        self._next_due = NextDue(enabled=NextDue not in without)

    def claim(self, request: ClaimRequest, transaction: Transaction | None) -> Chunk:
        """Claim up to the requested keys; if none is due, answer after one read."""
        burst = self._burst.pop()
        if self._next_due.pop(request.now + request.ahead) or burst is not None:
            # Keys are known to be due: a peek would be a waste.
            result = self._claim_now(request, transaction, burst)
            if result.chunk.keys or result.is_full:
                return result.chunk
            # The keys have been claimed. Another process may have stored keys before the cursor.
        nothing = self._probe(request.now, transaction)
        if nothing is not None:
            self._next_due.note(nothing.next_due)
            return nothing
        return self._claim_now(request, transaction, None).chunk

    def _claim_now(
        self, request: ClaimRequest, transaction: Transaction | None, burst: Key | None
    ) -> ClaimResult:
        """Claim in *transaction*, or in a new transaction."""
        owner = self._context.liveness.name_of(request.owner)

        def work(connection: Connection) -> ClaimResult:
            now = self._lock.wait(connection, request.now)
            until = now + request.ahead
            locked = ClaimTransaction(connection=connection, now=now, until=until, owner=owner)
            return self._claim(locked, request, burst)

        if transaction is not None:
            connection = as_connection(transaction)
            result = work(connection)
            # Otherwise the next claim would skip a rolled-back chunk.
            after_commit(connection, lambda: self._go_on_behind(result))
            return result
        result = self._context.database.run(work)
        self._go_on_behind(result)
        return result

    def _claim(
        self, locked: ClaimTransaction, request: ClaimRequest, burst: Key | None
    ) -> ClaimResult:
        """Claim from *burst* on, the end of the previous chunk; None reads all gaps."""
        if burst is None:
            position = self._cursor.position()
            claims, first = self._keys.claims_and_first(locked.connection, position.start)
            if first is not None:
                self._cursor.advance(position, first)
        else:
            claims = claims_of(locked.connection, self._context)
        active = self._drop_ended(locked, claims)
        if len(active) < len(claims):
            burst = None  # keys of ended claims are free, and may be older
        in_flight = sum(claim.size for claim in active)
        limit = self._room_for(request, in_flight)
        if not limit:
            again = max(SOONEST, in_flight * PACE)
            return ClaimResult(Chunk("", (), locked.now + again), burst, is_full=True)
        active.sort(key=lambda claim: claim.interval.first)
        keys, next_due = self._free_keys(locked, limit + 1, active, burst)
        if len(keys) > limit:
            next_due = keys.pop().due
        size = request.size
        new = [
            NewClaim(uuid4().hex, keys[start : start + size]) for start in range(0, len(keys), size)
        ]
        add_claims(locked.connection, self._context, new, locked.owner, locked.now)
        reach("claiming.claim_added")
        goes_on = new and len(new[-1].keys) == size
        return ClaimResult(_chunk_of(new, next_due), keys[-1] if goes_on else None)

    def _go_on_behind(self, result: ClaimResult) -> None:
        """Let the next claim begin at the end of *result*, which is committed."""
        self._burst.advance(result.burst, len(result.chunk.all) if result.chunk.keys else 0)

    def release(self, token: str, maybe_sent: bool) -> None:
        """Delete the claim of *token*, unless a dispatcher may be at work under it."""
        self._burst.stop()

        def work(connection: Connection) -> None:
            if maybe_sent:
                lock_endpoint(connection, self._context)
                claims = [one for one in claims_of(connection, self._context) if one.token == token]
                if not all(self._may_be_released(connection, claim) for claim in claims):
                    return
            remove_claims(connection, self._context, [token])

        self._context.database.run(work)

    def _may_be_released(self, connection: Connection, claim: Claim) -> bool:
        if not self._context.database.dialect.row_locks:
            return not claim.is_locked  # a dispatcher fenced the claim
        return self._may_be_dropped(connection, claim)

    def notify_stored(self, due: Micros) -> None:
        """Read again from *due* on, where a timeout was stored."""
        self._cursor.notify_stored(due)
        self._burst.stop()
        self._next_due.note(due)

    def next_due(self) -> Micros | None:
        """Return the earliest due instant stored."""
        with self._context.reading() as connection:
            rows = self._keys.first(connection, FROM_THE_BEGINNING, 1)
        return rows[0].due if rows else None

    def _probe(self, now: Micros, transaction: Transaction | None) -> Chunk | None:
        if transaction is not None:
            return self._peek_with_full_scan(as_connection(transaction), now)
        with self._context.database.read() as connection:
            go_by_key(connection)
            return self._peek_with_full_scan(connection, now)

    def _peek_with_full_scan(self, connection: Connection, now: Micros) -> Chunk | None:
        nothing = self._peek(connection, now)
        if nothing is not None and self._cursor.retreat():
            nothing = self._peek(connection, now)
        return nothing

    def _peek(self, connection: Connection, now: Micros) -> Chunk | None:
        """Return an empty chunk if certainly no key can be claimed."""
        position = self._cursor.position()
        rows = self._keys.first(connection, position.start, 1)
        if not rows:
            return Chunk("", (), None)
        [first] = rows
        if first.due > (int(first.now) if self._context.has_database_clock else now):
            return Chunk("", (), first.due)
        self._cursor.advance(position, Key(first.due, first.id))
        return None

    def _room_for(self, request: ClaimRequest, in_flight: int) -> int:
        """Return how many keys may be claimed now; for several chunks, all or none.

        Claiming one chunk costs as much as claiming five: claiming each chunk as soon as there is
        room would waste the time of poller and dispatcher on claims.
        """
        most = self._context.settings.max_in_flight
        room = most - in_flight
        wanted = request.size * request.chunks
        if request.chunks > 1 and room < min(wanted, most // 2):
            return 0
        return max(min(wanted, room), 0)

    def _drop_ended(self, locked: ClaimTransaction, claims: Sequence[Claim]) -> list[Claim]:
        """Drop the claims that expired or whose owner is dead; return the remaining claims."""
        owners = {claim.owner for claim in claims if claim.claimed_until > locked.now}
        dead = self._context.liveness.dead_owners(owners - {locked.owner})
        active, ended = [], []
        for claim in claims:
            over = claim.claimed_until <= locked.now or claim.owner in dead
            if over and self._may_be_dropped(locked.connection, claim):
                reach("claiming.claim_ended")
                ended.append(claim.token)
            else:
                active.append(claim)
        remove_claims(locked.connection, self._context, ended)
        reach("claiming.ended_dropped")
        return active

    def _may_be_dropped(self, connection: Connection, claim: Claim) -> bool:
        """Flag the rows that may have been sent under it; false while a dispatcher locks them."""
        if not may_have_sent(self._context, claim):
            return True
        return flag_free_rows(connection, self._context, claim.interval)

    def _free_keys(
        self, locked: ClaimTransaction, limit: int, active: Sequence[Claim], burst: Key | None
    ) -> tuple[list[Key], Micros | None]:
        """Return the first due keys of one gap between *active*, and the next poll time.

        The poll time is valid if fewer than *limit* keys were found.
        """
        if burst is not None and all(claim.interval.last <= burst for claim in active):
            keys = self._keys.claimable(locked.connection, behind(burst), None, locked.until, limit)
            if keys:
                return keys, locked.now  # there may be more in the skipped gaps
        if not active:
            return self._first_of_all(locked, limit)
        gaps = list(gaps_between(self._cursor.position().start, active))
        *closed, last = self._gaps.with_due_keys(locked.connection, gaps, locked.until)
        for gap in closed:
            keys = self._keys.claimable(locked.connection, gap.start, gap.end, locked.until, limit)
            if keys:
                return keys, locked.now
        keys, future = self._keys.claimable_and_next(
            locked.connection, last.start, locked.until, limit
        )
        if len(keys) == limit:
            return keys, None
        self._next_due.note(future)
        return keys, self._next_poll_time(locked, active, future)

    def _first_of_all(
        self, locked: ClaimTransaction, limit: int
    ) -> tuple[list[Key], Micros | None]:
        """Return the first due keys, if no claim is in force, and the due time after them."""
        position = self._cursor.position()
        rows = self._keys.first(locked.connection, position.start, limit)
        due = [row for row in rows if row.due <= locked.until]
        if rows:
            self._cursor.advance(position, Key(rows[0].due, rows[0].id))
        coming = rows[len(due)].due if len(due) < len(rows) else None
        self._next_due.note(coming)
        return [Key(row.due, row.id) for row in due], coming

    def _next_poll_time(
        self, locked: ClaimTransaction, active: Sequence[Claim], future: Micros | None
    ) -> Micros:
        # A row that arrived late in one of our intervals is covered until the claim is closed.
        ours = sum(claim.size for claim in active if claim.owner == locked.owner)
        again = locked.now + (max(OWN_AGAIN, ours * PACE) if ours else OTHERS_AGAIN)
        return again if future is None else min(future, again)


def _chunk_of(new: Sequence[NewClaim], next_due: Micros | None) -> Chunk:
    chunks = [Chunk(claim.token, tuple(claim.keys), next_due) for claim in new]
    return replace(chunks[0], others=tuple(chunks[1:])) if chunks else Chunk("", (), next_due)
