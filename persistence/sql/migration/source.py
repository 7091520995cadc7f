"""An SQL store as a source: timeouts are hidden batch by batch, and removed once moved.

The flag ``hidden_by`` excludes a row from claims, dispatches, cancels and reschedules. It is set on
a batch just before the batch moves: until then the source delivers, lists and cancels as usual, so
no timeout is late because its batch waits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Select,
    Text,
    bindparam,
    delete,
    func,
    insert,
    select,
    update,
)

from timeoutmgr.contracts import Key, ScheduleRecord, TimeoutState
from timeoutmgr.crashpoints import reach
from timeoutmgr.database.engine import execute_many
from timeoutmgr.errors import MigrationFailed
from timeoutmgr.message.headers import ROUTE
from timeoutmgr.message.instants import Micros
from timeoutmgr.migration import Batch, Item, KeyRange, Problem, Source, Survey, Window
from timeoutmgr.migration.ports import LedgerWrite
from timeoutmgr.migration.runs import in_ranges
from timeoutmgr.persistence.sql.claim.rows import claims_of
from timeoutmgr.persistence.sql.context import StoreContext, go_by_key, lock_endpoint
from timeoutmgr.persistence.sql.dispatch.outcomes import supports_bulk_close
from timeoutmgr.persistence.sql.labels import of_timeouts
from timeoutmgr.persistence.sql.row_changes import BY_PRIMARY_KEY
from timeoutmgr.persistence.sql.rows import (
    PLACED,
    at_place,
    entry,
    from_placed,
    is_wanted,
    record,
    within,
)

from .target import OPEN, StoreParticipant

# --- one statement removes a moved batch from PostgreSQL: rows, tombstones and history ------------
# The server already has all the data. Sending it ids and history rows took a fifth more time.

_STATE: Final = TimeoutState.MIGRATED.value


class RemovingAtOnce:
    """Removes hidden batches of one endpoint; no other process writes hidden rows."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._statement: Final = _statement(context)

    def remove(
        self, connection: Connection, run_id: str, batch: Batch, at: Micros
    ) -> tuple[int, int]:
        """Remove the hidden rows of *batch*; return the counts of rows and of tombstones."""
        connection.exec_driver_sql(BY_PRIMARY_KEY)
        span = batch.range
        parameters = {
            "mine": self._context.endpoint,
            "first_due": span.first.due,
            "first_id": span.first.id,
            "last_due": span.last.due,
            "last_id": span.last.id,
            "run": run_id,
            "at": at,
            "node": self._context.node,
        }
        removed, closed = connection.execute(self._statement, parameters).one()
        return removed, closed


def _statement(context: StoreContext) -> Select[Any]:
    timeouts, keys, history = context.tables.timeouts, context.tables.keys, context.tables.history
    endpoint, run = bindparam("mine", type_=Text), bindparam("run", type_=Text)
    at = bindparam("at", type_=BigInteger)
    first = (bindparam("first_due", type_=BigInteger), bindparam("first_id", type_=Text))
    last = (bindparam("last_due", type_=BigInteger), bindparam("last_id", type_=Text))
    moved = (
        delete(timeouts)
        .where(
            timeouts.c.endpoint == endpoint,
            within(context, first, last),
            timeouts.c.hidden_by == run,
        )
        .returning(
            func.coalesce(timeouts.c.original_due, timeouts.c.due).label("due"),
            *(timeouts.c.id, timeouts.c.destination, timeouts.c.attempts),
        )
        .cte("gone")
    )
    # By id: processes that close the same keys wait in the same order.
    ids = select(moved.c.id).order_by(moved.c.id).subquery("ids")
    closed = (
        update(keys)
        .where(keys.c.endpoint == endpoint, keys.c.id == ids.c.id)
        .values(state=_STATE, closed_at=at)
        .returning(keys.c.id)
        .cte("closed")
    )
    counts = select(
        select(func.count()).select_from(moved).scalar_subquery(),
        select(func.count()).select_from(closed).scalar_subquery(),
    )
    if not is_wanted(context, _STATE):
        return counts
    written = insert(history).from_select(
        ["id", "due", "at", "destination", "attempt", "run_id", "event", "endpoint", "node"],
        select(
            *(moved.c.id, moved.c.due, at, moved.c.destination, moved.c.attempts, run),
            *(bindparam(None, _STATE, type_=Text), endpoint, bindparam("node", type_=Text)),
        ),
    )
    return counts.add_cte(written.cte("told"))


_MOST_DESTINATIONS: Final = 10_000
_AT_ONCE: Final = 1_000


