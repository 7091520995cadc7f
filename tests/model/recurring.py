"""The real task of recurring timeouts: two processes of one schedule, a dispatcher, an operator.

The task, its changes of a schedule and the ids of runs are real; the store is simulated. A change
is one transaction under the lock of the schedule's row, and a run that it cancels is locked too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

from timeoutmgr.contracts import CancelResult, RunState, ScheduleRecord, TimeoutState
from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.message.instants import Micros
from timeoutmgr.recurrence.changes import pause, resume
from timeoutmgr.recurrence.definition import CatchUp, RecurringTimeout
from timeoutmgr.recurrence.task import RecurringTask
from timeoutmgr.telemetry import Counters

from .explorer import Actor, Model, Player
from .promises import Promise, PromiseBroken
from .world import BEFORE, DUE, LAST, LATER, Bounds, Map, Op, Outcomes, Raised, Run, World

Changed = TypeVar("Changed")
Change = Callable[[World], World]

NAME, ROW = "tick", "the row of the schedule"
INSTANTS = (BEFORE, DUE, LATER, LAST)
"""The schedule is every hour, and the clock moves from one occurrence to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurringScenario:
    """Processes of a schedule, and the faults that may happen. Mutants change the last four fields.

    With *outage* no process runs between the first and the last instant. With *paused* an operator
    pauses the schedule at some time, and resumes it later.
    """

    catch_up: CatchUp = CatchUp.ALL
    outage: bool = False
    paused: bool = False
    bounds: Bounds = field(default_factory=Bounds)
    has_lock: bool = True
    own_ids: bool = False
    """Whether each process has ids of its own for the runs that it stores."""
    one_transaction: bool = True
    """Whether the runs of a change are committed with its record; otherwise after it."""
    forgets_cancels: bool = False
    """Whether the id of a cancelled run is taken for unused."""

    def model(self) -> Model:
        """Return the model of this scenario."""
        processes = [
            Actor(
                name=f"process{n}",
                kind="process",
                activity=_Process(self, f"process{n}").step,
                may_begin=lambda world: not self.outage or world.now in (BEFORE, LAST),
            )
            for n in (1, 2)
        ]
        dispatcher = Actor(name="dispatcher", kind="dispatcher", activity=_dispatch)
        operator = Actor(
            name="operator", kind="operator", activity=_Process(self, "operator").pause, once=True
        )
        return Model(
            world=World(now=BEFORE, queues=Map()),
            actors=(*processes, dispatcher, *([operator] if self.paused else [])),
            bounds=self.bounds,
            crash=lambda world, who: world._replace(crashes=world.crashes + 1).released(who),
            faults=(_time_passes,),
            check=_check,
            settle=lambda world: world,
            check_end=self._check_end,
        )

    def _check_end(self, world: World) -> None:
        """Check which occurrences have a run, once each process has had its turns."""
        kept, sent = world.recurring, set(world.recurring.sent())
        if kept.record.is_paused or kept.began is None:
            return
        if self.outage and world.now not in (BEFORE, LAST):
            return
        if kept.record.run_due is None or kept.record.run_due <= world.now:
            raise PromiseBroken(Promise.NEVER_LOST, "no run is stored ahead")
        if not any(run.due == kept.record.run_due for run in _pending(kept.runs)):
            raise PromiseBroken(Promise.NEVER_LOST, "the run that is stored ahead does not wait")
        expected = self._expected(world)
        if expected is not None and sent != expected:
            shown = sorted(INSTANTS.index(due) for due in sent)
            kind = Promise.NEVER_LOST if expected - sent else Promise.NO_REPEAT_WITHOUT_CRASH
            raise PromiseBroken(kind, f"the occurrences {shown} have runs")

    def _expected(self, world: World) -> set[Micros] | None:
        """Return the occurrences that must have a run; None if that depends on the order."""
        kept = world.recurring
        assert kept.began is not None, "asked only then"
        passed = {each for each in INSTANTS if kept.began < each <= world.now}
        if self.catch_up is CatchUp.ALL:
            return passed
        if not self.outage or world.now != LAST or kept.began != BEFORE:
            return None
        if self.catch_up is CatchUp.NONE:
            return {DUE}
        # The run that was stored before the outage counts, if it was sent after a missed one.
        return {DUE} if kept.sent().get(DUE, LAST) >= LATER else {DUE, LAST}


