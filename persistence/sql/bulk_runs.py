"""Bulk runs in a SQL database: a plan keeps the keys that it finds, and a batch is a transaction.

A batch changes its timeouts and says so in its own row, in one transaction: after a crash it is
either done, or to be done. Its row is locked meanwhile, so that several processes can share a run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar
from uuid import uuid4

from sqlalchemy import ColumnElement, Connection, Row, bindparam, func, insert, select, update

from timeoutmgr.contracts import Key, TimeoutFilter
from timeoutmgr.contracts.audit import AuditEntry, AuditOutcome, ChangedBy, to_text
from timeoutmgr.contracts.bulk_runs import (
    PLAN_KEPT,
    SAMPLES,
    BulkAction,
    BulkChange,
    BulkPlan,
    BulkRun,
    BulkState,
    BulkStep,
    selection_document,
)
from timeoutmgr.crashpoints import reach
from timeoutmgr.database.engine import execute_many
from timeoutmgr.database.run_rows import RunRow, RunRows
from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message.instants import Micros

from .audit import Audit
from .context import StoreContext
from .queries import TimeoutQueries
from .row_changes import Free, PlaceMove, RowChanges
from .rows import is_wanted

Result = TypeVar("Result")

KIND: Final = "bulk"
BATCH: Final = 250
"""Timeouts that one transaction changes. With 1,000 dispatches beside the run were two to three
times as late as without it."""
_PAGE: Final = 4 * BATCH
_REST: Final = 0.5
"""Rest after a transaction, as a multiple of its duration: dispatches beside the run have their
share of the processor and the disk."""
_FIRST_BATCH: Final = 1_000
"""Timeouts of a batch in plans that do not say how many."""
_TO_DO: Final = "planned"
_DONE: Final = "done"
_UNDONE: Final = "undone"


@dataclass(slots=True)
class _Found:
    """The sums of a plan."""

    selected: int = 0
    first_due: Micros | None = None
    last_due: Micros | None = None

    def add(self, rows: Sequence[Row[Any]]) -> None:
        dues = [_first(row) for row in rows]
        self.selected += len(dues)
        self.first_due = min(dues if self.first_due is None else [self.first_due, *dues])
        self.last_due = max(dues if self.last_due is None else [self.last_due, *dues])

    def report(self) -> dict[str, Any]:
        return {
            "selected": self.selected,
            "first_due": self.first_due,
            "last_due": self.last_due,
        }


class SqlBulkRuns:
    """The bulk runs of one endpoint."""

    def __init__(
        self,
        context: StoreContext,
        queries: TimeoutQueries,
        audit: Audit,
        rest: Callable[[float], None] = time.sleep,
    ) -> None:
        self._context = context
        self._rest = rest
        self._queries = queries
        self._audit = audit
        self._changes = RowChanges(context)
        tables = context.tables
        self._runs, self._batches, self._keys = (
            RunRows(tables.runs),
            tables.batches,
            tables.run_keys,
        )
        self._last = ("", "", 0)
        """Run, state and number of the batch that was locked last."""
        self._mine = (tables.runs.c.kind == KIND, tables.runs.c.endpoint == context.endpoint)
        self._sums = [
            func.coalesce(func.sum(self._batches.c[name]), 0)
            for name in ("arrived", "known", "repeated", "returned")
        ]

    # --- a plan: the keys of all matches, page by page ---------------------------------------

    def plan(
        self,
        which: TimeoutFilter | Sequence[str],
        change: BulkChange,
        by: ChangedBy,
        limit: int | None,
    ) -> BulkPlan:
        """Select the matches, in the order of their places."""
        run_id = uuid4().hex
        selection = selection_document(which, limit)
        terms = {"change": change.document(), "selection": selection, "batch": BATCH}
        self._context.database.run(lambda connection: self._insert(connection, run_id, terms))
        reach("bulk.planning")
        found, samples = _Found(), list[str]()
        for rows in self._pages(which, change, limit):
            self._keep(run_id, found.selected, rows)
            found.add(rows)
            samples += [row.id for row in rows[: SAMPLES - len(samples)]]
        self._context.database.run(
            lambda connection: self._end_plan(connection, run_id, found, by, change, selection)
        )
        shown = (self._queries.find(each) for each in samples)
        run = self.run(run_id)
        assert run is not None, "it was planned just now"
        return BulkPlan(run, [one[1] for one in shown if one and one[1]])

    def _insert(self, connection: Connection, run_id: str, terms: Mapping[str, Any]) -> None:
        row = RunRow(
            run_id=run_id,
            kind=KIND,
            state=BulkState.PLANNING.value,
            created=self._context.now(connection),
            parameters=to_text(terms),
            endpoint=self._context.endpoint,
        )
        self._runs.insert(connection, row)

    def _pages(
        self, which: TimeoutFilter | Sequence[str], change: BulkChange, limit: int | None
    ) -> Iterator[list[Row[Any]]]:
        """Yield the matches in whole batches, but for the last page."""
        timeouts, left = self._context.tables.timeouts, limit
        more: list[ColumnElement[bool]] = [timeouts.c.hidden_by.is_(None)]
        if change.action is BulkAction.RETRY:
            more.append(timeouts.c.original_due.is_not(None))
        if change.action is BulkAction.REROUTE:
            more.append(timeouts.c.destination != change.destination)
        kept: list[Row[Any]] = []
        for page in self._queries.key_pages(which, more, _PAGE):
            kept += page
            if left is not None and len(kept) >= left:
                kept = kept[:left]
                break
            while len(kept) >= _PAGE:
                yield kept[:_PAGE]
                left = None if left is None else left - _PAGE
                kept = kept[_PAGE:]
        if kept:
            yield kept

    def _keep(self, run_id: str, before: int, rows: Sequence[Row[Any]]) -> None:
        fixed = {"run_id": run_id, "endpoint": self._context.endpoint}
        keys = [
            {
                **fixed,
                "no": (before + index) // BATCH,
                "id": row.id,
                "due": row.due,
                "original_due": row.original_due,
                "version": row.version,
            }
            for index, row in enumerate(rows)
        ]
        batches = [
            _batch(run_id, keys[start : start + BATCH]) for start in range(0, len(keys), BATCH)
        ]

        def work(connection: Connection) -> None:
            self._context.writing.insert_rows(connection, self._keys, keys)
            reach("bulk.keys_kept")
            execute_many(connection, insert(self._batches), batches)

        self._gently(work)

    def _gently(self, work: Callable[[Connection], Result]) -> Result:
        """Run *work* as a transaction, and rest."""
        began = self._context.clock.monotonic()
        result = self._context.database.run(work)
        self._rest(_REST * (self._context.clock.monotonic() - began))
        return result

    def _end_plan(
        self,
        connection: Connection,
        run_id: str,
        found: _Found,
        by: ChangedBy,
        change: BulkChange,
        selection: Mapping[str, Any],
    ) -> None:
        state = BulkState.PLANNED.value
        self._runs.change(connection, run_id, report=found.report(), state=state)
        reach("bulk.planned")
        entry = AuditEntry(
            action=change.action.value,
            by=by,
            selection={**selection, **change.document()},
            dry_run=True,
            expected=found.selected,
            changed=0,
            run_id=run_id,
        )
        self._audit.write(connection, entry)

    # --- reading -----------------------------------------------------------------------------

    def run(self, run_id: str) -> BulkRun | None:
        """Return the run, or None."""
        with self._context.database.read() as connection:
            row = self._runs.find(connection, run_id)
            is_ours = row is not None and row.kind == KIND
            if row is None or not is_ours or row.endpoint != self._context.endpoint:
                return None
            return self._view(connection, row)

    def newest(self, limit: int) -> list[BulkRun]:
        """Return the newest runs, the newest first."""
        with self._context.database.read() as connection:
            rows = self._runs.matching(connection, *self._mine)[-limit:]
            return [self._view(connection, row) for row in reversed(rows)]

    def keys(self, run_id: str, after: int) -> list[Key]:
        """Return the keys of the batch behind number *after*."""
        with self._context.database.read() as connection:
            rows = self._of_batch(connection, run_id, after + 1)
        return [Key(row.due, row.id) for row in rows]

    def _view(self, connection: Connection, row: RunRow) -> BulkRun:
        sums = select(*self._sums).where(self._batches.c.run_id == row.run_id)
        changed, left, maybe_sent, undone = map(int, connection.execute(sums).one())
        return replace(
            _planned(row), changed=changed, left=left, maybe_sent=maybe_sent, undone=undone
        )

    def _of_batch(self, connection: Connection, run_id: str, no: int) -> Sequence[Row[Any]]:
        """Return the kept keys of a batch, in the order of their places."""
        one = (self._keys.c.run_id == run_id, self._keys.c.no == no)
        ordered = select(self._keys).where(*one).order_by(self._keys.c.due, self._keys.c.id)
        return connection.execute(ordered).all()

    # --- application, a batch at a time ------------------------------------------------------

    def begin(self, run_id: str, by: ChangedBy, *, undo: bool) -> BulkRun:
        """Begin to apply the run, or to undo it, unless that has begun."""

        def work(connection: Connection) -> None:
            row = self._locked(connection, run_id)
            goal = BulkState.UNDOING if undo else BulkState.RUNNING
            if row.state == goal:
                return
            view = self._view(connection, row)
            _require(view, undo)
            if not undo and self._context.now(connection) - view.created > PLAN_KEPT:
                raise InvalidMessage(f"the plan of run {run_id} is older than a day; plan again")
            self._runs.change(connection, run_id, state=goal.value)
            reach("bulk.begun")
            expected = view.changed if undo else view.selected
            self._audit_change(connection, view, by, AuditOutcome.STARTED, expected, None)

        self._context.database.run(work)
        found = self.run(run_id)
        assert found is not None, "it was locked just now"
        return found

    def step(self, run_id: str) -> BulkStep | None:
        """Change the timeouts of one batch, or undo their change."""
        return self._gently(lambda connection: self._step(connection, run_id))

    def end(self, run_id: str, by: ChangedBy) -> BulkRun:
        """End the run if no batch is left."""

        def work(connection: Connection) -> None:
            row = self._locked(connection, run_id)
            state = BulkState(row.state)
            ends = {
                BulkState.RUNNING: (BulkState.COMPLETED, _TO_DO),
                BulkState.UNDOING: (BulkState.UNDONE, _DONE),
            }
            if state not in ends:
                return
            then, to_do = ends[state]
            of_run = (self._batches.c.run_id == run_id, self._batches.c.state == to_do)
            if connection.execute(select(self._batches.c.no).where(*of_run).limit(1)).first():
                return
            view = self._view(connection, row)
            ended = self._context.now(connection)
            self._runs.change(connection, run_id, state=then.value, ended=ended)
            reach("bulk.ended")
            number = view.changed if state is BulkState.RUNNING else view.undone
            expected = view.selected if state is BulkState.RUNNING else view.changed
            self._audit_change(connection, view, by, AuditOutcome.DONE, expected, number)

        self._context.database.run(work)
        found = self.run(run_id)
        assert found is not None, "it was locked just now"
        return found

    def _locked(self, connection: Connection, run_id: str) -> RunRow:
        row = self._runs.find(connection, run_id, lock=True)
        if row is None or row.kind != KIND or row.endpoint != self._context.endpoint:
            raise InvalidMessage(
                f"there is no bulk run {run_id!r:.80}; `timeoutmgr runs list` shows the runs"
            )
        return row

    def _audit_change(
        self,
        connection: Connection,
        run: BulkRun,
        by: ChangedBy,
        outcome: AuditOutcome,
        expected: int,
        changed: int | None,
    ) -> None:
        is_undo = run.state in (BulkState.COMPLETED, BulkState.UNDOING)
        action = run.change.action.value
        entry = AuditEntry(
            action=f"undo-{action}" if is_undo else action,
            by=by,
            selection={**run.selection, **run.change.document()},
            outcome=outcome,
            expected=expected,
            changed=changed,
            run_id=run.id,
        )
        self._audit.write(connection, entry)

    def _step(self, connection: Connection, run_id: str) -> BulkStep | None:
        row = self._runs.find(connection, run_id)
        if row is None or row.state not in (BulkState.RUNNING, BulkState.UNDOING):
            return None
        view = _planned(row)
        undo = view.state is BulkState.UNDOING
        batch = self._lock_batch(connection, run_id, _DONE if undo else _TO_DO)
        if batch is None:
            return None
        kept = {Key(one.due, one.id): one for one in self._of_batch(connection, run_id, batch.no)}
        begin = batch.no * _batch_of(row)
        if undo:
            return self._undo(connection, view, batch.no, kept, begin)
        free = self._free(connection, {key: one.version for key, one in kept.items()})
        reach("bulk.locked")
        moved = self._apply(connection, view, kept, free, begin)
        reach("bulk.changed")
        self._leave(connection, run_id, batch.no, [key for key in kept if key not in free])
        counts = {
            "arrived": len(free),
            "known": len(kept) - len(free),
            "repeated": sum(maybe_sent for _, maybe_sent in free.values()),
        }
        self._close(connection, run_id, batch.no, state=_DONE, **counts)
        earliest = min((one.to for one in moved), default=None)
        return BulkStep(len(free), len(kept) - len(free), earliest)

    def _lock_batch(self, connection: Connection, run_id: str, state: str) -> Row[Any] | None:
        """Lock the first batch in *state* behind the last one, or of all if there is none.

        A search from the first batch on would read all that are done, each time.
        """
        run, reached, last = self._last
        starts = (last, 0) if (run, reached) == (run_id, state) else (0,)
        found = (self._lock_first(connection, run_id, state, start) for start in starts)
        batch = next((one for one in found if one is not None), None)
        if batch is not None:
            self._last = (run_id, state, batch.no)
        return batch

    def _lock_first(
        self, connection: Connection, run_id: str, state: str, start: int
    ) -> Row[Any] | None:
        batches = self._batches
        statement = (
            select(batches.c.no)
            .where(batches.c.run_id == run_id, batches.c.no >= start, batches.c.state == state)
            .order_by(batches.c.no)
            .limit(1)
            .with_for_update(skip_locked=True)
        )
        return connection.execute(statement).first()

    def _free(self, connection: Connection, versions: Mapping[Key, int]) -> dict[Key, Any]:
        """Lock the rows at the given keys and versions that nobody else has."""
        free = self._changes.free(connection, list(versions))
        return {key: found for key, found in free.items() if found[0].version == versions[key]}

    def _apply(
        self,
        connection: Connection,
        run: BulkRun,
        kept: Mapping[Key, Row[Any]],
        free: Free,
        begin: int,
    ) -> list[PlaceMove]:
        """Change the *free* timeouts of a batch, whose first is number *begin* of the run."""
        change = run.change
        channel = f"bulk run {run.id}"
        if change.action is BulkAction.CANCEL:
            self._changes.cancel(connection, free, run.id, channel)
            return []
        if change.action is BulkAction.REROUTE:
            to = change.destination or ""
            self._changes.reroute(connection, free, to, run.id, channel)
            return []
        now = 0 if change.action.is_undoable else self._context.now(connection)
        moves = [
            PlaceMove(
                key,
                change.new_due(_first(one), rank, run.selected, now),
                one.original_due if change.action is BulkAction.RETRY else None,
                free[key][0].labelled,
            )
            for rank, (key, one) in enumerate(kept.items(), begin)
            if key in free
        ]
        self._move(connection, run, moves, free)
        return moves

    def _undo(
        self,
        connection: Connection,
        run: BulkRun,
        no: int,
        kept: Mapping[Key, Row[Any]],
        begin: int,
    ) -> BulkStep:
        """Move the timeouts of a batch back that are still as the run has left them."""
        back: dict[Key, PlaceMove] = {}
        versions: dict[Key, int] = {}
        for rank, (key, one) in enumerate(kept.items(), begin):
            if one.is_left:
                continue
            due = run.change.new_due(_first(one), rank, run.selected, 0)
            now_at = Key(due, key.id)
            versions[now_at] = one.version + 1
            back[now_at] = PlaceMove(now_at, key.due, one.original_due)
        free = self._free(connection, versions)
        reach("bulk.locked")
        moves = [back[key]._replace(headers=row.labelled) for key, (row, _) in free.items()]
        self._move(connection, run, moves, free)
        reach("bulk.changed")
        self._close(connection, run.id, no, state=_UNDONE, returned=len(moves))
        earliest = min((one.to for one in moves), default=None)
        return BulkStep(len(moves), len(versions) - len(moves), earliest)

    def _move(
        self, connection: Connection, run: BulkRun, moves: Sequence[PlaceMove], free: Free
    ) -> None:
        self._changes.move(connection, moves, changes=True)
        if is_wanted(self._context, "rescheduled"):
            dues = {one.key: one.to if one.original is None else one.original for one in moves}
            channel = f"bulk run {run.id}"
            self._changes.record(connection, "rescheduled", free, run.id, channel, dues=dues)

    def _leave(self, connection: Connection, run_id: str, no: int, left: Sequence[Key]) -> None:
        keys = self._keys
        of_batch = (keys.c.run_id == run_id, keys.c.no == no)
        one = (keys.c.due == bindparam("due_"), keys.c.id == bindparam("id_"))
        statement = update(keys).where(*of_batch, *one).values(is_left=1)
        execute_many(connection, statement, [{"due_": due, "id_": id_} for due, id_ in left])
        reach("bulk.left_noted")

    def _close(self, connection: Connection, run_id: str, no: int, **values: Any) -> None:
        batches = self._batches
        one = (batches.c.run_id == run_id, batches.c.no == no)
        connection.execute(update(batches).where(*one).values(**values))
        reach("bulk.batch_closed")


def _planned(row: RunRow) -> BulkRun:
    """Return the run of *row* as it was planned."""
    terms, report = json.loads(row.parameters), row.report or {}
    return BulkRun(
        id=row.run_id,
        state=BulkState(row.state),
        created=row.created,
        change=BulkChange.from_document(terms["change"]),
        selection=terms["selection"],
        selected=report.get("selected", 0),
        first_due=report.get("first_due"),
        last_due=report.get("last_due"),
    )


def _batch_of(row: RunRow) -> int:
    """Return how many timeouts each batch of the run has, but for its last."""
    return int(json.loads(row.parameters).get("batch", _FIRST_BATCH))


def _first(row: Row[Any]) -> Micros:
    due: Micros = row.due if row.original_due is None else row.original_due
    return due


def _batch(run_id: str, keys: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first, last = keys[0], keys[-1]
    return {
        "run_id": run_id,
        "no": first["no"],
        "state": _TO_DO,
        "count": len(keys),
        "from_due": first["due"],
        "from_id": first["id"],
        "to_due": last["due"],
        "to_id": last["id"],
    }


def _require(run: BulkRun, undo: bool) -> None:
    if not undo and run.state is BulkState.PLANNED:
        return
    if undo and run.state is BulkState.COMPLETED and run.change.action.is_undoable:
        return
    if undo and not run.change.action.is_undoable:
        raise InvalidMessage(f"a run that does {run.change.action} cannot be undone: run {run.id}")
    verb, expected = ("undone", "completed") if undo else ("applied", "planned")
    raise InvalidMessage(
        f"run {run.id} is {run.state} and cannot be {verb}; expected a {expected} run"
    )
