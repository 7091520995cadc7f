"""Claims: short-lived intervals in the order of due times, one small row for a whole chunk.

Rows carry no mark of being claimed, so that handing out a hundred costs one insert. Intervals in
force never overlap; what lies outside all of them is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias
from uuid import uuid4

from sqlalchemy import (
    BindParameter,
    Connection,
    Row,
    bindparam,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.sql.selectable import Select

from timeoutmgr.contracts import Chunk, Key, Transaction
from timeoutmgr.crashpoints import reach
from timeoutmgr.database.engine import execute_many
from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.instants import Micros, duration_micros

from .conditions import before_key, from_key
from .context import Interval, StoreContext
from .horizon import FROM_THE_BEGINNING, Horizon
from .locks import ClaimLock, by_key, lock_endpoint
from .marking import mark_free_rows

OWN_AGAIN: Final = 50_000
"""Look again this soon (microseconds) while a claim of our own covers what is due."""
OTHERS_AGAIN: Final = 250_000
"""Look again this soon while others' claims cover what is due."""
_GLANCE: Final = 16
LONGEST_BURST: Final = 20
"""Chunks that are claimed one behind the other before all gaps are looked at again.

So what another process frees or stores before them comes that much later.
"""

_BY_KEY: Final = select(*by_key())