def _check(world: World) -> None:
    """Check that no occurrence has two runs, and a paused schedule none, in any state."""
    live = [run.due for run in world.recurring.runs.values() if run.state is not _CANCELLED]
    if len(live) != len(set(live)):
        raise PromiseBroken(Promise.NO_REPEAT_WITHOUT_CRASH, "an occurrence has two runs")
    record = world.recurring.record
    if record.is_paused and record.run_due is not None:
        raise PromiseBroken(Promise.CANCEL_IS_TRUE, "a run is stored while the schedule is paused")


_CANCELLED = TimeoutState.CANCELLED


def _pending(runs: Map[str, Run]) -> Iterator[Run]:
    return (run for run in runs.values() if run.state is TimeoutState.PENDING)


def _time_passes(world: World) -> Iterator[tuple[str, World]]:
    later = [each for each in INSTANTS if each > world.now]
    if later:
        yield "an hour passes", world._replace(now=later[0])


def _dispatch(player: Player) -> None:
    """Send one run that is due."""
    player.ask(Op("dispatch", _sent))


def _sent(world: World) -> Outcomes:
    kept = world.recurring
    for name, run in sorted(kept.runs.items(), key=lambda pair: pair[1].due):
        waits = run.state is TimeoutState.PENDING and run.due <= world.now
        if waits and not world.held_by_other(name, "dispatcher"):
            closed = run._replace(state=TimeoutState.DISPATCHED, closed_at=world.now)
            yield (
                f" of occurrence {INSTANTS.index(run.due)}",
                world._replace(recurring=kept._replace(runs=kept.runs.having(name, closed))),
                None,
            )
            return
    yield " of nothing", world, None


class _Process:
    """One process: the real task, on a store whose calls the explorer answers."""

    def __init__(self, scenario: RecurringScenario, who: str) -> None:
        self._in = scenario
        self._who = who

    def step(self, player: Player) -> None:
        """Run one step of the task, as its loop does, also in an outage."""
        store = _Store(self._in, player, self._who)
        definition = RecurringTimeout(
            name=NAME, message_type="Tick", body=None, every="1 hour", catch_up=self._in.catch_up
        )
        task = RecurringTask(
            [definition],
            cast(Any, store),
            cast(Any, store),
            ready=lambda: None,
            wake=lambda _due: None,
            telemetry=Counters(),
        )
        try:
            task.step()
        except StorageUnavailable:
            return

    def pause(self, player: Player) -> None:
        """Pause the schedule, and resume it; a process stores the next run."""
        store = _Store(self._in, player, self._who)
        try:
            store.change_schedule(NAME, lambda locked: pause(cast(Any, locked), "operator"))
            store.change_schedule(NAME, lambda locked: resume(cast(Any, locked), "operator"))
        except StorageUnavailable:
            return


