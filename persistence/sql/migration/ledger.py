"""The ledger of migrations in an SQL database: a row for each run and each batch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, delete, func, insert, select, update

from timeoutmgr.contracts import Key, Transaction
from timeoutmgr.crashpoints import reach
from timeoutmgr.database import as_connection
from timeoutmgr.database.engine import execute_many
from timeoutmgr.database.run_rows import RunRow, RunRows
from timeoutmgr.errors import MigrationFailed, MigrationRefused
from timeoutmgr.message.instants import Micros
from timeoutmgr.migration import Batch, BatchState, KeyRange, MigrationRun, MigrationRunState, Terms
from timeoutmgr.migration.runs import batch_may_become, run_may_become
from timeoutmgr.persistence.sql.context import StoreContext, lock_endpoint

# --- claims on batches of a run: each is a row of ``batch_claims`` --------------------------------
# Only the owner that a claim names may write its batch: a process that unknowingly lost its session
# lock with a broken connection cannot continue. The caller of each method has locked the row of the
# batch or of the run.


class BatchClaims:
    """The claims on the batches of one endpoint's runs."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._claims = context.tables.batch_claims

    def numbers(self, connection: Connection, run_id: str) -> Collection[int]:
        """Return the numbers of the claimed batches, even of dead owners."""
        return self._owners(connection, run_id).keys()

    def of_others(self, connection: Connection, run_id: str, owner: str) -> list[int]:
        """Return the numbers of the batches that other living owners than *owner* have claimed."""
        owners = self._owners(connection, run_id)
        others = {name for name in owners.values() if name != owner}
        alive = others - self._context.liveness.dead_owners(others)
        return [no for no, name in owners.items() if name in alive]

    def put(self, connection: Connection, run_id: str, no: int, owner: str) -> None:
        """Claim a batch for *owner*; its previous owner is dead."""
        claims = self._claims
        changed = connection.execute(
            update(claims).where(claims.c.run_id == run_id, claims.c.no == no).values(owner=owner)
        ).rowcount
        if not changed:
            row = {
                "run_id": run_id,
                "no": no,
                "endpoint": self._context.endpoint,
                "owner": owner,
                "claimed_at": self._context.now(connection),
            }
            connection.execute(insert(claims), row)

    def reassign(self, connection: Connection, run_id: str, batch: Batch, owner: str) -> None:
        """Claim *batch* for *owner* if its claim still names the owner that *batch* names."""
        claims = self._claims
        connection.execute(
            update(claims)
            .where(claims.c.run_id == run_id, claims.c.no == batch.no)
            .where(claims.c.owner == batch.claim)
            .values(owner=owner)
        )

    def require(self, connection: Connection, run_id: str, batch: Batch) -> None:
        """Raise MigrationFailed unless the claim names the owner that *batch* names."""
        claims = self._claims
        name = connection.execute(
            select(claims.c.owner).where(claims.c.run_id == run_id, claims.c.no == batch.no)
        ).scalar()
        if name != batch.claim:
            raise MigrationFailed(
                f"run {run_id}, batch {batch.no} is claimed by another process, which moves it"
            )

    def drop(self, connection: Connection, run_id: str, no: int) -> None:
        """Delete the claim on a batch, if it exists."""
        claims = self._claims
        connection.execute(delete(claims).where(claims.c.run_id == run_id, claims.c.no == no))

    def drop_all(self, connection: Connection, run_id: str) -> None:
        """Delete all claims of a finished run."""
        for no in self.numbers(connection, run_id):
            self.drop(connection, run_id, no)

    def _owners(self, connection: Connection, run_id: str) -> dict[int, str]:
        claims = self._claims
        statement = select(claims.c.no, claims.c.owner).where(claims.c.run_id == run_id)
        return {no: owner for no, owner in connection.execute(statement)}


KIND: Final = "migration"
_PAGE: Final = 1_000
_OVER: Final = [state.value for state in MigrationRunState if state.is_over]
_BATCH_OVER: Final = [state.value for state in BatchState if state.is_over]


