"""Claims as they are stored: read, added, and ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, delete, insert, update

from timeoutmgr.contracts import Key
from timeoutmgr.database.engine import execute_many
from timeoutmgr.instants import Micros, duration_micros

from .context import Interval, StoreContext


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


def claims_of(connection: Connection, context: StoreContext) -> list[Claim]:
    """Return all claims of the endpoint, also those that have ended."""
    rows = connection.execute(context.claims)
    return [
        Claim(token, Interval(Key(*first), Key(*last)), owner, until, size, taken_by is not None)
        for token, *ends, owner, until, size, taken_by in rows
        for first, last in [(ends[:2], ends[2:])]
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
    rows = []
    for claim in claims:
        first, last = min(claim.keys), max(claim.keys)
        rows.append(
            {
                "token": claim.token,
                "endpoint": context.endpoint,
                "from_due": first.due,
                "from_id": first.id,
                "to_due": last.due,
                "to_id": last.id,
                "owner": owner,
                "claimed_until": now + duration_micros(context.settings.claim_time),
                "size": len(claim.keys),
                "taken_by": taken_by,
                "taken_at": now if taken_by else None,
            }
        )
    execute_many(connection, insert(context.tables.claims), rows)


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
