"""Close a claim: record the outcome of each dispatch, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    Connection,
    Executable,
    Insert,
    Select,
    Text,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    null,
    select,
    update,
)
from sqlalchemy.dialects import postgresql

from timeoutmgr.contracts import Key, Outcome, OutcomeKind, TimeoutState
from timeoutmgr.crashpoints import reach
from timeoutmgr.database.engine import execute_many
from timeoutmgr.message.instants import Micros
from timeoutmgr.persistence.sql.claim.rows import flag_maybe_sent, lapse, remove_claims
from timeoutmgr.persistence.sql.context import StoreContext
from timeoutmgr.persistence.sql.labels import Headers, LabelRows
from timeoutmgr.persistence.sql.row_changes import RowChanges
from timeoutmgr.persistence.sql.rows import PLACED, OnKeys, at_place, entry_of, is_wanted, record
from timeoutmgr.resilience.after_fork import cached_property

# --- a chunk that was sent completely, closed by PostgreSQL in one statement ----------------------
# Round trips dominate the cost of a chunk: rows, tombstones, history and the claim would each take
# a statement, and most chunks end like this. If the messages go to queues of the same database, the
# statement also sends them, see ``in_database``.

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
    """Return whether the database of *context* supports this."""
    return context.settings.copy and context.database.dialect.name == "postgresql"


def sent_whole(outcomes: Sequence[Outcome], passed_by: Collection[Key]) -> bool:
    """Return whether all was dispatched at one instant, and no other process had a row."""
    return (
        bool(outcomes)
        and not passed_by
        and all(
            one.kind is OutcomeKind.DISPATCHED and not one.maybe_sent and one.at == outcomes[0].at
            for one in outcomes
        )
    )


def closing(
    context: StoreContext,
    keyed: ColumnElement[bool],
    passed_on: Callable[[CTE], Insert] | None = None,
    announcing: ColumnElement[Any] | None = None,
) -> Executable:
    """Return the statement that closes the rows which are *keyed*, without parameters.

    For the parameters see ``BulkClose.close`` and the condition. From the removed rows, *passed_on*
    makes a statement that stores their messages elsewhere; *announcing* is an expression that wakes
    their receivers.
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
            *(_text(state), null(), at),  # for the insert; the existing row keeps its value
        ).order_by(removed.c.id),
    )
    # The row exists: an insert finds it by its primary key, an update by an unknown plan.
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
    announced = None if announcing is None else select(announcing)
    if not is_wanted(context, state):
        return _with(announced, closed, *besides)
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
    return _with(announced, recorded, closed.cte("closed"), *besides)


def _with(announced: Select[Any] | None, statement: Any, *besides: CTE) -> Executable:
    """Return *statement* and *besides* as one statement, which ends in *announced*, if given."""
    if announced is not None:
        return announced.add_cte(statement.cte("stated"), *besides)
    whole: Executable = statement.add_cte(*besides)
    return whole


def _text(value: str) -> Any:
    return bindparam(None, value, type_=Text)


_HEADERS: Final = PLACED.index("headers")
"""Its position in a locked row: positions are faster than names."""
_STATES = {OutcomeKind.DISPATCHED: TimeoutState.DISPATCHED, OutcomeKind.FAILED: TimeoutState.FAILED}