Pair: TypeAlias = tuple[BindParameter[Any], BindParameter[Any]]
Statement: TypeAlias = Select[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim as it is stored."""

    token: str
    interval: Interval
    owner: str
    claimed_until: Micros
    size: int
    taken: bool


@dataclass(frozen=True, slots=True)
class NewClaim:
    """A claim to be stored on the interval that *keys* span."""

    token: str
    keys: Sequence[Key]


class Claiming:
    """Hands out the due keys of one endpoint."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        timeouts = context.tables.timeouts
        self._due, self._id = timeouts.c.due, timeouts.c.id
        mine = (timeouts.c.endpoint == context.endpoint, timeouts.c.hidden_by.is_(None))
        order = (self._due, self._id)
        start: Pair = (bindparam("start_due"), bindparam("start_id"))
        seen = from_key(context, self._due, self._id, start)
        self._first_few = (
            select(self._due, self._id, timeouts.c.next_try, context.now_column)
            .where(*mine, seen)
            .order_by(*order)
            .limit(bindparam("limit"))
        )
        self._lock = ClaimLock(context)
        self._renew_life = False
        self._horizon = Horizon(context.clock)
        self._burst: Key | None = None
        self._since_all_gaps = 0
        self._awaited: Micros | None = None
        self._next = select(
            select(func.min(self._due))
            .where(*mine, self._due > bindparam("now"))
            .scalar_subquery(),
            select(func.min(timeouts.c.next_try))
            .where(
                *mine, seen, self._due <= bindparam("now"), timeouts.c.next_try > bindparam("now")
            )
            .scalar_subquery(),
        )
        end: Pair = (bindparam("end_due"), bindparam("end_id"))
        self._claimable: Final[Statement] = (
            select(self._due, self._id)
            .where(
                *mine,
                seen,
                self._due <= bindparam("now"),
                timeouts.c.next_try <= bindparam("now"),
            )
            .order_by(*order)
            .limit(bindparam("limit"))
        )
        self._claimable_before: Final[Statement] = (
            select(self._due, self._id)
            .where(
                *mine,
                seen,
                before_key(context, self._due, self._id, end),
                self._due <= bindparam("now"),
                timeouts.c.next_try <= bindparam("now"),
            )
            .order_by(*order)
            .limit(bindparam("limit"))
        )

    def claim(
        self, now: Micros, limit: int, owner: str, chunks: int, transaction: Transaction | None
    ) -> Chunk:
        """Hand out at most *chunks* times *limit* keys, in one read where nothing is due."""
        try:
            return self._claim(now, limit, owner, chunks, transaction)
        except StorageUnavailable:
            # The connection that is the owner's life may be lost with the others.
            self._renew_life = True
            raise

    def _claim(
        self, now: Micros, limit: int, owner: str, chunks: int, transaction: Transaction | None
    ) -> Chunk:
        burst, self._burst = self._burst, None
        if burst is not None or self._is_awaited(now):
            # Something is known to be due: to look first would only cost.
            chunk = self._hand_out_now(now, limit, owner, chunks, transaction, burst)
            if chunk.keys:
                return chunk
            # It is gone. What another process stored before the horizon may be there.
        nothing = self._look_first(now, transaction)
        if nothing is not None:
            self._await(nothing.next_due)
            return nothing
        return self._hand_out_now(now, limit, owner, chunks, transaction, None)

    def _hand_out_now(
        self,
        now: Micros,
        limit: int,
        owner: str,
        chunks: int,
        transaction: Transaction | None,
        burst: Key | None,
    ) -> Chunk:
        """Claim in *transaction*, or in one of its own."""
        if self._renew_life:
            self._context.lives.renew(owner)
            self._renew_life = False
        life = self._context.lives.name_of(owner)

        def work(connection: Connection) -> Chunk:
            return self._hand_out(connection, now, (limit, chunks), life, burst)

        if transaction is not None:
            return work(transaction)
        chunk = self._context.database.run(work)
        claimed = chunk.all
        if claimed and len(claimed[-1].keys) == limit:
            self._since_all_gaps += len(claimed)
            if self._since_all_gaps < LONGEST_BURST:
                self._burst = claimed[-1].keys[-1]
            else:  # now and then all of it: an old row may have come meanwhile
                self._since_all_gaps = 0
        return chunk

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

    def _is_awaited(self, now: Micros) -> bool:
        awaited, self._awaited = self._awaited, None
        return awaited is not None and awaited <= now

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
            rows = self._read(connection, FROM_THE_BEGINNING, 1)
        return rows[0].due if rows else None

    def _read(self, connection: Connection, start: Key, limit: int) -> Sequence[Row[Any]]:
        """Return the first rows there are from *start* on."""
        return connection.execute(self._first_few, {**_start(start), "limit": limit}).all()

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
        rows = self._read(connection, view.start, _GLANCE)
        if rows and self._context.has_database_clock:
            now = int(rows[0].now)
        is_due = any(row.due <= now and row.next_try <= now for row in rows)
        # Where all of them wait for another try, there may be due ones behind them.
        if is_due or (len(rows) == _GLANCE and rows[-1].due <= now):
            self._horizon.reach(view, Key(rows[0].due, rows[0].id))
            return None
        return Chunk("", (), min((max(row.due, row.next_try) for row in rows), default=None))

    def _hand_out(
        self,
        connection: Connection,
        now: Micros,
        most: tuple[int, int],
        owner: str,
        burst: Key | None,
    ) -> Chunk:
        """Claim from *burst* on, the end of the chunk before; None to look at all gaps.

        *most* are the keys of a chunk and the chunks.
        """
        size, chunks = most
        now = self._lock.wait(connection, now)
        claims = claims_of(connection, self._context)
        active = self._drop_ended(connection, claims, now, owner)
        room = self._context.settings.max_in_flight - sum(one.size for one in active)
        limit = min(size * chunks, room)
        if limit <= 0:
            return Chunk("", (), now + OWN_AGAIN)
        active.sort(key=lambda claim: claim.interval.first)
        if len(active) < len(claims):
            burst = None  # what the ended claims covered is free, and may be older
        rows, is_last_gap = self._free_keys(connection, now, limit + 1, active, burst)
        keys = rows[:limit]
        claimed = [
            NewClaim(uuid4().hex, keys[start : start + size]) for start in range(0, len(keys), size)
        ]
        add_claims(connection, self._context, claimed, owner, now)
        reach("claiming.claim_added")
        if len(keys) < len(rows):
            return _handed_out(claimed, rows[len(keys)].due)
        if not is_last_gap:
            return _handed_out(claimed, now)  # there may be more in the gaps not looked at
        return _handed_out(claimed, self._look_again(connection, now, active, owner))

    def _drop_ended(
        self, connection: Connection, claims: Sequence[Claim], now: Micros, owner: str
    ) -> list[Claim]:
        """Drop the claims that lapsed or whose owner is gone; return the others."""
        others = {claim.owner for claim in claims if claim.claimed_until > now} - {owner}
        gone = self._context.lives.gone(others)
        active, ended = [], []
        for claim in claims:
            over = claim.claimed_until <= now or claim.owner in gone
            if over and self._may_be_dropped(connection, claim):
                reach("claiming.claim_ended")
                ended.append(claim.token)
            else:
                active.append(claim)
        forget(connection, self._context, ended)
        reach("claiming.ended_dropped")
        return active

    def _may_be_dropped(self, connection: Connection, claim: Claim) -> bool:
        """Mark what the claim may have sent; false where a dispatcher still holds its rows."""
        if not may_have_sent(self._context, claim):
            return True
        return mark_free_rows(connection, self._context, claim.interval)

    def _free_keys(
        self,
        connection: Connection,
        now: Micros,
        limit: int,
        active: Sequence[Claim],
        burst: Key | None,
    ) -> tuple[list[Key], bool]:
        """Return the first due keys of one gap between *active*, and whether it was the last."""
        if burst is not None and all(claim.interval.last <= burst for claim in active):
            keys = self._claimable_in(connection, now, limit, _behind(burst), None)
            if keys:
                return keys, False
        view = self._horizon.view()
        start = view.start
        for first in self._read(connection, start, 1):
            start = Key(first.due, first.id)
            self._horizon.reach(view, start)
        for claim in active:
            keys = self._claimable_in(connection, now, limit, start, claim.interval.first)
            if keys:
                return keys, False
            start = max(start, _behind(claim.interval.last))
        return self._claimable_in(connection, now, limit, start, None), True

    def _claimable_in(
        self, connection: Connection, now: Micros, limit: int, start: Key, end: Key | None
    ) -> list[Key]:
        """Return the first claimable keys from *start* on and before *end*."""
        if end is not None and end <= start:
            return []
        parameters: dict[str, Any] = {**_start(start), "now": now, "limit": limit}
        if end is not None:
            parameters |= {"end_due": end.due, "end_id": end.id}
        if end is None:
            rows = connection.execute(self._claimable, parameters)
        else:
            rows = connection.execute(self._claimable_before, parameters)
        return [Key(row.due, row.id) for row in rows]

    def _look_again(
        self, connection: Connection, now: Micros, active: Sequence[Claim], owner: str
    ) -> Micros | None:
        future, waiting = connection.execute(
            self._next, {**_start(self._horizon.view().start), "now": now}
        ).one()
        self._await(future)
        instants = [instant for instant in (future, waiting) if instant is not None]
        if any(claim.owner == owner for claim in active):
            # A row that came late into an interval is covered until the claim on it is closed.
            instants.append(now + OWN_AGAIN)
        elif active:
            instants.append(now + OTHERS_AGAIN)
        return min(instants, default=None)


def go_by_key(connection: Connection) -> None:
    """Have PostgreSQL read in the order of the key, by plans it has, in this transaction."""
    if connection.dialect.name == "postgresql":
        connection.execute(_BY_KEY)


def claims_of(connection: Connection, context: StoreContext) -> list[Claim]:
    """Return all claims of the endpoint, also those that have ended."""
    rows = connection.execute(context.claims)
    return [
        Claim(
            row.token,
            Interval(Key(row.from_due, row.from_id), Key(row.to_due, row.to_id)),
            row.owner,
            row.claimed_until,
            row.size,
            row.taken_by is not None,
        )
        for row in rows
    ]


def may_have_sent(context: StoreContext, claim: Claim) -> bool:
    """Return whether something may have been sent under *claim* without this being recorded.

    A dispatcher with row locks leaves no trace before it closes: any claim may be in use. On
    SQLite the fence tells, and it is only raised where the dispatch is no part of a transaction.
    """
    return not context.atomic if context.database.dialect.row_locks else claim.taken


def add_claims(
    connection: Connection,
    context: StoreContext,
    claims: Sequence[NewClaim],
    owner: str,
    now: Micros,
    taken_by: str | None = None,
) -> None:
    """Insert *claims*, each on the interval that its keys span."""
    rows = [
        {
            "token": claim.token,
            "endpoint": context.endpoint,
            "from_due": min(claim.keys).due,
            "from_id": min(claim.keys).id,
            "to_due": max(claim.keys).due,
            "to_id": max(claim.keys).id,
            "owner": owner,
            "claimed_until": now + duration_micros(context.settings.claim_time),
            "size": len(claim.keys),
            "taken_by": taken_by,
            "taken_at": now if taken_by else None,
        }
        for claim in claims
    ]
    execute_many(connection, insert(context.tables.claims), rows)


def _handed_out(claimed: Sequence[NewClaim], next_due: Micros | None) -> Chunk:
    chunks = [Chunk(claim.token, tuple(claim.keys), next_due) for claim in claimed]
    return replace(chunks[0], others=tuple(chunks[1:])) if chunks else Chunk("", (), next_due)


def forget(connection: Connection, context: StoreContext, tokens: Sequence[str]) -> None:
    """Remove claims; what they covered can be claimed at once."""
    claims = context.tables.claims
    statement = delete(claims).where(
        claims.c.token == bindparam("one"), claims.c.endpoint == context.endpoint
    )
    execute_many(connection, statement, [{"one": token} for token in tokens])


def lapse(connection: Connection, context: StoreContext, token: str) -> None:
    """Have the claim of *token* end when nobody holds a row of it any more."""
    claims = context.tables.claims
    statement = update(claims).where(claims.c.token == token, claims.c.endpoint == context.endpoint)
    connection.execute(statement.values(claimed_until=0))


def _start(key: Key) -> dict[str, Any]:
    return {"start_due": key.due, "start_id": key.id}


def _behind(key: Key) -> Key:
    """Return a key between *key* and the next that there can be: ids have no control signs."""
    return Key(key.due, key.id + "\x01")
