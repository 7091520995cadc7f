"""Claims: short-lived intervals in the order of due times, one small row for a whole chunk.

Rows carry no mark of being claimed, so that handing out a hundred costs one insert. Intervals in
force never overlap; what lies outside all of them is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import uuid4

from sqlalchemy import Connection

from timeoutmgr.contracts import Chunk, Key, Transaction
from timeoutmgr.crashpoints import reach
from timeoutmgr.database.commits import after_commit
from timeoutmgr.instants import Micros

from .claims import Claim, NewClaim, add_claims, claims_of, forget, may_have_sent
from .context import StoreContext
from .due_keys import DueKeys, go_by_key
from .gaps import Gaps, behind, gaps_between
from .horizon import FROM_THE_BEGINNING, Horizon
from .locks import ClaimLock, lock_endpoint
from .marking import mark_free_rows

OWN_AGAIN: Final = 50_000
"""Look again this soon (microseconds) while a claim of our own covers what is due."""
OTHERS_AGAIN: Final = 250_000
"""Look again this soon while others' claims cover what is due."""
PACE: Final = 25
"""Microseconds for each id in flight until there may be room for more, where there is none: at
twice the pace of a fast dispatcher, so that it is not out of work before."""
SOONEST: Final = 20_000
"""Microseconds until that at least."""
LONGEST_BURST: Final = 20
"""Chunks that are claimed one behind the other before all gaps are looked at again.

So what another process frees or stores before them comes that much later.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is asked for: up to *chunks* times *size* keys, due by *now* or *ahead* of it.

    *now* is the host's, and counts only where the storage has no clock.
    """

    now: Micros
    size: int
    owner: str
    chunks: int = 1
    ahead: Micros = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A transaction that holds the endpoint's lock.

    *now* is the time that counts, *until* the latest due time to be handed out, *owner* the life
    that claims.
    """

    connection: Connection
    now: Micros
    until: Micros
    owner: str


@dataclass(frozen=True, slots=True)
class Handed:
    """What was handed out, and where the burst stands; *is_full*: no more may be in flight."""

    chunk: Chunk
    burst: Key | None = None
    is_full: bool = False


class Claiming:
    """Hands out the due keys of one endpoint."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._keys = DueKeys(context)
        self._gaps = Gaps(context)
        self._lock = ClaimLock(context)
        self._horizon = Horizon(context.clock)
        self._burst: Key | None = None
        self._since_all_gaps = 0
        self._awaited: Micros | None = None

    def claim(self, wish: Wish, transaction: Transaction | None) -> Chunk:
        """Hand out what is wished for, in one read where nothing is due."""
        burst, self._burst = self._burst, None
        if self._is_awaited(wish.now + wish.ahead) or burst is not None:
            # Something is known to be due: to look first would only cost.
            handed = self._hand_out_now(wish, transaction, burst)
            if handed.chunk.keys or handed.is_full:
                return handed.chunk
            # It is gone. What another process stored before the horizon may be there.
        nothing = self._look_first(wish.now, transaction)
        if nothing is not None:
            self._await(nothing.next_due)
            return nothing
        return self._hand_out_now(wish, transaction, None).chunk

    def _hand_out_now(
        self, wish: Wish, transaction: Transaction | None, burst: Key | None
    ) -> Handed:
        """Claim in *transaction*, or in one of its own."""
        life = self._context.lives.name_of(wish.owner)

        def work(connection: Connection) -> Handed:
            now = self._lock.wait(connection, wish.now)
            turn = Turn(connection=connection, now=now, until=now + wish.ahead, owner=life)
            return self._hand_out(turn, wish, burst)

        if transaction is not None:
            handed = work(transaction)
            # Undone with the others, it would be skipped.
            after_commit(transaction, lambda: self._go_on_behind(handed))
            return handed
        handed = self._context.database.run(work)
        self._go_on_behind(handed)
        return handed

    def _go_on_behind(self, handed: Handed) -> None:
        """Begin the next claim where *handed*, which is committed, ended."""
        self._burst = handed.burst
        if handed.burst is not None and handed.chunk.keys:
            self._since_all_gaps += len(handed.chunk.all)
            if self._since_all_gaps >= LONGEST_BURST:
                # Now and then all of it: an old row may have come meanwhile.
                self._since_all_gaps, self._burst = 0, None

    def release(self, token: str, maybe_handed_on: bool) -> None:
        """Forget the claim of *token*, unless a dispatcher may be at work under it."""
        self._burst = None

        def work(connection: Connection) -> None:
            if maybe_handed_on:
                lock_endpoint(connection, self._context)
                claims = [one for one in claims_of(connection, self._context) if one.token == token]
                if not all(self._may_be_released(connection, claim) for claim in claims):
                    return
            forget(connection, self._context, [token])

        self._context.database.run(work)

    def _may_be_released(self, connection: Connection, claim: Claim) -> bool:
        if not self._context.database.dialect.row_locks:
            return not claim.taken  # the fence of whoever took it
        return self._may_be_dropped(connection, claim)

    def expect(self, due: Micros) -> None:
        """Look again from *due* on: something was stored there."""
        self._horizon.expect(due)
        self._burst = None
        self._await(due)

    def _is_awaited(self, until: Micros) -> bool:
        """Return whether something is known to be due by *until*, and forget it."""
        awaited, self._awaited = self._awaited, None
        return awaited is not None and awaited <= until

    def _await(self, due: Micros | None) -> None:
        """Note that something is due at *due*.

        A hint between threads, not a promise: one that is lost costs a look, and one too many a
        transaction that finds nothing.
        """
        if due is not None and (self._awaited is None or due < self._awaited):
            self._awaited = due

    def next_due(self) -> Micros | None:
        """Return the earliest due instant stored."""
        with self._context.database.read() as connection:
            go_by_key(connection)
            rows = self._keys.first(connection, FROM_THE_BEGINNING, 1)
        return rows[0].due if rows else None

    def _look_first(self, now: Micros, transaction: Transaction | None) -> Chunk | None:
        if transaction is not None:
            return self._look_well(transaction, now)
        with self._context.database.read() as connection:
            go_by_key(connection)
            return self._look_well(connection, now)

    def _look_well(self, connection: Connection, now: Micros) -> Chunk | None:
        nothing = self._look(connection, now)
        if nothing is not None and self._horizon.retreat():
            nothing = self._look(connection, now)
        return nothing

    def _look(self, connection: Connection, now: Micros) -> Chunk | None:
        """Return an empty chunk if surely nothing can be handed out."""
        view = self._horizon.view()
        rows = self._keys.first(connection, view.start, 1)
        if not rows:
            return Chunk("", (), None)
        [first] = rows
        if first.due > (int(first.now) if self._context.has_database_clock else now):
            return Chunk("", (), first.due)
        self._horizon.reach(view, Key(first.due, first.id))
        return None

    def _hand_out(self, turn: Turn, wish: Wish, burst: Key | None) -> Handed:
        """Claim from *burst* on, the end of the chunk before; None to look at all gaps."""
        claims = claims_of(turn.connection, self._context)
        active = self._drop_ended(turn, claims)
        if len(active) < len(claims):
            burst = None  # what the ended claims covered is free, and may be older
        in_flight = sum(one.size for one in active)
        limit = self._room_for(wish, in_flight)
        if not limit:
            again = max(SOONEST, in_flight * PACE)
            return Handed(Chunk("", (), turn.now + again), burst, is_full=True)
        active.sort(key=lambda claim: claim.interval.first)
        keys, next_due = self._free_keys(turn, limit + 1, active, burst)
        if len(keys) > limit:
            next_due = keys.pop().due
        size = wish.size
        claimed = [
            NewClaim(uuid4().hex, keys[start : start + size]) for start in range(0, len(keys), size)
        ]
        add_claims(turn.connection, self._context, claimed, turn.owner, turn.now)
        reach("claiming.claim_added")
        goes_on = claimed and len(claimed[-1].keys) == size
        return Handed(_handed_out(claimed, next_due), keys[-1] if goes_on else None)

    def _room_for(self, wish: Wish, in_flight: int) -> int:
        """Return how many keys may be claimed now; of several chunks all or none.

        To claim one chunk takes as long as to claim five: whoever took the room of each as soon as
        it is dispatched would spend his time, and the dispatcher's, on claims.
        """
        most = self._context.settings.max_in_flight
        room = most - in_flight
        wanted = wish.size * wish.chunks
        if wish.chunks > 1 and room < min(wanted, most // 2):
            return 0
        return max(min(wanted, room), 0)

    def _drop_ended(self, turn: Turn, claims: Sequence[Claim]) -> list[Claim]:
        """Drop the claims that lapsed or whose owner is gone; return the others."""
        others = {claim.owner for claim in claims if claim.claimed_until > turn.now} - {turn.owner}
        gone = self._context.lives.gone(others)
        active, ended = [], []
        for claim in claims:
            over = claim.claimed_until <= turn.now or claim.owner in gone
            if over and self._may_be_dropped(turn.connection, claim):
                reach("claiming.claim_ended")
                ended.append(claim.token)
            else:
                active.append(claim)
        forget(turn.connection, self._context, ended)
        reach("claiming.ended_dropped")
        return active

    def _may_be_dropped(self, connection: Connection, claim: Claim) -> bool:
        """Mark what the claim may have sent; false where a dispatcher still holds its rows."""
        if not may_have_sent(self._context, claim):
            return True
        return mark_free_rows(connection, self._context, claim.interval)

    def _free_keys(
        self, turn: Turn, limit: int, active: Sequence[Claim], burst: Key | None
    ) -> tuple[list[Key], Micros | None]:
        """Return the first due keys of one gap between *active*, and when to look again.

        The second counts where fewer than *limit* were found.
        """
        if burst is not None and all(claim.interval.last <= burst for claim in active):
            keys = self._claimable(turn, behind(burst), None, limit)
            if keys:
                return keys, turn.now  # there may be more in the gaps not looked at
        if not active:
            return self._first_of_all(turn, limit)
        view = self._horizon.view()
        start = view.start
        for first in self._keys.first(turn.connection, start, 1):
            start = Key(first.due, first.id)
            self._horizon.reach(view, start)
        keys = []
        gaps = list(gaps_between(start, active))
        for gap in self._gaps.worth_a_look(turn.connection, gaps, turn.until):
            keys = self._claimable(turn, gap.start, gap.end, limit)
            if keys and gap.end is not None:
                return keys, turn.now
        return keys, None if len(keys) == limit else self._look_again(turn, active)

    def _claimable(self, turn: Turn, start: Key, end: Key | None, limit: int) -> list[Key]:
        return self._keys.claimable(turn.connection, start, end, turn.until, limit)

    def _first_of_all(self, turn: Turn, limit: int) -> tuple[list[Key], Micros | None]:
        """Return the first due keys where no claim is in force, and the due time behind them.

        One statement for what takes three else.
        """
        view = self._horizon.view()
        rows = self._keys.first(turn.connection, view.start, limit)
        due = [row for row in rows if row.due <= turn.until]
        if rows:
            self._horizon.reach(view, Key(rows[0].due, rows[0].id))
        coming = rows[len(due)].due if len(due) < len(rows) else None
        self._await(coming)
        return [Key(row.due, row.id) for row in due], coming

    def _look_again(self, turn: Turn, active: Sequence[Claim]) -> Micros | None:
        future = self._keys.next_due(turn.connection, turn.until)
        self._await(future)
        if any(claim.owner == turn.owner for claim in active):
            # A row that came late into an interval is covered until the claim on it is closed.
            again = turn.now + OWN_AGAIN
        else:
            again = turn.now + OTHERS_AGAIN
        return again if future is None else min(future, again)


def _handed_out(claimed: Sequence[NewClaim], next_due: Micros | None) -> Chunk:
    chunks = [Chunk(claim.token, tuple(claim.keys), next_due) for claim in claimed]
    return replace(chunks[0], others=tuple(chunks[1:])) if chunks else Chunk("", (), next_due)
