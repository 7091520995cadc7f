"""Bulk runs in an SQL database: a plan stores the keys it finds; each batch is a transaction.

A batch changes its timeouts and its own row in one transaction: after a crash it is either done or
still to do. Its row is locked meanwhile, so that several processes can share a run.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar
from uuid import uuid4

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    bindparam,
    delete,
    exists,
    func,
    insert,
    select,
    update,
)

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
from timeoutmgr.message.instants import EARLIEST, LATEST, Micros

from .audit import Audit
from .context import StoreContext
from .queries import TimeoutQueries
from .row_changes import Free, PlaceMove, RowChanges
from .rows import due_of, is_wanted

Result = TypeVar("Result")

KIND: Final = "bulk"
BATCH: Final = 250
"""Timeouts that one transaction changes. With 1,000, concurrent dispatches were two to three times
as late as without a run."""
_PAGE: Final = 4 * BATCH
_REST: Final = 0.5
"""Rest after a transaction, as a multiple of its duration, so that concurrent dispatches get their
share of processor and disk."""
_TO_DO: Final = "planned"
_DONE: Final = "done"
_UNDONE: Final = "undone"


@dataclass(slots=True)
class _Found:
    """The sums of a plan, and the ids of its first timeouts."""

    selected: int = 0
    first_due: Micros | None = None
    last_due: Micros | None = None
    samples: list[str] = field(default_factory=list)

    def add(self, rows: Sequence[Row[Any]]) -> None:
        self.samples += [row.id for row in rows[: SAMPLES - len(self.samples)]]
        dues = [due_of(row) for row in rows]
        self.selected += len(dues)
        self.first_due = min(dues if self.first_due is None else [self.first_due, *dues])
        self.last_due = max(dues if self.last_due is None else [self.last_due, *dues])

    def report(self) -> dict[str, Any]:
        return {"selected": self.selected, "first_due": self.first_due, "last_due": self.last_due}


@dataclass(frozen=True, slots=True)
class _Batch:
    """Batch *no* of *run*: its *kept* keys; the first key has number *begin* in the run.

    *parked* are the places at which pauses held timeouts when planning; None in older plans.
    """

    run: BulkRun
    no: int
    kept: Mapping[Key, Row[Any]]
    begin: int
    parked: Collection[Micros] | None

    @property
    def ranked(self) -> Iterator[tuple[int, tuple[Key, Row[Any]]]]:
        """Yield each key and its row with its number in the run."""
        yield from enumerate(self.kept.items(), self.begin)

    def former_place(self, one: Row[Any], now: Micros) -> Micros:
        """Return the place of the timeout of the kept row *one* after an undo.

        The pause that held it may be over, and no resume will empty that place again. So it gets
        the present: a dispatcher sends the timeout, or parks it for a current pause.
        """
        waited = one.original_due is not None
        was_parked = waited and (self.parked is None or one.due in self.parked)
        place: Micros = min(one.due, now) if was_parked else one.due
        return place


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
        self._runs, self._batches = RunRows(tables.runs), tables.batches
        self._keys = tables.run_keys
        self._last = ("", "", 0)
        """Run, state and number of the last batch that was locked."""
        pauses = tables.pauses
        self._parked = select(pauses.c.parked).where(pauses.c.endpoint == context.endpoint)
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
        export: Callable[[str], None] | None = None,
    ) -> BulkPlan:
        """Select the matches in the order of their places."""
        run_id = uuid4().hex
        selection = selection_document(which, limit)
        # Earlier versions, which may apply this plan, count ranks by "batch".
        terms = {"change": change.document(), "selection": selection, "batch": BATCH}
        self._context.database.run(lambda connection: self._insert(connection, run_id, terms))
        reach("bulk.planning")
        found = _Found()
        for rows in self._pages(which, change, limit):
            _require_in_calendar(change, rows)
            self._keep(run_id, found.selected, rows)
            found.add(rows)
        found = self._counted_once(run_id, found)
        if export is not None:
            export(run_id)
            reach("bulk.exported")
        run = self._changed(
            run_id,
            lambda connection: self._end_plan(connection, run_id, found, by, change, selection),
        )
        shown = (self._queries.find(each) for each in found.samples)
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
        """Yield the matches in whole batches, except in the last page."""
        timeouts, left = self._context.tables.timeouts, limit
        more: list[ColumnElement[bool]] = [timeouts.c.hidden_by.is_(None)]
        if change.action is BulkAction.RETRY:
            more += [timeouts.c.original_due.is_not(None), timeouts.c.due.not_in(self._parked)]
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

    def _counted_once(self, run_id: str, found: _Found) -> _Found:
        """Keep only the last place of each timeout: one that moved ahead may be found again."""
        former = self._former_places(run_id)
        if not former:
            return found
        for start in range(0, len(former), _PAGE):
            self._drop(run_id, former[start : start + _PAGE])
        return self._sums_of(run_id, found.samples)

    def _former_places(self, run_id: str) -> Sequence[Any]:
        """Return the kept places of timeouts that also have a later place."""
        keys = self._keys
        twice = (
            select(keys.c.id, func.max(keys.c.due).label("due"))
            .where(keys.c.run_id == run_id)
            .group_by(keys.c.id)
            .having(func.count() > 1)
            .subquery()
        )
        earlier = (keys.c.id == twice.c.id, keys.c.due < twice.c.due)
        with self._context.database.read() as connection:
            return connection.execute(
                select(keys.c.no, keys.c.due, keys.c.id).where(keys.c.run_id == run_id, *earlier)
            ).all()

    def _drop(self, run_id: str, places: Sequence[Row[Any]]) -> None:
        """Remove kept *places* of a plan, and correct the counts of its batches."""
        batches, keys = self._batches, self._keys
        batch = (batches.c.run_id == run_id, batches.c.no == bindparam("no_"))
        count = update(batches).where(*batch).values(count=batches.c.count - bindparam("fewer_"))
        numbers = Counter(row.no for row in places)
        counts = [{"no_": no, "fewer_": fewer} for no, fewer in sorted(numbers.items())]
        place = [keys.c[name] == bindparam(f"{name}_") for name in ("no", "due", "id")]
        given = [{f"{name}_": value for name, value in row._mapping.items()} for row in places]

        def work(connection: Connection) -> None:
            reach("bulk.keys_kept")
            execute_many(connection, count, counts)
            reach("bulk.keys_kept")
            execute_many(connection, delete(keys).where(keys.c.run_id == run_id, *place), given)

        self._gently(work)

    def _sums_of(self, run_id: str, samples: Sequence[str]) -> _Found:
        """Return the sums of the kept keys of a plan."""
        keys = self._keys
        first = func.coalesce(keys.c.original_due, keys.c.due)
        with self._context.database.read() as connection:
            selected, first_due, last_due = connection.execute(
                select(func.count(), func.min(first), func.max(first)).where(
                    keys.c.run_id == run_id
                )
            ).one()
        return _Found(selected, first_due, last_due, list(dict.fromkeys(samples)))

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
        # Timeouts parked elsewhere by then moved after their page was read: the run skips them.
        report = {**found.report(), "parked": sorted(connection.execute(self._parked).scalars())}
        self._runs.change(connection, run_id, report=report, state=state)
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

    def find(self, run_id: str) -> BulkRun | None:
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
            rows = self._runs.newest(connection, limit, *self._mine)
            return [self._view(connection, row) for row in rows]

    def keys(self, run_id: str, after: int) -> list[Key]:
        """Return the keys of the first batch after number *after* that has keys."""
        batches = self._batches
        filled = select(batches.c.no).where(batches.c.run_id == run_id, batches.c.count > 0)
        with self._context.database.read() as connection:
            batch = filled.order_by(batches.c.no).offset(after + 1).limit(1)
            no = connection.execute(batch).scalar()
            rows = [] if no is None else self._of_batch(connection, run_id, no)
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
        """Begin to apply or to undo the run, unless that has begun or is done."""

        def work(connection: Connection) -> None:
            row = self._locked(connection, run_id)
            goal = BulkState.UNDOING if undo else BulkState.RUNNING
            if row.state in (goal, BulkState.UNDONE if undo else BulkState.COMPLETED):
                return
            view = self._view(connection, row)
            _require(view, undo)
            if undo:
                self._require_keys(connection, run_id)
            elif self._context.now(connection) - view.created > PLAN_KEPT:
                raise InvalidMessage(f"the plan of run {run_id} is older than a day; plan again")
            self._runs.change(connection, run_id, state=goal.value)
            reach("bulk.begun")
            expected = view.changed if undo else view.selected
            self._audit_change(connection, view, by, AuditOutcome.STARTED, expected, None)

        return self._changed(run_id, work)

    def _require_keys(self, connection: Connection, run_id: str) -> None:
        """Raise InvalidMessage if maintenance has removed keys of the run."""
        batches, keys = self._batches, self._keys
        of_batch = (keys.c.run_id == batches.c.run_id, keys.c.no == batches.c.no)
        of_run = (batches.c.run_id == run_id, batches.c.count > 0)
        missing = select(batches.c.no).where(*of_run, ~exists().where(*of_batch)).limit(1)
        if connection.execute(missing).first() is not None:
            kept = self._context.settings.history_retention
            raise InvalidMessage(
                f"run {run_id} cannot be undone: its keys are kept for history_retention ({kept}) "
                "after its end, and were removed; change the timeouts by a new plan, and raise "
                "history_retention to undo later runs for longer"
            )

    def step(self, run_id: str) -> BulkStep | None:
        """Change the timeouts of one batch, or undo their change."""
        return self._gently(lambda connection: self._step(connection, run_id))

    def end(self, run_id: str, by: ChangedBy) -> BulkRun:
        """End the run if no batches are left."""

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

        return self._changed(run_id, work)

    def _changed(self, run_id: str, work: Callable[[Connection], None]) -> BulkRun:
        """Run *work* on the run as a transaction, and return the run."""
        self._context.database.run(work)
        found = self.find(run_id)
        assert found is not None, "it was changed just now"
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
        undo = row.state == BulkState.UNDOING
        locked = self._lock_batch(connection, run_id, _DONE if undo else _TO_DO)
        if locked is None:
            return None
        batch = self._batch(connection, row, locked.no)
        return self._undo(connection, batch) if undo else self._do(connection, batch)

    def _batch(self, connection: Connection, row: RunRow, no: int) -> _Batch:
        """Return batch *no* of the run *row*."""
        run, batches, begin = _planned(row), self._batches, 0
        if run.change.action is BulkAction.SPREAD:  # the only action that uses ranks
            before = select(func.coalesce(func.sum(batches.c.count), 0))
            of_run = (batches.c.run_id == row.run_id, batches.c.no < no)
            begin = int(connection.execute(before.where(*of_run)).scalar_one())
        kept = {Key(one.due, one.id): one for one in self._of_batch(connection, row.run_id, no)}
        return _Batch(run, no, kept, begin, (row.report or {}).get("parked"))

    def _do(self, connection: Connection, batch: _Batch) -> BulkStep:
        """Change the timeouts of a batch that no other process has locked or changed."""
        kept, run_id = batch.kept, batch.run.id
        free = self._free(connection, {key: one.version for key, one in kept.items()})
        reach("bulk.locked")
        moved = self._apply(connection, batch, free)
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
        """Lock the first batch in *state* after the last locked batch, or the very first.

        A search from the first batch on would read all finished batches each time.
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
        """Lock the rows at the given keys and versions that no other process has locked."""
        free = self._changes.free(connection, list(versions))
        return {key: found for key, found in free.items() if found[0].version == versions[key]}

    def _apply(self, connection: Connection, batch: _Batch, free: Free) -> list[PlaceMove]:
        """Change the *free* timeouts of a batch."""
        run, change = batch.run, batch.run.change
        channel = f"bulk run {run.id}"
        if change.action is BulkAction.CANCEL:
            self._changes.cancel(connection, free, run.id, channel)
            return []
        if change.action is BulkAction.REROUTE:
            to = change.destination or ""
            return self._changes.reroute(connection, free, to, run.id, channel)
        now = 0 if change.action.is_undoable else self._context.now(connection)
        moves = [
            PlaceMove(
                key,
                change.new_due(due_of(one), rank, run.selected, now),
                one.original_due if change.action is BulkAction.RETRY else None,
                free[key][0].labelled,
            )
            for rank, (key, one) in batch.ranked
            if key in free
        ]
        self._move(connection, run, moves, free)
        return moves

    def _undo(self, connection: Connection, batch: _Batch) -> BulkStep:
        """Move back the timeouts of a batch that are still as the run left them."""
        run, now = batch.run, self._context.now(connection)
        back: dict[Key, PlaceMove] = {}
        versions: dict[Key, int] = {}
        for rank, (key, one) in batch.ranked:
            if one.is_left:
                continue
            due = run.change.new_due(due_of(one), rank, run.selected, 0)
            now_at = Key(due, key.id)
            versions[now_at] = one.version + 1
            back[now_at] = PlaceMove(now_at, batch.former_place(one, now), one.original_due)
        free = self._free(connection, versions)
        reach("bulk.locked")
        moves = [back[key]._replace(headers=row.labelled) for key, (row, _) in free.items()]
        self._move(connection, run, moves, free)
        reach("bulk.changed")
        self._close(connection, run.id, batch.no, state=_UNDONE, returned=len(moves))
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
    """Return the plan of the run in *row*."""
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