class _Store:
    """The store and the runs of one process; a change is committed, or nothing of it is."""

    endpoint = "sales"

    def __init__(self, scenario: RecurringScenario, player: Player, who: str) -> None:
        self._in = scenario
        self.player = player
        self.who = who

    def now(self) -> Micros:
        return cast(Micros, self.player.ask(Op("now", lambda world: _one(world, world.now), True)))

    def schedules(self) -> list[ScheduleRecord]:
        return [
            self.player.ask(Op("read", lambda world: _one(world, world.recurring.record), True))
        ]

    def change_schedule(self, _name: str, change: Callable[[_Locked], Changed]) -> Changed:
        record = self.player.ask(Op("lock the row", self._lock))
        locked = _Locked(self, self._in, record)
        result = change(locked)
        for name, changes in locked.transactions():
            self.player.ask(Op(name, partial(self._commit, changes)))
        return result

    def timeout_id(self, message_id: str) -> str:
        return f"{message_id} of {self.who}" if self._in.own_ids else message_id

    def store(
        self, _definition: RecurringTimeout, due: Micros, message_id: str, locked: _Locked
    ) -> None:
        locked.runs.append(lambda world: _with_run(world, self.timeout_id(message_id), due))

    def _lock(self, world: World) -> Outcomes:
        if not self._in.has_lock:
            yield "", world, world.recurring.record
        elif not world.held_by_other(ROW, self.who):
            yield "", world.locking(self.who, ROW), world.recurring.record

    def _commit(self, changes: list[Change], world: World) -> Outcomes:
        changed = world
        for change in changes:
            changed = change(changed)
        yield "", changed.released(self.who), None
        if world.unknowns < self._in.bounds.unknowns:
            unknown = Raised(StorageUnavailable, "no answer to the commit")
            for label, after in (("is done", changed), ("is not done", world)):
                after = after._replace(unknowns=after.unknowns + 1).released(self.who)
                yield f" {label}, without an answer", after, unknown


class _Locked:
    """The locked schedule; its changes wait for the commit."""

    def __init__(self, store: _Store, scenario: RecurringScenario, record: ScheduleRecord) -> None:
        self._store = store
        self._in = scenario
        self.record = record
        self.runs: list[Change] = []
        self._records: list[Change] = []

    @property
    def transaction(self) -> _Locked:
        return self

    def now(self) -> Micros:
        return self._store.now()

    def run_state(self, timeout_id: str) -> RunState | None:
        def outcomes(world: World) -> Outcomes:
            run = world.recurring.runs.get(timeout_id)
            if run is not None and run.state is _CANCELLED and self._in.forgets_cancels:
                run = None
            yield from _one(world, None if run is None else RunState(run.state, run.closed_at))

        return cast("RunState | None", self._store.player.ask(Op("ask for a run", outcomes)))

    def cancel(self, timeout_id: str, _channel: str) -> CancelResult:
        def outcomes(world: World) -> Outcomes:
            if world.recurring.runs[timeout_id].state is not TimeoutState.PENDING:
                yield "", world, CancelResult.TOO_LATE
            else:
                yield "", world.locking(self._store.who, timeout_id), CancelResult.CANCELLED

        answer = self._store.player.ask(Op("cancel a run", outcomes))
        if answer is CancelResult.CANCELLED:
            self.runs.append(lambda world: _with_cancel(world, timeout_id))
        return cast(CancelResult, answer)

    def audit(self, _action: str, _channel: str) -> None:
        """Keep nothing: the model has no audit."""

    def write(self, record: ScheduleRecord) -> None:
        self._records.append(lambda world: _with_record(world, record))

    def transactions(self) -> list[tuple[str, list[Change]]]:
        """Return the changes of each commit."""
        if self._in.one_transaction:
            return [("commit", [*self._records, *self.runs])]
        return [("commit the record", self._records), ("commit the runs", self.runs)]


def _one(world: World, answer: Any) -> Outcomes:
    yield "", world, answer


def _with_run(world: World, name: str, due: Micros) -> World:
    """Insert a run, unless the id was ever used."""
    kept = world.recurring
    if name in kept.runs:
        return world
    return world._replace(recurring=kept._replace(runs=kept.runs.having(name, Run(due))))


def _with_record(world: World, record: ScheduleRecord) -> World:
    kept = world.recurring
    began = record.done_until if kept.began is None else kept.began
    return world._replace(recurring=kept._replace(record=record, began=began))


def _with_cancel(world: World, name: str) -> World:
    kept = world.recurring
    run = kept.runs[name]._replace(state=_CANCELLED, closed_at=world.now)
    return world._replace(recurring=kept._replace(runs=kept.runs.having(name, run)))
