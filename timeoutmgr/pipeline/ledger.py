"""The ledger of bulk work: which runs there were, with what parameters, and how far each is."""

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, insert, select, update

from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Clock
from timeoutmgr.database.owners import OwnerLives
from timeoutmgr.instants import Micros
from timeoutmgr.pipeline.errors import RunInTheWay
from timeoutmgr.pipeline.stores import Store


class RunState(StrEnum):
    """How far a run is."""

    RUNNING = "running"
    PUBLISHED = "published"
    """What it wrote counts; what it is to remove is not all removed."""
    COMPLETED = "completed"
    ABORTED = "aborted"
    """It died before what it wrote counted, and that was swept; or it was given up."""

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to be done."""
        return self in (RunState.COMPLETED, RunState.ABORTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run as the ledger has it; *report* is the last note of what it has done.

    *runner* names the life of the process that works at it, or worked at it last.
    """

    run_id: str
    kind: str
    state: RunState
    created: Micros
    parameters: Mapping[str, Any]
    runner: str | None = None
    ended: Micros | None = None
    report: Mapping[str, Any] | None = None


@contextmanager
def alone(store: Store, what: str) -> Iterator[None]:
    """Be the one process that does *what* in *store*; however it ends, the next one may.

    Raises RunInTheWay while another does it.
    """
    lives = OwnerLives(store.database)
    with store.database.begin():  # on SQLite, one at a time looks and begins
        if not lives.gone({what}):
            raise RunInTheWay(f"another process is at it: {what}; wait until it has ended")
        lives.begin(what)
    try:
        yield
    finally:
        lives.end(what)


@contextmanager
def at_work(store: Store, ledger: "Ledger", run_id: str) -> Iterator[None]:
    """Work at a run that was begun; if this process dies at it, the next run notes that."""
    lives, runner = OwnerLives(store.database), f"{run_id} {secrets.token_hex(4)}"
    lives.begin(runner)
    try:
        ledger.take(run_id, runner)
        yield
    finally:
        lives.end(runner)


