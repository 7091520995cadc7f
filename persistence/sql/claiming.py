"""Claims: short-lived intervals in the order of due times, one small row for a whole chunk.

Rows carry no mark of being claimed, so that handing out a hundred costs one insert. Intervals in
force never overlap; what lies outside all of them is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from uuid import uuid4

from sqlalchemy import BindParameter, Connection, bindparam, delete, func, insert, select, text
from sqlalchemy.sql.selectable import Select

from timeoutmgr.contracts import Chunk, Key, Transaction
from timeoutmgr.crashpoints import reach
from timeoutmgr.database.engine import execute_many
from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.instants import Micros, duration_micros

from .conditions import outside
from .context import Interval, StoreContext
from .locks import lock_endpoint
from .marking import mark_free_rows

OWN_AGAIN: Final = 50_000
"""Look again this soon (microseconds) while a claim of our own covers what is due."""
OTHERS_AGAIN: Final = 250_000
"""Look again this soon while others' claims cover what is due."""
_GLANCE: Final = 16

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


class Claiming:
    """Hands out the due keys of one endpoint."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        timeouts = context.tables.timeouts
        self._due, self._id = timeouts.c.due, timeouts.c.id
        mine = (timeouts.c.endpoint == context.endpoint, timeouts.c.hidden_by.is_(None))
        order = (self._due, self._id)
        self._first_few = (
            select(self._due, timeouts.c.next_try, context.now_column)
            .where(*mine)
            .order_by(*order)
            .limit(_GLANCE)
        )
        self._renew_life = False
        self._free: Final[dict[int, Statement]] = {}
        self._next = select(
            select(func.min(self._due))
            .where(*mine, self._due > bindparam("now"))
            .scalar_subquery(),
            select(func.min(timeouts.c.next_try))
            .where(*mine, self._due <= bindparam("now"), timeouts.c.next_try > bindparam("now"))
            .scalar_subquery(),
        )
        self._claimable: Final[Statement] = (
            select(self._due, self._id)
            .where(*mine, self._due <= bindparam("now"), timeouts.c.next_try <= bindparam("now"))
            .order_by(*order)
            .limit(bindparam("limit"))
        )

    def claim(self, now: Micros, limit: int, owner: str, transaction: Transaction | None) -> Chunk:
        """Hand out at most *limit* keys to *owner*, in one read where nothing is due."""
        try:
            return self._claim(now, limit, owner, transaction)
        except StorageUnavailable:
            # The connection that is the owner's life may be lost with the others.
            self._renew_life = True
            raise

    def _claim(self, now: Micros, limit: int, owner: str, transaction: Transaction | None) -> Chunk:
        if transaction is not None:
            looked = self._look(transaction, now)
        else:
            with self._context.database.read() as connection:
                go_by_key(connection)
                looked = self._look(connection, now)
        if isinstance(looked, Chunk):
            return looked
        now = looked

        if self._renew_life:
            self._context.lives.renew(owner)
            self._renew_life = False
        life = self._context.lives.name_of(owner)

        def work(connection: Connection) -> Chunk:
            if transaction is None:
                go_by_key(connection)
            return self._hand_out(connection, now, limit, life)

        return work(transaction) if transaction is not None else self._context.database.run(work)

    def release(self, token: str, maybe_handed_on: bool) -> None:
        """Forget the claim of *token*, unless a dispatcher may be at work under it."""

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

    def next_due(self) -> Micros | None:
        """Return the earliest due instant stored."""
        timeouts = self._context.tables.timeouts
        statement = (
            select(self._due)
            .where(timeouts.c.endpoint == self._context.endpoint, timeouts.c.hidden_by.is_(None))
            .order_by(self._due, self._id)
            .limit(1)
        )
        with self._context.database.read() as connection:
            return connection.execute(statement).scalar()

    def _look(self, connection: Connection, now: Micros) -> Chunk | Micros:
        """Return an empty chunk if surely nothing can be handed out, else the time that counts."""
        rows = connection.execute(self._first_few).all()
        if rows and self._context.has_database_clock:
            now = int(rows[0].now)
        if any(row.due <= now and row.next_try <= now for row in rows):
            return now
        if len(rows) == _GLANCE and rows[-1].due <= now:
            return now  # all wait for another try; there may be due ones behind them
        return Chunk("", (), min((max(row.due, row.next_try) for row in rows), default=None))

    def _hand_out(self, connection: Connection, now: Micros, limit: int, owner: str) -> Chunk:
        lock_endpoint(connection, self._context)
        claims = claims_of(connection, self._context)
        active = self._drop_ended(connection, claims, now, owner)
        limit = min(limit, self._context.settings.max_in_flight - sum(one.size for one in active))
        if limit <= 0:
            return Chunk("", (), now + OWN_AGAIN)
        rows = self._free_keys(connection, now, limit + 1, active)
        keys = _in_one_gap(rows[:limit], active)
        token = ""
        if keys:
            token = uuid4().hex
            add_claim(
                connection, self._context, token, Interval(keys[0], keys[-1]), owner, now, keys
            )
            reach("claiming.claim_added")
        if len(keys) < len(rows):
            return Chunk(token, tuple(keys), rows[len(keys)].due)
        return Chunk(token, tuple(keys), self._look_again(connection, now, active, owner))

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
        self, connection: Connection, now: Micros, limit: int, active: Sequence[Claim]
    ) -> list[Key]:
        statement = self._free.get(len(active))
        if statement is None:
            statement = self._claimable
            for n in range(len(active)):
                first: Pair = (bindparam(f"from_due_{n}"), bindparam(f"from_id_{n}"))
                last: Pair = (bindparam(f"to_due_{n}"), bindparam(f"to_id_{n}"))
                statement = statement.where(outside(self._due, self._id, first, last))
            self._free[len(active)] = statement
        parameters: dict[str, Any] = {"now": now, "limit": limit}
        for n, claim in enumerate(active):
            first_key, last_key = claim.interval.first, claim.interval.last
            parameters |= {f"from_due_{n}": first_key.due, f"from_id_{n}": first_key.id}
            parameters |= {f"to_due_{n}": last_key.due, f"to_id_{n}": last_key.id}
        return [Key(row.due, row.id) for row in connection.execute(statement, parameters)]

    def _look_again(
        self, connection: Connection, now: Micros, active: Sequence[Claim], owner: str
    ) -> Micros | None:
        future, waiting = connection.execute(self._next, {"now": now}).one()
        instants = [instant for instant in (future, waiting) if instant is not None]
        if any(claim.owner == owner for claim in active):
            # A row that came late into an interval is covered until the claim on it is closed.
            instants.append(now + OWN_AGAIN)
        elif active:
            instants.append(now + OTHERS_AGAIN)
        return min(instants, default=None)


def go_by_key(connection: Connection) -> None:
    """Have PostgreSQL read in the order of the key instead of sorting, in this transaction.

    Until a table has statistics it takes an endpoint's rows for a few, and would read and sort
    them all for the first hundred.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET LOCAL enable_sort = off"))


