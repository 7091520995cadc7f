"""Read, add and end rows of claims; set the maybe-sent flag on rows that they cover."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from sqlalchemy import (
    BindParameter,
    Connection,
    Row,
    bindparam,
    delete,
    func,
    insert,
    null,
    select,
    true,
    union_all,
    update,
)
from sqlalchemy.sql.selectable import Select

from timeoutmgr.contracts import Key
from timeoutmgr.database.engine import execute_many
from timeoutmgr.message.instants import Micros, duration_micros
from timeoutmgr.persistence.sql.context import Interval, StoreContext
from timeoutmgr.persistence.sql.rows import at_place, before_key, from_key, within

# --- the keys of one endpoint's pending timeouts, read in the order of their due times --------

Pair: TypeAlias = tuple[BindParameter[Any], BindParameter[Any]]
Statement: TypeAlias = Select[tuple[Any, ...]]


class DueKeys:
    """Statements on due keys, built once because they run for every chunk."""

    def __init__(self, context: StoreContext) -> None:
        timeouts = context.tables.timeouts
        due, id_ = timeouts.c.due, timeouts.c.id
        start: Pair = (bindparam("start_due"), bindparam("start_id"))
        end: Pair = (bindparam("end_due"), bindparam("end_id"))
        mine = (timeouts.c.endpoint == context.endpoint, timeouts.c.hidden_by.is_(None))
        seen = from_key(context, due, id_, start)
        now: BindParameter[Any] = bindparam("now")
        self._first: Final[Statement] = (
            select(due, id_, context.now_column)
            .where(*mine, seen)
            .order_by(due, id_)
            .limit(bindparam("limit"))
        )
        self._claimable: Final[Statement] = (
            select(due, id_)
            .where(*mine, seen, due <= now)
            .order_by(due, id_)
            .limit(bindparam("limit"))
        )
        # SQLite uses only the first upper bound with the index. That must be *end*: otherwise it
        # reads ten thousand rows of one instant to find that none comes before *end*.
        is_due = due + 0 <= now if context.database.is_sqlite else due <= now
        self._claimable_before: Final[Statement] = (
            select(due, id_)
            .where(*mine, seen, before_key(context, due, id_, end), is_due)
            .order_by(due, id_)
            .limit(bindparam("limit"))
        )
        # Not min(): a plan for few timeouts would read all rows to find it.
        self._next_due: Final = select(due).where(*mine, due > now).order_by(due, id_).limit(1)
        # Each round trip of a claim counts: they are the cost if one timeout is due at a time.
        self._claimable_and_next: Final = union_all(
            select(self._claimable.subquery()), select(self._next_due.subquery(), null())
        )
        first = (
            select(due, id_).where(*mine, seen).order_by(due, id_).limit(1).subquery("first_row")
        )
        self._claims_and_first: Final = context.claims.add_columns(
            first.c.due, first.c.id
        ).select_from(context.tables.claims.outerjoin(first, true()))
        self._upcoming: Final = select(context.now_column, self._next_due.scalar_subquery())

    def first(self, connection: Connection, start: Key, limit: int) -> Sequence[Row[Any]]:
        """Return the first rows from *start* on: due, id, now."""
        return connection.execute(self._first, {**_start(start), "limit": limit}).all()

    def claimable(
        self, connection: Connection, start: Key, end: Key | None, until: Micros, limit: int
    ) -> list[Key]:
        """Return the first keys from *start* on and before *end* that are due by *until*."""
        if end is not None and end <= start:
            return []
        parameters: dict[str, Any] = {**_start(start), "now": until, "limit": limit}
        if end is None:
            rows = connection.execute(self._claimable, parameters)
        else:
            before = {"end_due": end.due, "end_id": end.id}
            rows = connection.execute(self._claimable_before, parameters | before)
        return list(map(Key._make, rows))

    def claimable_and_next(
        self, connection: Connection, start: Key, until: Micros, limit: int
    ) -> tuple[list[Key], Micros | None]:
        """Return the first keys from *start* on that are due by *until*, and the next due time."""
        parameters = {**_start(start), "now": until, "limit": limit}
        rows = connection.execute(self._claimable_and_next, parameters).all()
        coming = next((int(due) for due, id_ in rows if id_ is None), None)
        return [Key(due, id_) for due, id_ in rows if id_ is not None], coming

    def claims_and_first(
        self, connection: Connection, start: Key
    ) -> tuple[list[Claim], Key | None]:
        """Return all claims, and if there are any the first key from *start* on."""
        rows = connection.execute(self._claims_and_first, _start(start)).all()
        due, id_ = rows[0][-2:] if rows else (None, None)
        first = None if due is None or id_ is None else Key(int(due), id_)
        return [_claim(*row[:-2]) for row in rows], first

    def upcoming(self, connection: Connection, behind: Micros) -> tuple[Micros, Micros | None]:
        """Return, by one statement, the database's clock and the first due time after *behind*."""
        now, due = connection.execute(self._upcoming, {"now": behind}).one()
        return int(now), None if due is None else int(due)