class Ledger:
    """The runs of one store."""

    def __init__(self, store: Store, clock: Clock | None = None) -> None:
        self._database = store.database
        self._runs, self._batches = store.tables.runs, store.tables.batches
        self._clock = clock or SystemClock()

    def begin(
        self, run_id: str, kind: str, parameters: Mapping[str, Any], instant: Micros | None = None
    ) -> Run:
        """Return the run, begun now or before.

        *instant* is what the run takes for now, where all runs with the same *parameters* have to
        take the same.

        Raises RunInTheWay where it was begun with other parameters, or one with the same at another
        instant: half of one run and half of another is neither.
        """
        text = _text(parameters)
        now = self._database.now(self._clock) if instant is None else instant

        def work(connection: Connection) -> Run:
            found = self._find(connection, run_id)
            if found is None:
                _require(instant, self._first(connection, kind, text))
                row = {"run_id": run_id, "kind": kind, "state": RunState.RUNNING.value}
                connection.execute(insert(self._runs), {**row, "created": now, "parameters": text})
                found = self._find(connection, run_id)
                assert found is not None, "it was inserted"
            if found.kind != kind or _text(found.parameters) != text:
                raise RunInTheWay(
                    f"run {run_id!r} was begun as {found.kind} with {dict(found.parameters)}, not "
                    f"as {kind} with {dict(parameters)}; give the same parameters, or another "
                    "run id"
                )
            _require(instant, found)
            return found

        return self._database.run(work)

    def find(self, run_id: str) -> Run | None:
        """Return the run, or None."""
        with self._database.read() as connection:
            return self._find(connection, run_id)

    def first(self, kind: str, parameters: Mapping[str, Any]) -> Run | None:
        """Return the first run of *kind* that was begun with exactly *parameters*, or None."""
        with self._database.read() as connection:
            return self._first(connection, kind, _text(parameters))

    def runs(self, kind: str, state: RunState) -> list[Run]:
        """Return the runs of *kind* in *state*, the oldest first."""
        with self._database.read() as connection:
            return self.runs_within(connection, kind, state)

    def runs_within(self, connection: Connection, kind: str, state: RunState) -> list[Run]:
        """Return the same as the transaction of *connection* sees it."""
        wanted = (
            select(self._runs)
            .where(self._runs.c.kind == kind, self._runs.c.state == state.value)
            .order_by(self._runs.c.created, self._runs.c.run_id)
        )
        return [_run(row) for row in connection.execute(wanted)]

    def move(self, run_id: str, state: RunState) -> None:
        """Note that the run is in *state*, and when it ended."""

        def work(connection: Connection) -> None:
            ended = self._database.now(self._clock) if state.is_over else None
            one = update(self._runs).where(self._runs.c.run_id == run_id)
            connection.execute(one.values(state=state.value, ended=ended))

        self._database.run(work)

    def take(self, run_id: str, runner: str) -> None:
        """Note that the run is worked at, by the process that has the life *runner*."""
        one = update(self._runs).where(self._runs.c.run_id == run_id)
        values = {"runner": runner, "state": RunState.RUNNING.value, "ended": None}
        self._database.run(lambda connection: connection.execute(one.values(values)))

    def abort_the_dead(self, kind: str) -> list[str]:
        """Note of the running runs of *kind* whose process died that they ended; return their ids.

        A run of the same parameters may take such a run up again.
        """
        running = {run.runner: run.run_id for run in self.runs(kind, RunState.RUNNING)}
        dead = OwnerLives(self._database).gone({name for name in running if name is not None})
        for runner in dead:
            self.move(running[runner], RunState.ABORTED)
        return sorted(running[runner] for runner in dead)

    def note(self, run_id: str, report: Mapping[str, Any]) -> None:
        """Write down what the run has done, over the note before."""
        one = update(self._runs).where(self._runs.c.run_id == run_id)
        self._database.run(lambda connection: connection.execute(one.values(report=_text(report))))

    def counted(self, run_id: str) -> int:
        """Return the sum of what the run's batches counted."""
        with self._database.read() as connection:
            return sum(self._counts(connection, run_id).values())

    def done(self, connection: Connection, run_id: str, no: int) -> bool:
        """Return whether the batch *no* of the run is done."""
        return no in self._counts(connection, run_id, no)

    def close_batch(self, connection: Connection, run_id: str, no: int, count: int) -> None:
        """Note, in the transaction that does it, that batch *no* is done."""
        row = {"run_id": run_id, "no": no, "state": RunState.COMPLETED.value, "count": count}
        connection.execute(insert(self._batches), row)

    def note_batches(self, run_id: str, counts: Sequence[int]) -> None:
        """Note the *counts* of batches that were done elsewhere, behind those there are."""

        def work(connection: Connection) -> None:
            first = max(self._counts(connection, run_id), default=-1) + 1
            for no, count in enumerate(counts, first):
                self.close_batch(connection, run_id, no, count)

        self._database.run(work)

    def _counts(self, connection: Connection, run_id: str, no: int | None = None) -> dict[int, int]:
        batches = self._batches
        wanted = select(batches.c.no, batches.c.count).where(batches.c.run_id == run_id)
        if no is not None:
            wanted = wanted.where(batches.c.no == no)
        return {row[0]: row[1] for row in connection.execute(wanted)}

    def _first(self, connection: Connection, kind: str, text: str) -> Run | None:
        wanted = (
            select(self._runs)
            .where(self._runs.c.kind == kind, self._runs.c.parameters == text)
            .order_by(self._runs.c.created, self._runs.c.run_id)
        )
        # To MySQL, texts that differ in upper and lower case alone are equal.
        rows = (row for row in connection.execute(wanted) if row.parameters == text)
        return next(map(_run, rows), None)

    def _find(self, connection: Connection, run_id: str) -> Run | None:
        row = connection.execute(select(self._runs).where(self._runs.c.run_id == run_id)).first()
        return None if row is None else _run(row)


def _require(instant: Micros | None, begun: Run | None) -> None:
    """Raise RunInTheWay where a run that was *begun* is of another *instant* (None: of any)."""
    if instant is not None and begun is not None and begun.created != instant:
        raise RunInTheWay(
            f"run {begun.run_id!r} of the same was begun by another process meanwhile; run it "
            "again, it takes that one's instant for now"
        )


def _text(parameters: Mapping[str, Any]) -> str:
    return json.dumps(parameters, sort_keys=True)


def _run(row: Any) -> Run:
    return Run(
        run_id=row.run_id,
        kind=row.kind,
        state=RunState(row.state),
        created=row.created,
        parameters=json.loads(row.parameters),
        runner=row.runner,
        ended=row.ended,
        report=None if row.report is None else json.loads(row.report),
    )
