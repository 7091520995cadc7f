"""A process is killed at each point of a bulk run, pause or count; another process goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from chaos.forkserver_client import ForkServer
from tests.crash.bulk_worker import HOUR, dispatch, face, persistence
from tests.crash.cases import BULK, Crash
from tests.crash.site import Worker
from tests.persistence.making import timeout
from tests.support.clock import START, FakeClock
from timeoutmgr.contracts import Count, LoadWindow, Timeout, TimeoutFilter
from timeoutmgr.contracts.bulk_runs import BulkState
from timeoutmgr.crashpoints import POINTS
from timeoutmgr.errors import InvalidMessage
from timeoutmgr.persistence.sql.load_counts import CountedLoad
from timeoutmgr.persistence.sql.store import SqlTimeoutStore

AMOUNT: Final = 15
PLANNING: Final = (
    *("bulk.planning", "bulk.keys_kept", "bulk.exported", "bulk.planned", "audit.written"),
)
APPLYING: Final = (
    *("bulk.begun", "bulk.locked", "bulk.rows_moved", "bulk.changed", "bulk.left_noted"),
    *("bulk.batch_closed", "bulk.ended"),
)
UNDOING: Final = tuple(point for point in APPLYING if point != "bulk.left_noted")
CANCELLING: Final = ("bulk.keys_cancelled", "bulk.rows_cancelled")
REROUTING: Final = ("changing.rerouted",)
PAUSING: Final = (
    *("pausing.former_ended", "pausing.written", "pausing.parked"),
    *("pausing.returned", "pausing.forgotten"),
)
COUNTING: Final = ("load.tiles_written", "load.slice_counted")
OF_MANY: Final = ("changing.cancel_remembered",)
ONCE: Final = {"bulk.begun", "bulk.ended"}


class Scene:
    """An endpoint's tables, and the processes that change its timeouts."""

    def __init__(self, url: str, endpoint: str, folder: Path, fork_server: ForkServer) -> None:
        self.url, self.endpoint, self.now = url, endpoint, START
        self._folder, self._fork_server = folder, fork_server
        self._processes = 0
        with closing(persistence(url)) as opened:
            opened.install()

    def run(self, work: str, crash: Crash | None = None, **more: Any) -> None:
        """Have a process do *work*, or die at *crash*."""
        self._processes += 1
        given: dict[str, Any] = {
            "worker": "tests.crash.bulk_worker",
            "url": self.url,
            "endpoint": self.endpoint,
            "at": self.now,
            "work": work,
            **more,
        }
        output = self._folder / f"{self._processes}.txt"
        worker = Worker(self._fork_server, given, output, crash)
        worker.wait_until_it_ends()
        assert worker.was_killed is (crash is not None), f"{crash}: {worker.said}"
        assert "Traceback" not in worker.said, worker.said

    @contextmanager
    def store(self) -> Iterator[SqlTimeoutStore]:
        """Lend the store."""
        with closing(persistence(self.url)) as opened:
            yield opened.timeouts(self.endpoint, FakeClock(self.now))

    def fill(self, due: int) -> dict[str, Timeout]:
        """Store timeouts; return them by id."""
        made = [timeout(f"t{number}", due + number) for number in range(AMOUNT)]
        with self.store() as store:
            store.store_many(made)
        return {one.id: one for one in made}

    def plan(self, change: str) -> str:
        """Have a process plan; return the run."""
        self.run("plan", change=change)
        with self.store() as store:
            run = store.bulk_runs()[0]
        assert run.state is BulkState.PLANNED
        assert run.selected == AMOUNT
        return run.id

    def pending(self) -> dict[str, tuple[int, str]]:
        """Due times and destinations of the pending timeouts."""
        with self.store() as store:
            return {one.id: (one.due, one.destination) for one in store.list(TimeoutFilter())}

    def outcomes(self, run_id: str) -> list[str]:
        """The rows of the audit about a run; the audit must be whole."""
        with self.store() as store:
            assert store.verify_audit({}).faults == []
            rows = store.audit(run_id=run_id)
        return sorted(f"{row.action} {row.outcome} {row.changed}" for row in rows)


@pytest.fixture(params=["sqlite", "postgres", pytest.param("mysql", marks=pytest.mark.long)])
def scene(
    request: pytest.FixtureRequest, unique: str, tmp_path: Path, fork_server: ForkServer
) -> Iterator[Scene]:
    """An endpoint of its own in each kind of database."""
    made = Scene(request.getfixturevalue(f"{request.param}_url"), unique, tmp_path, fork_server)
    yield made
    with closing(persistence(made.url)) as opened:
        opened.uninstall(unique, force=True)


def _crashes(points: tuple[str, ...]) -> list[Crash]:
    return [Crash(one, nth) for one in points for nth in (1, 2) if nth == 1 or one not in ONCE]