def _require_in_calendar(change: BulkChange, rows: Sequence[Row[Any]]) -> None:
    """Raise InvalidMessage for a shift beyond years 1 to 9999: all would be due at the limit."""
    by = change.by or 0
    for row in rows if by else ():
        due = due_of(row) + by
        if not EARLIEST <= due <= LATEST:
            raise InvalidMessage(
                f"a shift by {by / 1_000_000:,.0f} s would make timeout {row.id!r:.80} due "
                "outside of the years 1 to 9999; shift by less"
            )


def _require(run: BulkRun, undo: bool) -> None:
    if not undo and run.state is BulkState.PLANNED:
        return
    if undo and run.state is BulkState.COMPLETED and run.change.action.is_undoable:
        return
    if undo and not run.change.action.is_undoable:
        raise InvalidMessage(f"a run that does {run.change.action} cannot be undone: run {run.id}")
    if not undo and run.state is BulkState.PLANNING:
        raise InvalidMessage(
            f"run {run.id} is planning and cannot be applied: the command that makes the plan, and "
            "exports the timeouts if asked to, still runs or was interrupted; if it was, make a "
            "new plan, with a new file for its export"
        )
    verb, expected = ("undone", "completed") if undo else ("applied", "planned")
    raise InvalidMessage(
        f"run {run.id} is {run.state} and cannot be {verb}; expected a {expected} run"
    )
