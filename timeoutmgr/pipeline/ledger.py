"""The ledger of pipeline jobs: runs with their parameters and progress."""

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, insert, select

from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Clock
from timeoutmgr.database.run_rows import RunRow, RunRows
from timeoutmgr.database.session_locks import SessionLocks
from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.message.instants import Micros
from timeoutmgr.pipeline.errors import RunConflict
from timeoutmgr.pipeline.stores import Store


class JobRunState(StrEnum):
    """State of a run."""

    RUNNING = "running"
    COMPLETED = "completed"
    ABORTED = "aborted"
    """Its process died, or the run was given up."""

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do."""
        return self in (JobRunState.COMPLETED, JobRunState.ABORTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """A run in the ledger; *report* is its last progress note.

    *runner* is the owner name of the process that works on the run, or worked on it last.
    """

    run_id: str
    kind: str
    state: JobRunState
    created: Micros
    parameters: Mapping[str, Any]
    runner: str | None = None
    ended: Micros | None = None
    report: Mapping[str, Any] | None = None


@contextmanager
def exclusive_lock(store: Store, what: str) -> Iterator[None]:
    """Lock *what* in *store* for this process, until the block or the process ends.

    Raises RunConflict while another process has the lock.
    """
    owners = SessionLocks(store.database)
    with store.database.begin():  # on SQLite, only one process at a time checks and locks
        _require_free(owners, what)
        try:
            owners.acquire(what)
        except StorageUnavailable:
            _require_free(owners, what)  # on a server, another process may have locked in between
            raise
    try:
        yield
    finally:
        owners.release(what)


def _require_free(owners: SessionLocks, what: str) -> None:
    if not owners.dead_owners({what}):
        raise RunConflict(f"another process does this now: {what}; wait until it has ended")


class JobLedger:
    """The runs of one store."""

    def __init__(self, store: Store, clock: Clock | None = None) -> None:
        self._database = store.database
        self._runs, self._batches = store.tables.runs, store.tables.batches
        self._rows = RunRows(self._runs)
        self._clock = clock or SystemClock()

    def begin(
        self,
        run_id: str,
        kind: str,
        parameters: Mapping[str, Any],
        instant: Micros | None = None,
        runner: str | None = None,
    ) -> JobRun:
        """Return the run, begun now or before.

        *instant* is the time of the run, if all runs with the same *parameters* need the same time.
        The process with the session lock *runner* works on the run.

        Raises RunConflict if the run was begun with other parameters, or a run with the same
        parameters at another instant: the halves of two runs make no whole run.
        """
        text = _text(parameters)
        now = self._database.now(self._clock) if instant is None else instant

        def work(connection: Connection) -> JobRun:
            found = self._find(connection, run_id)
            if found is None:
                _require(instant, self._first(connection, kind, text))
                row = RunRow(
                    run_id=run_id,
                    kind=kind,
                    state=JobRunState.RUNNING.value,
                    created=now,
                    parameters=text,
                )
                self._rows.insert(connection, row)
                found = _job_run(row)
            if found.kind != kind or _text(found.parameters) != text:
                raise RunConflict(
                    f"run {run_id!r} was begun as {found.kind} with {dict(found.parameters)}, not "
                    f"as {kind} with {dict(parameters)}; give the same parameters, or another "
                    "run id"
                )
            _require(instant, found)
            if runner is not None:
                again: dict[str, Any] = {"state": JobRunState.RUNNING.value, "ended": None}
                self._rows.change(connection, run_id, runner=runner, **again)
            return found

        return self._database.run(work)

    @contextmanager
    def at_work(
        self, run_id: str, kind: str, parameters: Mapping[str, Any], instant: Micros | None = None
    ) -> Iterator[None]:
        """Begin the run, or continue it; if this process dies, the next run aborts it."""
        self.abort_the_dead(kind)
        owners, runner = SessionLocks(self._database), f"{run_id} {secrets.token_hex(4)}"
        owners.acquire(runner)  # first: a begun run without a runner would never be aborted
        try:
            self.begin(run_id, kind, parameters, instant, runner)
            yield
        finally:
            owners.release(runner)

    def find(self, run_id: str) -> JobRun | None:
        """Return the run, or None."""
        with self._database.read() as connection:
            return self._find(connection, run_id)

    def first(self, kind: str, parameters: Mapping[str, Any]) -> JobRun | None:
        """Return the first run of *kind* that was begun with exactly *parameters*, or None."""
        with self._database.read() as connection:
            return self._first(connection, kind, _text(parameters))

    def runs(self, kind: str, state: JobRunState) -> list[JobRun]:
        """Return the runs of *kind* in *state*, the oldest first."""
        with self._database.read() as connection:
            return self.runs_within(connection, kind, state)

    def runs_within(self, connection: Connection, kind: str, state: JobRunState) -> list[JobRun]:
        """Return the same runs as seen by the transaction of *connection*."""
        runs = self._runs
        rows = self._rows.matching(connection, runs.c.kind == kind, runs.c.state == state.value)
        return [_job_run(row) for row in rows]

    def move(
        self, run_id: str, state: JobRunState, report: Mapping[str, Any] | None = None
    ) -> None:
        """Record the run's *state*, the time of its end, and its last *report*, if given."""
        ended = self._database.now(self._clock) if state.is_over else None
        values: dict[str, Any] = {"report": report, "state": state.value, "ended": ended}
        self._database.run(lambda connection: self._rows.change(connection, run_id, **values))

    def abort_the_dead(self, kind: str) -> list[str]:
        """Abort the running runs of *kind* whose process died; return their ids.

        A run with the same parameters may continue such a run.
        """
        running = {run.runner: run.run_id for run in self.runs(kind, JobRunState.RUNNING)}
        dead = SessionLocks(self._database).dead_owners(
            {name for name in running if name is not None}
        )
        for runner in dead:
            self.move(running[runner], JobRunState.ABORTED)
        return sorted(running[runner] for runner in dead)

    def note(self, run_id: str, report: Mapping[str, Any]) -> None:
        """Write the report of the run, replacing the previous report."""
        self._database.run(lambda connection: self._rows.change(connection, run_id, report=report))

    def counted(self, run_id: str) -> int:
        """Return the sum of the counts of the run's batches."""
        with self._database.read() as connection:
            return sum(self._counts(connection, run_id).values())

    def note_batches(self, run_id: str, counts: Sequence[int]) -> None:
        """Append the *counts* of batches that were processed elsewhere."""
        done = {"run_id": run_id, "state": JobRunState.COMPLETED.value}

        def work(connection: Connection) -> None:
            first = max(self._counts(connection, run_id), default=-1) + 1
            for no, count in enumerate(counts, first):
                connection.execute(insert(self._batches), {**done, "no": no, "count": count})

        self._database.run(work)

    def _counts(self, connection: Connection, run_id: str) -> dict[int, int]:
        batches = self._batches
        wanted = select(batches.c.no, batches.c.count).where(batches.c.run_id == run_id)
        return {row[0]: row[1] for row in connection.execute(wanted)}

    def _first(self, connection: Connection, kind: str, text: str) -> JobRun | None:
        runs = self._runs
        rows = self._rows.matching(connection, runs.c.kind == kind, runs.c.parameters == text)
        # MySQL considers texts equal that differ only in upper and lower case.
        return next((_job_run(row) for row in rows if row.parameters == text), None)

    def _find(self, connection: Connection, run_id: str) -> JobRun | None:
        row = self._rows.find(connection, run_id)
        return None if row is None else _job_run(row)


def _require(instant: Micros | None, begun: JobRun | None) -> None:
    """Raise RunConflict if the run *begun* has another *instant* (None: any is fine)."""
    if instant is not None and begun is not None and begun.created != instant:
        raise RunConflict(
            f"run {begun.run_id!r} of the same was begun by another process meanwhile; run it "
            "again, it takes that one's instant for now"
        )


def _text(parameters: Mapping[str, Any]) -> str:
    return json.dumps(parameters, sort_keys=True)


def _job_run(row: RunRow) -> JobRun:
    state, parameters = JobRunState(row.state), json.loads(row.parameters)
    found = asdict(row) | {"state": state, "parameters": parameters}
    del found["endpoint"]  # of migrations
    return JobRun(**found)
