"""A chunk that was sent whole, closed by PostgreSQL in one statement.

A chunk is short of nothing so much as of round trips: rows, tombstones, history and the claim would
each take a statement, and most chunks end like this. Where its messages go to queues of the same
database, the statement also sends them, see ``in_database``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    Connection,
    Executable,
    Insert,
    Text,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    null,
    select,
)
from sqlalchemy.dialects import postgresql

from timeoutmgr.contracts import Key, Outcome, OutcomeKind, TimeoutState
from timeoutmgr.message.instants import Micros
from timeoutmgr.persistence.sql.conditions import OnKeys
from timeoutmgr.persistence.sql.context import StoreContext
from timeoutmgr.persistence.sql.rows import is_wanted

MESSAGE: Final = ("message_id", "headers", "body", "content_type", "content_encoding")
"""The columns of the message itself."""


class BulkClose:
    """Closes chunks of one endpoint whose rows this transaction has locked."""

    def __init__(self, context: StoreContext) -> None:
        self._close: Final = OnKeys(context, lambda keyed: closing(context, keyed))

    def close(self, connection: Connection, token: str, keys: Sequence[Key], at: Micros) -> None:
        """Record that *keys* were dispatched at the instant *at*, and end the claim of *token*."""
        connection.execute(*self._close.of(keys, token=token, at=at))


def supports_bulk_close(context: StoreContext) -> bool:
    """Return whether the database of *context* can."""
    return context.settings.copy and context.database.dialect.name == "postgresql"


def sent_whole(outcomes: Sequence[Outcome], passed_by: Collection[Key]) -> bool:
    """Return whether all was dispatched at one instant, while no other process had a row."""
    return (
        bool(outcomes)
        and not passed_by
        and all(one.kind is OutcomeKind.DISPATCHED for one in outcomes)
        and not any(one.maybe_sent for one in outcomes)
        and len({one.at for one in outcomes}) == 1
    )


def closing(
    context: StoreContext,
    keyed: ColumnElement[bool],
    passed_on: Callable[[CTE], Insert] | None = None,
) -> Executable:
    """Return the statement that closes the rows which are *keyed*, with its parameters open.

    The parameters are listed at ``BulkClose.close`` and in the condition. *passed_on* makes of the
    rows that are removed a statement that keeps their messages elsewhere.
    """
    timeouts, keys = context.tables.timeouts, context.tables.keys
    history, claims = context.tables.history, context.tables.claims
    at = bindparam("at", type_=BigInteger)
    state = TimeoutState.DISPATCHED.value
    removed = (
        delete(timeouts)
        .where(keyed)
        .returning(
            *(timeouts.c.endpoint, timeouts.c.due, timeouts.c.id),
            *(timeouts.c.destination, timeouts.c.attempts, timeouts.c.run_id),
            func.coalesce(timeouts.c.original_due, timeouts.c.due).label("due_first"),
            *(timeouts.c[name] for name in (MESSAGE if passed_on else ())),
        )
        .cte("gone")
    )
    closed: Any = postgresql.insert(keys).from_select(
        ["endpoint", "id", "due", "version", "state", "maybe_sent", "closed_at"],
        select(
            *(removed.c.endpoint, removed.c.id, removed.c.due, literal_column("0")),
            *(_text(state), null(), at),  # of an insert; the row that is there keeps its mark
        ).order_by(removed.c.id),
    )
    # The row is there: an insert finds it by its primary key, an update by an unknown plan.
    closed = closed.on_conflict_do_update(
        index_elements=[keys.c.endpoint, keys.c.id],
        set_={"state": closed.excluded.state, "closed_at": closed.excluded.closed_at},
    )
    ended = delete(claims).where(
        claims.c.token == bindparam("token"), claims.c.endpoint == bindparam("endpoint")
    )
    besides = [
        ended.cte("ended"),
        *([] if passed_on is None else [passed_on(removed).cte("passed")]),
    ]
    if not is_wanted(context, state):
        only: Executable = closed.add_cte(*besides)
        return only
    recorded = insert(history).from_select(
        ["id", "due", "at", "destination", "attempt", "run_id", "event", "endpoint", "node"],
        select(
            *(
                removed.c.id,
                removed.c.due_first,
                at,
                removed.c.destination,
                removed.c.attempts,
                removed.c.run_id,
            ),
            *(_text(state), removed.c.endpoint, bindparam("node", context.node, type_=Text)),
        ),
    )
    return recorded.add_cte(closed.cte("closed"), *besides)


def _text(value: str) -> Any:
    return bindparam(None, value, type_=Text)