class OutcomeWriter:
    """Records outcomes of one endpoint."""

    _changes = cached_property(lambda s: RowChanges(s._context))

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._at_once = BulkClose(context) if supports_bulk_close(context) else None
        timeouts = context.tables.timeouts
        self._labels = LabelRows(context)
        self._remove = OnKeys(context, delete(timeouts).where)
        one_row = at_place(context)
        self._remove_one = delete(timeouts).where(*one_row)
        self._still_there = OnKeys(context, select(timeouts.c.due, timeouts.c.id).where)
        self._retry = (
            update(timeouts)
            .where(*one_row)
            .ordered_values(  # in MySQL, later assignments see a column's new value
                (timeouts.c.original_due, func.coalesce(timeouts.c.original_due, timeouts.c.due)),
                (timeouts.c.due, bindparam("next_try_")),
                (timeouts.c.attempts, timeouts.c.attempts + 1),
            )
        )
        keys = context.tables.keys
        self._move_key = (
            update(keys)
            .where(
                keys.c.endpoint == context.endpoint,
                keys.c.id == bindparam("id_"),
                keys.c.due == bindparam("due_"),
                keys.c.state == TimeoutState.PENDING.value,
            )
            .values(due=bindparam("next_try_"))
        )

    def record(
        self,
        connection: Connection,
        token: str,
        rows: Mapping[Key, Any],
        outcomes: Sequence[Outcome],
        passed_by: Collection[Key] = (),
    ) -> None:
        """Record *outcomes* of the locked *rows*, and end the claim of *token*.

        *passed_by* are requested keys that were not free, see ``end_claim``. The key is closed
        before its row is deleted, so that a redelivered store message always finds one of the two.
        """
        ours = [outcome for outcome in outcomes if outcome.key in rows]
        if self._at_once is not None and sent_whole(ours, passed_by):
            self._at_once.close(connection, token, [one.key for one in ours], ours[0].at)
            self._labels.remove(connection, _headers(rows, [one.key for one in ours]))
            reach("closing.at_once")
            return
        if len({one.kind for one in ours}) > 1:  # each is written by id, one after the other
            self._changes.lock_keys(connection, [one.key.id for one in ours])
        for kind, state in _STATES.items():
            ended = [outcome for outcome in ours if outcome.kind is kind]
            if ended:
                self._end(connection, rows, ended, state)
        flag_maybe_sent(connection, self._context, [one.key for one in ours if one.maybe_sent])
        reach("closing.retries_marked")
        retries = [one for one in ours if one.kind is OutcomeKind.RETRY]
        self._put_off(connection, rows, retries)
        reach("closing.retries_written")
        self.end_claim(connection, token, passed_by)
        reach("closing.claim_dropped")

    def _put_off(
        self, connection: Connection, rows: Mapping[Key, Any], outcomes: Sequence[Outcome]
    ) -> None:
        """Count the attempts, and move the timeouts to the time of the next try.

        There they do not block other timeouts. A key that was changed since, after fencing failed,
        stays as it is.
        """
        retries = [
            {
                "due_": outcome.key.due,
                "id_": outcome.key.id,
                "next_try_": max(outcome.next_try, outcome.key.due),
            }
            for outcome in sorted(outcomes, key=lambda outcome: outcome.key.id)
        ]
        execute_many(connection, self._retry, retries)
        reach("closing.attempts_counted")
        execute_many(connection, self._move_key, retries)
        dues = {outcome.key: max(outcome.next_try, outcome.key.due) for outcome in outcomes}
        moved = [(one, dues[one[0]]) for one in _headers(rows, dues)]
        self._labels.move(connection, moved)

    def end_claim(self, connection: Connection, token: str, passed_by: Collection[Key]) -> None:
        """End the claim of *token* (empty: none), unless other transactions lock its rows.

        In that case it expires, and the poller drops it when no transaction locks its rows any
        more. The lock may belong to another dispatcher, which ends the claim itself, or to a
        change, which knows no claims.
        """
        if not token:
            return
        if self._is_there(connection, passed_by):
            lapse(connection, self._context, token)
        else:
            remove_claims(connection, self._context, [token])

    def _is_there(self, connection: Connection, keys: Collection[Key]) -> bool:
        """Return whether a row of *keys* is still stored, locked or not."""
        if not keys:
            return False
        found = connection.execute(*self._still_there.of(list(keys)))
        return any(Key(*row) in keys for row in found)

    def _end(
        self,
        connection: Connection,
        rows: Mapping[Key, Any],
        ended: Sequence[Outcome],
        state: TimeoutState,
    ) -> None:
        keys = self._unmoved(connection, [outcome.key for outcome in ended])
        if keys:
            ids = sorted(key.id for key in keys)
            at = max(outcome.at for outcome in ended)
            self._context.writing.close_keys(connection, ids, state, at)
            reach("closing.keys_closed")
            self._remove_rows(connection, keys)
            self._labels.remove(connection, _headers(rows, keys))
            reach("closing.rows_removed")
        # Even for timeouts that were changed after a claim expired: they were sent.
        record(
            connection,
            self._context,
            state.value,
            [entry_of(rows[outcome.key], outcome.at) for outcome in ended],
        )
        reach("closing.history_written")

    def _remove_rows(self, connection: Connection, keys: Sequence[Key]) -> None:
        if not self._context.locks_what_it_reads:
            connection.execute(*self._remove.of(keys))
            return
        rows = [{"due_": key.due, "id_": key.id} for key in keys]
        execute_many(connection, self._remove_one, rows)

    def _unmoved(self, connection: Connection, keys: Sequence[Key]) -> list[Key]:
        """Return the members of *keys* whose rows did not move."""
        if self._context.database.dialect.row_locks:
            return list(keys)  # they are locked
        found = connection.execute(*self._still_there.of(keys))
        return sorted({Key(*row) for row in found} & set(keys))


def _headers(rows: Mapping[Key, Any], keys: Iterable[Key]) -> list[Headers]:
    return [(key, rows[key][_HEADERS]) for key in keys]
