"""The ledger of migrations in a SQL database: a row for each run, a row for each batch."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, islice
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, func, insert, select, update

from timeoutmgr.contracts import Key, Transaction
from timeoutmgr.crashpoints import reach
from timeoutmgr.database.engine import execute_many
from timeoutmgr.errors import MigrationFailed, MigrationRefused
from timeoutmgr.instants import Micros
from timeoutmgr.migration import Batch, BatchState, Range, Run, RunState, Terms
from timeoutmgr.migration.states import batch_may_become, run_may_become
from timeoutmgr.persistence.sql.context import StoreContext
from timeoutmgr.persistence.sql.locks import lock_endpoint

from .claims import Claims

KIND: Final = "migration"
_PAGE: Final = 1_000
_OVER: Final = [state.value for state in RunState if state.is_over]
_BATCH_OVER: Final = [state.value for state in BatchState if state.is_over]


class SqlLedger:
    """See :class:`timeoutmgr.migration.Ledger`; of one endpoint."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        runs, batches = context.tables.runs, context.tables.batches
        self._runs, self._batches = runs, batches
        self._mine = (runs.c.kind == KIND, runs.c.endpoint == context.endpoint)
        self._claims = Claims(context)

    def now(self) -> Micros:
        """Return the store's time."""
        with self._context.database.read() as connection:
            return self._context.now(connection)

    def create(self, run_id: str, terms: Terms, ranges: Iterable[Range], runner: str) -> Run:
        """Write run and plan in one transaction; refuse while another run is open."""
        # Read to its end first: it looks through connections of its own.
        planned = list(ranges)
        name = self._context.lives.name_of(runner)

        def work(connection: Connection) -> Run:
            lock_endpoint(connection, self._context)
            if self._open_run(connection) is not None:
                raise MigrationRefused(
                    f"endpoint {terms.endpoint!r} has an open run", ["somebody has just begun it"]
                )
            now = self._context.now(connection)
            row = {
                "run_id": run_id,
                "kind": KIND,
                "state": RunState.PLANNED.value,
                "created": now,
                "parameters": terms.to_json(),
                "endpoint": self._context.endpoint,
                "runner": name,
            }
            connection.execute(insert(self._runs), row)
            reach("ledger.run_written")
            numbers = count()
            ranges_left = iter(planned)
            while page := list(islice(ranges_left, _PAGE)):
                rows = [_planned(run_id, next(numbers), one) for one in page]
                execute_many(connection, insert(self._batches), rows)
                reach("ledger.batches_written")
            return Run(id=run_id, terms=terms, state=RunState.PLANNED, created=now, runner=name)

        return self._context.database.run(work)

    def take(self, run_id: str, runner: str) -> Run:
        """Make *runner* the one that works at the run, unless the one before it lives."""
        name = self._context.lives.name_of(runner)

        def work(connection: Connection) -> Run:
            row = connection.execute(
                select(self._runs).where(self._runs.c.run_id == run_id).with_for_update()
            ).one()
            others = {row.runner} - {None, name}
            if others - self._context.lives.gone(others):
                raise MigrationRefused(
                    f"another process is at work at run {run_id}",
                    ["wait for it, or end it; then run again"],
                )
            connection.execute(
                update(self._runs).where(self._runs.c.run_id == run_id).values(runner=name)
            )
            return replace(_run(row), runner=name)

        return self._context.database.run(work)

    def give_up(self, runner: str) -> None:
        """Say that *runner* works no more."""
        self._context.lives.end(runner)

    def claim(self, run: Run, no: int, runner: str) -> Batch | None:
        """Put batch *no* into the hands of *runner*, unless another that lives has it."""
        name = self._context.lives.name_of(runner)

        def work(connection: Connection) -> Batch | None:
            self._require_runner(connection, run)
            batch = self._locked(connection, run, self._batches.c.no == no)
            if batch is None or batch.state.is_over:
                return batch
            if no in self._claims.of_others(connection, run.id, name):
                return None
            return self._put(connection, run, batch, name)

        return self._context.database.run(work)

    def claim_next(self, run: Run, runner: str) -> Batch | None:
        """Claim the first batch that is not over and in nobody's hands."""
        name = self._context.lives.name_of(runner)
        batches = self._batches

        def work(connection: Connection) -> Batch | None:
            self._require_runner(connection, run)
            taken = self._claims.of_others(connection, run.id, name)
            free = (batches.c.state.not_in(_BATCH_OVER), batches.c.no.not_in(taken))
            batch = self._locked(connection, run, *free)
            return None if batch is None else self._put(connection, run, batch, name)

        return self._context.database.run(work)

    def set_aside(self, run: Run, batch: Batch) -> None:
        """Hand a claimed *batch* to who works at the run."""
        assert run.runner is not None, "a run that is worked at names who does so"
        runner = run.runner
        self._context.database.run(
            lambda connection: self._claims.hand_over(connection, run.id, batch, runner)
        )

    def in_hand(self, run_id: str) -> Collection[int]:
        """Return the numbers of the batches that somebody has claimed."""
        with self._context.database.read() as connection:
            return self._claims.held(connection, run_id).keys()

    def open_run(self) -> Run | None:
        """Return the run that is not over, if there is one."""
        with self._context.database.read() as connection:
            return self._open_run(connection)

    def runs(self) -> Sequence[Run]:
        """Return all runs, the latest first."""
        statement = select(self._runs).where(*self._mine).order_by(self._runs.c.created.desc())
        with self._context.database.read() as connection:
            return [_run(row) for row in connection.execute(statement)]

    def batches(self, run_id: str) -> Iterator[Batch]:
        """Yield the run's batches in order, read page by page."""
        batches, last = self._batches, -1
        while True:
            statement = (
                select(batches)
                .where(batches.c.run_id == run_id, batches.c.no > last)
                .order_by(batches.c.no)
                .limit(_PAGE)
            )
            with self._context.database.read() as connection:
                page = [_batch(row) for row in connection.execute(statement)]
            yield from page
            if len(page) < _PAGE:
                return
            last = page[-1].no

    def totals(self, run_id: str) -> Mapping[str, int]:
        """Return ``batches_<state>`` for each state there is, and the sums of the counts."""
        batches = self._batches
        counts = {
            "planned": batches.c.count,
            "taken": batches.c.taken,
            "new": batches.c.arrived,
            "known": batches.c.known,
            "returned": batches.c.returned,
            "repeated": batches.c.repeated,
        }
        statement = (
            select(
                batches.c.state,
                func.count().label("batches"),
                *(func.sum(column).label(f"sum_{name}") for name, column in counts.items()),
            )
            .where(batches.c.run_id == run_id)
            .group_by(batches.c.state)
        )
        with self._context.database.read() as connection:
            rows = connection.execute(statement).all()
        sums = {name: sum(int(getattr(row, f"sum_{name}")) for row in rows) for name in counts}
        return sums | {f"batches_{row.state}": row.batches for row in rows}

    def move_run(
        self, run_id: str, state: RunState, *, report: Mapping[str, Any] | None = None
    ) -> None:
        """Set a run's state, where it can follow."""

        def work(connection: Connection) -> None:
            now_in = connection.execute(
                select(self._runs.c.state).where(self._runs.c.run_id == run_id).with_for_update()
            ).scalar_one()
            if not run_may_become(RunState(now_in), state):
                raise MigrationFailed(f"run {run_id} is {now_in} and cannot become {state}")
            values: dict[str, Any] = {"state": state.value}
            if state.is_over:
                values |= {"ended": self._context.now(connection)}
            if report is not None:
                values |= {"report": json.dumps(report)}
            connection.execute(
                update(self._runs).where(self._runs.c.run_id == run_id).values(values)
            )
            if state.is_over:
                self._claims.drop_all(connection, run_id)

        self._context.database.run(work)

    def move_batch(self, run_id: str, batch: Batch, transaction: Transaction | None = None) -> None:
        """Write *batch* as it is now, where its state can follow."""

        def work(connection: Connection) -> None:
            batches = self._batches
            this = (batches.c.run_id == run_id, batches.c.no == batch.no)
            was = connection.execute(
                select(batches.c.state).where(*this).with_for_update()
            ).scalar_one()
            if not batch_may_become(BatchState(was), batch.state):
                raise MigrationFailed(
                    f"run {run_id}, batch {batch.no} is {was} and cannot become {batch.state}; "
                    "another process has moved it"
                )
            self._claims.require(connection, run_id, batch)
            connection.execute(
                update(batches)
                .where(*this)
                .values(
                    state=batch.state.value,
                    taken=batch.taken,
                    arrived=batch.new,
                    known=batch.known,
                    returned=batch.returned,
                    repeated=batch.repeated,
                )
            )
            if batch.state.is_over:
                self._claims.drop(connection, run_id, batch.no)

        if transaction is None:
            self._context.database.run(work)
        else:
            work(transaction)

    def _require_runner(self, connection: Connection, run: Run) -> None:
        """Refuse where another has taken the run over; until the commit nobody can."""
        runner = connection.execute(
            select(self._runs.c.runner).where(self._runs.c.run_id == run.id).with_for_update()
        ).scalar_one()
        if runner != run.runner:
            raise MigrationRefused(
                f"another process works at run {run.id} now", ["leave it to that one"]
            )

    def _locked(
        self, connection: Connection, run: Run, *which: ColumnElement[bool]
    ) -> Batch | None:
        """Return the first of the run's batches *which* are meant, locked."""
        batches = self._batches
        statement = (
            select(batches)
            .where(batches.c.run_id == run.id, *which)
            .order_by(batches.c.no)
            .limit(1)
            .with_for_update()
        )
        row = connection.execute(statement).first()
        return None if row is None else _batch(row)

    def _put(self, connection: Connection, run: Run, batch: Batch, name: str) -> Batch:
        self._claims.put(connection, run.id, batch.no, name)
        return replace(batch, claim=name)

    def _open_run(self, connection: Connection) -> Run | None:
        statement = select(self._runs).where(*self._mine, self._runs.c.state.not_in(_OVER))
        row = connection.execute(statement).first()
        return None if row is None else _run(row)


def _planned(run_id: str, no: int, planned: Range) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "no": no,
        "state": BatchState.PENDING.value,
        "count": planned.count,
        "from_due": planned.first.due,
        "from_id": planned.first.id,
        "to_due": planned.last.due,
        "to_id": planned.last.id,
        **dict.fromkeys(("taken", "arrived", "known", "returned", "repeated"), 0),
    }


def _run(row: Row[Any]) -> Run:
    made = Run(
        id=row.run_id,
        terms=Terms.from_json(row.parameters),
        state=RunState(row.state),
        created=row.created,
        ended=row.ended,
        runner=row.runner,
    )
    return made if row.report is None else replace(made, report=json.loads(row.report))


def _batch(row: Row[Any]) -> Batch:
    return Batch(
        no=row.no,
        range=Range(
            Key(row.from_due, row.from_id), Key(row.to_due, row.to_id), row._mapping["count"]
        ),
        state=BatchState(row.state),
        taken=row.taken,
        new=row.arrived,
        known=row.known,
        returned=row.returned,
        repeated=row.repeated,
    )