class SqlSource(StoreParticipant, Source):
    """See :class:`timeoutmgr.migration.Source`; the pending timeouts of one endpoint."""

    hides_atomically: Final = True

    def __init__(self, context: StoreContext, name: str, queues_only: bool = False) -> None:
        super().__init__(context, name)
        self._queues_only = queues_only
        self._timeouts = context.tables.timeouts
        self._at_once = RemovingAtOnce(context) if supports_bulk_close(context) else None

    def survey(self, window: Window) -> Survey:
        """Return the survey of a run that would begin now."""
        timeouts = self._timeouts
        with self._context.database.read() as connection:
            now = self._context.now(connection)
            selected = self._within(window, now)
            found = connection.execute(
                select(func.count(), func.min(timeouts.c.due), func.max(timeouts.c.due)).where(
                    *selected
                )
            ).one()
            destinations = connection.execute(
                select(timeouts.c.destination, func.count())
                .where(*selected)
                .group_by(timeouts.c.destination)
                .limit(_MOST_DESTINATIONS)
            )
            all_pending = connection.execute(
                select(func.count()).where(timeouts.c.endpoint == self._context.endpoint)
            ).scalar_one()
            return Survey(
                count=found[0],
                earliest=found[1],
                latest=found[2],
                destinations={name: many for name, many in destinations},
                problems=(*self._arriving(connection), *self._paused(connection)),
                left=all_pending - found[0],
                schedules=tuple(self._with_pending_runs(connection)),
            )

    def schedules(self) -> Sequence[ScheduleRecord]:
        """Return the records of the schedules of the endpoint."""
        return self._schedules.records()

    def _with_pending_runs(self, connection: Connection) -> Iterator[ScheduleRecord]:
        timeouts = self._timeouts.c
        for each in self.schedules():
            run = (timeouts.due == each.run_due, timeouts.id == each.run_id)
            mine = select(timeouts.id).where(timeouts.endpoint == self._context.endpoint, *run)
            is_pending = connection.execute(mine).first() is not None
            yield each if is_pending else replace(each, run_due=None, run_id=None)

    def _paused(self, connection: Connection) -> Iterator[Problem]:
        """Yield pauses as problems: parked timeouts would move to a target without the pause."""
        pauses = self._context.tables.pauses
        mine = pauses.c.endpoint == self._context.endpoint
        for name in connection.execute(select(pauses.c.destination).where(mine)).scalars():
            what = name or "every destination"
            yield Problem(self._name, f"dispatch to {what} is paused", "resume it first")

    def _arriving(self, connection: Connection) -> Iterator[Problem]:
        """Yield open runs into this store as problems: continued later, they undo this move."""
        tokens = self._context.tables.fencing_tokens
        mine = (tokens.c.endpoint == self._context.endpoint, tokens.c.state == OPEN)
        for run_id in connection.execute(select(tokens.c.run_id).where(*mine)).scalars():
            what = f"run {run_id} into it is open"
            yield Problem(self._name, what, "finish or abort that one first")

    def ranges(self, window: Window, size: int) -> Iterator[KeyRange]:
        """Yield ranges of *size* timeouts and a smaller last range, nearest due first.

        With large bodies, ranges have fewer. Keys and sizes are streamed: a sum over many bodies,
        which MySQL must read for that, would take so long that it looks like an outage.
        """
        timeouts, now = self._timeouts, self.now()
        statement = (
            select(timeouts.c.due, timeouts.c.id, func.length(timeouts.c.body))
            .where(*self._within(window, now))
            .order_by(timeouts.c.due, timeouts.c.id)
        )
        with self._context.database.read() as connection:
            go_by_key(connection)
            rows = connection.execution_options(yield_per=_AT_ONCE).execute(statement)
            yield from in_ranges(((Key(due, id_), size_) for due, id_, size_ in rows), size)

    def is_same_store_as_target(self, run_id: str) -> bool:
        """Return whether the run's fencing token is in the tables of this source."""
        tokens = self._context.tables.fencing_tokens
        token = select(tokens.c.run_id).where(tokens.c.run_id == run_id)
        with self._context.database.read() as connection:
            return connection.execute(token).first() is not None

    def hide(self, run_id: str, batch: Batch, window: Window, write: LedgerWrite) -> None:
        """Flag the rows of the batch's range that are still within *window*."""
        timeouts, span = self._timeouts, batch.range

        def work(connection: Connection) -> None:
            if window.overdue:
                self._refuse_claims(connection)
            now = self._context.now(connection)
            hidden = connection.execute(
                update(timeouts)
                .where(*self._within(window, now), within(self._context, span.first, span.last))
                .values(hidden_by=run_id)
            ).rowcount
            reach("leaving.hidden")
            for problem in self._paused(connection):  # a pause that began during the run
                raise MigrationFailed(f"run {run_id}: {problem}; then run again")
            write(connection, hidden)

        self._context.database.run(work)

    def read(self, run_id: str, batch: Batch) -> Sequence[Item]:
        """Return the hidden rows of the batch."""
        timeouts = self._timeouts
        statement = (
            select(timeouts.c.maybe_sent, *(timeouts.c[name] for name in PLACED))
            .where(*self._hidden(run_id, batch))
            .order_by(timeouts.c.due, timeouts.c.id)
        )
        with self._context.database.read() as connection:
            go_by_key(connection)  # sorting whole rows would use a temporary file
            rows = connection.execute(statement).all()
        return [
            Item(timeout=from_placed(values), maybe_sent=bool(maybe_sent))
            for maybe_sent, *values in rows
        ]

    def remove(self, run_id: str, batch: Batch, items: Sequence[Item], write: LedgerWrite) -> None:
        """Remove the batch's rows and leave tombstones, in one transaction with the ledger."""

        def work(connection: Connection) -> None:
            if self._at_once is None:
                removed = connection.execute(
                    delete(self._timeouts).where(*self._hidden(run_id, batch))
                ).rowcount
                reach("leaving.rows_removed")
                self._close(connection, items, run_id)
            else:
                removed = self._remove_at_once(connection, self._at_once, run_id, batch, items)
            write(connection, removed)

        self._context.database.run(work)

    def _remove_at_once(
        self,
        connection: Connection,
        at_once: RemovingAtOnce,
        run_id: str,
        batch: Batch,
        items: Sequence[Item],
    ) -> int:
        at = self._context.now(connection)
        removed, closed = at_once.remove(connection, run_id, batch, at)
        # One statement does all three: a crash at any point has committed none.
        reach("leaving.rows_removed")
        if closed != removed:
            # A row without a key: insert a tombstone, or a redelivery would bring the timeout back.
            ids = sorted(item.timeout.id for item in items)
            self._context.writing.close_keys(connection, ids, TimeoutState.MIGRATED, at)
        self._remove_labels(connection, items)
        reach("leaving.keys_closed")
        reach("leaving.history_written")
        return removed

    def _remove_labels(self, connection: Connection, items: Sequence[Item]) -> None:
        self._labels.remove(connection, of_timeouts(item.timeout for item in items))

    def restore(
        self,
        run_id: str,
        batch: Batch,
        items: Sequence[Item],
        there: Collection[str],
        write: LedgerWrite,
    ) -> None:
        """Remove the timeouts *there* and unhide the rest, in one transaction with the ledger."""
        timeouts = self._timeouts
        dead = [item for item in items if item.timeout.id in there]
        rows = [{"due_": one.timeout.key.due, "id_": one.timeout.id} for one in dead]
        remove = delete(timeouts).where(*at_place(self._context))

        def work(connection: Connection) -> None:
            execute_many(connection, remove, rows)
            reach("leaving.some_removed")
            self._close(connection, dead, run_id)
            restored = connection.execute(
                update(timeouts).where(*self._hidden(run_id, batch)).values(hidden_by=None)
            ).rowcount
            reach("leaving.restored")
            write(connection, restored)

        self._context.database.run(work)

    def hidden(self, run_id: str) -> int:
        """Return how many rows the run has hidden."""
        statement = select(func.count()).where(
            self._timeouts.c.endpoint == self._context.endpoint,
            self._timeouts.c.hidden_by == run_id,
        )
        with self._context.database.read() as connection:
            return connection.execute(statement).scalar_one()

    def _close(self, connection: Connection, items: Sequence[Item], run_id: str) -> None:
        if not items:
            return
        self._remove_labels(connection, items)
        at = self._context.now(connection)
        ids = sorted(item.timeout.id for item in items)
        self._context.writing.close_keys(connection, ids, TimeoutState.MIGRATED, at)
        reach("leaving.keys_closed")
        record(
            connection,
            self._context,
            TimeoutState.MIGRATED.value,
            [
                entry(Key(one.due, one.id), at, one.destination, one.attempts, run_id)
                for one in (item.timeout for item in items)
            ],
        )
        reach("leaving.history_written")

    def _refuse_claims(self, connection: Connection) -> None:
        """Refuse to hide due timeouts during a dispatch; the lock prevents a new dispatch."""
        lock_endpoint(connection, self._context)
        claims = claims_of(connection, self._context)
        dead = self._context.liveness.dead_owners({claim.owner for claim in claims})
        if any(claim.owner not in dead for claim in claims):
            raise MigrationFailed(
                f"{self._context.endpoint!r} is dispatching overdue timeouts; stop its "
                "processes, or leave --overdue out: they deliver them"
            )

    def _within(self, window: Window, now: Micros) -> list[ColumnElement[bool]]:
        timeouts = self._timeouts
        # Inside a header's value, JSON puts a backslash before each quote.
        to_queue = [~timeouts.c.headers.contains(f'"{ROUTE}":')] if self._queues_only else []
        return [
            timeouts.c.endpoint == self._context.endpoint,
            timeouts.c.due >= window.first(now),
            timeouts.c.due < window.end,
            timeouts.c.hidden_by.is_(None),
            *to_queue,
        ]

    def _hidden(self, run_id: str, batch: Batch) -> list[ColumnElement[bool]]:
        timeouts, span = self._timeouts, batch.range
        return [
            timeouts.c.endpoint == self._context.endpoint,
            within(self._context, span.first, span.last),
            timeouts.c.hidden_by == run_id,
        ]