class SqlMigrationLedger:
    """See :class:`timeoutmgr.migration.Ledger`; of one endpoint."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        runs, batches = context.tables.runs, context.tables.batches
        self._rows, self._batches = RunRows(runs), batches
        self._is_open = runs.c.state.not_in(_OVER)
        self._mine = (runs.c.kind == KIND, runs.c.endpoint == context.endpoint)
        self._claims = BatchClaims(context)

    def now(self) -> Micros:
        """Return the store's time."""
        with self._context.database.read() as connection:
            return self._context.now(connection)

    def create(
        self, run_id: str, terms: Terms, ranges: Iterable[KeyRange], runner: str
    ) -> MigrationRun:
        """Write run and plan in one transaction; refuse if another run is open."""
        # Exhaust it first: it reads over connections of its own.
        planned = list(ranges)
        name = self._context.liveness.name_of(runner)

        def work(connection: Connection) -> MigrationRun:
            lock_endpoint(connection, self._context)
            if self._open_run(connection) is not None:
                raise MigrationRefused(
                    f"endpoint {terms.endpoint!r} has an open run",
                    ["another process has just begun it"],
                )
            run = RunRow(
                run_id=run_id,
                kind=KIND,
                state=MigrationRunState.PLANNED.value,
                created=self._context.now(connection),
                parameters=terms.to_json(),
                endpoint=self._context.endpoint,
                runner=name,
            )
            self._rows.insert(connection, run)
            reach("ledger.run_written")
            self._insert_batches(connection, run_id, planned)
            return _migration_run(run)

        return self._context.database.run(work)

    def acquire(self, run_id: str, runner: str) -> MigrationRun:
        """Make *runner* the runner of the run, unless the previous runner is alive."""
        name = self._context.liveness.name_of(runner)

        def work(connection: Connection) -> MigrationRun:
            row = self._rows.locked(connection, run_id)
            others = {before for before in (row.runner,) if before not in (None, name)}
            if others - self._context.liveness.dead_owners(others):
                raise MigrationRefused(
                    f"another process is at work at run {run_id}",
                    ["wait for it, or end it; then run again"],
                )
            self._rows.change(connection, run_id, runner=name)
            return _migration_run(replace(row, runner=name))

        return self._context.database.run(work)

    def release(self, runner: str) -> None:
        """Release the session lock of *runner*."""
        self._context.liveness.release(runner)

    def claim(self, run: MigrationRun, no: int, runner: str) -> Batch | None:
        """Claim batch *no* for *runner*, unless another living owner has claimed it."""
        name = self._context.liveness.name_of(runner)

        def work(connection: Connection) -> Batch | None:
            self._require_runner(connection, run)
            batch = self._locked(connection, run, self._batches.c.no == no)
            if batch is None or batch.state.is_over:
                return batch
            if no in self._claims.of_others(connection, run.id, name):
                return None
            return self._put(connection, run, batch, name)

        return self._context.database.run(work)

    def claim_next(self, run: MigrationRun, runner: str) -> Batch | None:
        """Claim the first batch that is neither over nor claimed."""
        name = self._context.liveness.name_of(runner)
        batches = self._batches

        def work(connection: Connection) -> Batch | None:
            self._require_runner(connection, run)
            others = self._claims.of_others(connection, run.id, name)
            free = (batches.c.state.not_in(_BATCH_OVER), batches.c.no.not_in(others))
            batch = self._locked(connection, run, *free)
            return None if batch is None else self._put(connection, run, batch, name)

        return self._context.database.run(work)

    def set_aside(self, run: MigrationRun, batch: Batch) -> None:
        """Reassign the claim on *batch* to the runner of the run."""
        assert run.runner is not None, "a claimed batch belongs to a run with a runner"
        runner = run.runner
        self._context.database.run(
            lambda connection: self._claims.reassign(connection, run.id, batch, runner)
        )

    def claimed(self, run_id: str) -> Collection[int]:
        """Return the numbers of the claimed batches."""
        with self._context.database.read() as connection:
            return self._claims.numbers(connection, run_id)

    def open_run(self) -> MigrationRun | None:
        """Return the open run, or None."""
        with self._context.database.read() as connection:
            return self._open_run(connection)

    def runs(self) -> Sequence[MigrationRun]:
        """Return all runs, the latest first."""
        with self._context.database.read() as connection:
            rows = self._rows.matching(connection, *self._mine)
        return [_migration_run(row) for row in reversed(rows)]

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
        """Return ``batches_<state>`` for each occurring state, and the sums of the counts."""
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
        sums = {name: sum(int(row._mapping[f"sum_{name}"]) for row in rows) for name in counts}
        return sums | {f"batches_{row.state}": row.batches for row in rows}

    def move_run(
        self, run_id: str, state: MigrationRunState, *, report: Mapping[str, Any] | None = None
    ) -> None:
        """Set a run's state, if the transition is allowed."""

        def work(connection: Connection) -> None:
            now_in = self._rows.locked(connection, run_id).state
            if not run_may_become(MigrationRunState(now_in), state):
                raise MigrationFailed(f"run {run_id} is {now_in} and cannot become {state}")
            values: dict[str, Any] = {"state": state.value}
            if state.is_over:
                values |= {"ended": self._context.now(connection)}
            self._rows.change(connection, run_id, report=report, **values)
            if state.is_over:
                self._claims.drop_all(connection, run_id)

        self._context.database.run(work)

    def move_batch(self, run_id: str, batch: Batch, transaction: Transaction | None = None) -> None:
        """Write *batch*, if the transition to its state is allowed."""

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
                    taken=batch.collected,
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
            work(as_connection(transaction))

    def _insert_batches(
        self, connection: Connection, run_id: str, planned: Sequence[KeyRange]
    ) -> None:
        numbered = enumerate(planned)
        while page := list(islice(numbered, _PAGE)):
            rows = [_planned(run_id, no, span) for no, span in page]
            execute_many(connection, insert(self._batches), rows)
            reach("ledger.batches_written")

    def _require_runner(self, connection: Connection, run: MigrationRun) -> None:
        """Raise MigrationRefused if the run has another runner; lock it until the commit."""
        runner = self._rows.locked(connection, run.id).runner
        if runner != run.runner:
            raise MigrationRefused(
                f"another process works at run {run.id} now", ["leave the run to that process"]
            )

    def _locked(
        self, connection: Connection, run: MigrationRun, *which: ColumnElement[bool]
    ) -> Batch | None:
        """Lock and return the first batch of the run that meets *which*."""
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

    def _put(self, connection: Connection, run: MigrationRun, batch: Batch, name: str) -> Batch:
        self._claims.put(connection, run.id, batch.no, name)
        return replace(batch, claim=name)

    def _open_run(self, connection: Connection) -> MigrationRun | None:
        rows = self._rows.matching(connection, *self._mine, self._is_open)
        return _migration_run(rows[0]) if rows else None


def _planned(run_id: str, no: int, planned: KeyRange) -> dict[str, Any]:
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


def _migration_run(row: RunRow) -> MigrationRun:
    return MigrationRun(
        id=row.run_id,
        terms=Terms.from_json(row.parameters),
        state=MigrationRunState(row.state),
        created=row.created,
        ended=row.ended,
        runner=row.runner,
        report=row.report,
    )


def _batch(row: Row[Any]) -> Batch:
    return Batch(
        no=row.no,
        range=KeyRange(
            Key(row.from_due, row.from_id), Key(row.to_due, row.to_id), row._mapping["count"]
        ),
        state=BatchState(row.state),
        collected=row.taken,
        new=row.arrived,
        known=row.known,
        returned=row.returned,
        repeated=row.repeated,
    )