def claims_of(connection: Connection, context: StoreContext) -> list[Claim]:
    """Return all claims of the endpoint, also those that have ended."""
    claims = context.tables.claims
    rows = connection.execute(select(claims).where(claims.c.endpoint == context.endpoint))
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


def add_claim(
    connection: Connection,
    context: StoreContext,
    token: str,
    interval: Interval,
    owner: str,
    now: Micros,
    keys: Sequence[Key],
    taken_by: str | None = None,
) -> None:
    """Insert a claim on *interval* for *keys*."""
    connection.execute(
        insert(context.tables.claims),
        {
            "token": token,
            "endpoint": context.endpoint,
            "from_due": interval.first.due,
            "from_id": interval.first.id,
            "to_due": interval.last.due,
            "to_id": interval.last.id,
            "owner": owner,
            "claimed_until": now + duration_micros(context.settings.claim_time),
            "size": len(keys),
            "taken_by": taken_by,
            "taken_at": now if taken_by else None,
        },
    )


def forget(connection: Connection, context: StoreContext, tokens: Sequence[str]) -> None:
    """Remove claims; what they covered can be claimed at once."""
    claims = context.tables.claims
    statement = delete(claims).where(
        claims.c.token == bindparam("one"), claims.c.endpoint == context.endpoint
    )
    execute_many(connection, statement, [{"one": token} for token in tokens])


def _in_one_gap(keys: Sequence[Key], active: Sequence[Claim]) -> list[Key]:
    """Return the first of *keys*, up to where a claim in force begins."""
    if not keys:
        return []
    starts = (claim.interval.first for claim in active)
    end = min((start for start in starts if start > keys[0]), default=None)
    return [key for key in keys if end is None or key < end]