@pytest.mark.parametrize("point", PLANNING)
def test_a_plan_that_is_killed_is_never_applied(scene: Scene, point: str) -> None:
    made = scene.fill(scene.now + HOUR)

    scene.run("plan", Crash(point, 1), change="shift")

    with scene.store() as store:
        (run,) = store.bulk_runs()
        assert run.state is BulkState.PLANNING
        assert store.audit() == []
        with pytest.raises(InvalidMessage, match="planning and cannot be applied"):
            face(store).bulk.apply(run.id)
    assert scene.pending() == {name: (one.due, "billing") for name, one in made.items()}


def test_a_shift_that_is_killed_at_one_point_after_the_other_moves_each_once(scene: Scene) -> None:
    made = scene.fill(scene.now + HOUR)
    run_id = scene.plan("shift")

    for crash in _crashes(APPLYING):
        scene.run("apply", crash, run=run_id)
    scene.run("apply", run=run_id)

    expected = {name: (one.due + 2 * HOUR, "billing") for name, one in made.items()}
    assert scene.pending() == expected
    recorded = ["shift done 0", f"shift done {AMOUNT}", "shift started None"]
    assert scene.outcomes(run_id) == sorted(recorded)


def test_an_undo_that_is_killed_at_one_point_after_the_other_restores_each(scene: Scene) -> None:
    made = scene.fill(scene.now + HOUR)
    run_id = scene.plan("shift")
    scene.run("apply", run=run_id)

    for crash in _crashes(UNDOING):
        scene.run("undo", crash, run=run_id)
    scene.run("undo", run=run_id)

    assert scene.pending() == {name: (one.due, "billing") for name, one in made.items()}
    recorded = [f"undo-shift done {AMOUNT}", "undo-shift started None"]
    assert [one for one in scene.outcomes(run_id) if "undo" in one] == recorded


@pytest.mark.parametrize(("change", "points"), [("cancel", CANCELLING), ("reroute", REROUTING)])
def test_a_cancel_and_a_reroute_that_are_killed_are_finished(
    scene: Scene, change: str, points: tuple[str, ...]
) -> None:
    made = scene.fill(scene.now + HOUR)
    run_id = scene.plan(change)

    for crash in _crashes(points):
        scene.run("apply", crash, run=run_id)
    scene.run("apply", run=run_id)

    rerouted = {name: (one.due, "shipping") for name, one in made.items()}
    assert scene.pending() == ({} if change == "cancel" else rerouted)
    assert f"{change} done {AMOUNT}" in scene.outcomes(run_id)


def test_a_pause_and_a_resume_that_are_killed_lose_and_send_nothing(scene: Scene) -> None:
    made = scene.fill(scene.now)
    for point in PAUSING[:2]:
        scene.run("pause", Crash(point, 1))
        with scene.store() as store:
            assert store.pauses() == []
    scene.run("pause")
    scene.now += AMOUNT

    scene.run("dispatch", Crash("pausing.parked", 1))
    scene.run("dispatch")
    assert len(scene.pending()) == AMOUNT

    scene.run("resume", Crash("pausing.returned", 1))
    scene.run("resume", Crash("pausing.forgotten", 1))
    scene.now += 2 * HOUR  # whatever the killed process has claimed is over
    with scene.store() as store:
        assert [pause.is_ending for pause in store.pauses()] == [True]
        face(store).resume("billing")
        assert sorted(dispatch(store)) == sorted(made)
        assert store.pauses() == []


def test_a_cancel_of_a_saga_that_is_killed_is_done_by_the_same_call(scene: Scene) -> None:
    with scene.store() as store:
        store.store_many([timeout(f"t{n}", scene.now + HOUR, saga="s") for n in range(AMOUNT)])

    scene.run("cancel_saga", Crash(OF_MANY[0], 1))
    assert len(scene.pending()) == AMOUNT
    with scene.store() as store:
        assert store.audit() == []
    scene.run("cancel_saga")

    assert scene.pending() == {}
    with scene.store() as store:
        assert [(row.action, row.changed) for row in store.audit()] == [("cancel-saga", AMOUNT)]


def test_a_count_that_is_killed_goes_on_and_shows_no_part_of_a_bucket(scene: Scene) -> None:
    bucket = LoadWindow(scene.now + HOUR, HOUR // 60, 1)
    scene.fill(bucket.start)

    def found() -> list[Count | None]:
        with scene.store() as store, store.context.database.read() as connection:
            counted = CountedLoad(store.context)
            return counted.counts(connection, bucket.edges, None, scene.now)

    for crash in (*_crashes(COUNTING), *(Crash(COUNTING[1], nth) for nth in (3, 4))):
        scene.run("count", crash)
        assert found() == [None]
    scene.run("count")

    assert found() == [Count(AMOUNT, as_of=scene.now)]


def test_the_points_of_bulk_runs_and_pauses_are_reached_here() -> None:
    covered = {*PLANNING, *APPLYING, *CANCELLING, *REROUTING, *PAUSING, *COUNTING, *OF_MANY}

    assert {point for point in POINTS if point.startswith(BULK)} <= covered