def _start(key: Key) -> dict[str, Any]:
    return {"start_due": key.due, "start_id": key.id}


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim as it is stored."""

    token: str
    interval: Interval
    owner: str
    claimed_until: Micros
    size: int
    is_locked: bool


@dataclass(frozen=True, slots=True)
class NewClaim:
    """A claim to be stored, on the interval that *keys* span."""

    token: str
    keys: Sequence[Key]


def claims_of(connection: Connection, context: StoreContext) -> list[Claim]:
    """Return all claims of the endpoint, including ended claims."""
    return [_claim(*row) for row in connection.execute(context.claims)]


def _claim(
    token: str,
    from_due: Micros,
    from_id: str,
    to_due: Micros,
    to_id: str,
    owner: str,
    until: Micros,
    size: int,
    locked_by: str | None,
) -> Claim:
    interval = Interval(Key(from_due, from_id), Key(to_due, to_id))
    return Claim(token, interval, owner, until, size, locked_by is not None)


def may_have_sent(context: StoreContext, claim: Claim) -> bool:
    """Return whether messages may have been sent under *claim* without a record of it.

    A dispatcher with row locks leaves no trace before it closes: any claim may be in use. On SQLite
    the fence tells, which is raised only if the dispatch is not part of a transaction.
    """
    return not context.atomic if context.database.dialect.row_locks else claim.is_locked


def add_claims(
    connection: Connection,
    context: StoreContext,
    claims: Sequence[NewClaim],
    owner: str,
    now: Micros,
    locked_by: str | None = None,
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
                "taken_by": locked_by,
                "taken_at": now if locked_by else None,
            }
        )
    execute_many(connection, insert(context.tables.claims), rows)


def remove_claims(connection: Connection, context: StoreContext, tokens: Sequence[str]) -> None:
    """Remove claims; their keys can be claimed again at once."""
    claims = context.tables.claims
    statement = delete(claims).where(
        claims.c.token == bindparam("one"), claims.c.endpoint == context.endpoint
    )
    execute_many(connection, statement, [{"one": token} for token in tokens])


def lapse(connection: Connection, context: StoreContext, token: str) -> None:
    """Let the claim of *token* end as soon as no transaction locks its rows."""
    claims = context.tables.claims
    statement = update(claims).where(claims.c.token == token, claims.c.endpoint == context.endpoint)
    connection.execute(statement.values(claimed_until=0))


def flag_free_rows(connection: Connection, context: StoreContext, interval: Interval) -> bool:
    """Flag all rows of *interval*; return false, and flag none, if another transaction locks a row.

    A locked row means that a dispatcher is at work there, even after the claim has expired.
    """
    timeouts = context.tables.timeouts
    inside = (
        timeouts.c.endpoint == context.endpoint,
        within(context, interval.first, interval.last),
    )
    free = [
        Key(*row)
        for row in connection.execute(
            select(timeouts.c.due, timeouts.c.id).where(*inside).with_for_update(skip_locked=True)
        )
    ]
    if context.database.dialect.row_locks:
        # Counted after locking: a row that arrived meanwhile only delays the drop.
        count = select(func.count()).select_from(timeouts).where(*inside)
        if connection.execute(count).scalar_one() > len(free):
            return False
    flag_maybe_sent(connection, context, free)
    return True


def flag_maybe_sent(connection: Connection, context: StoreContext, keys: Sequence[Key]) -> None:
    """Flag the rows of *keys* as maybe sent."""
    statement = update(context.tables.timeouts).where(*at_place(context)).values(maybe_sent=1)
    execute_many(connection, statement, [{"due_": key.due, "id_": key.id} for key in keys])
