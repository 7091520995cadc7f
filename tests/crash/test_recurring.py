"""A process is killed at each point of a change of a schedule: each occurrence still runs once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from chaos.forkserver_client import ForkServer
from tests.crash.cases import Crash
from tests.crash.scheduler import NAME, persistence
from tests.crash.site import Worker
from tests.support.clock import START, FakeClock
from timeoutmgr.contracts import Outcome, OutcomeKind, TimeoutFilter
from timeoutmgr.crashpoints import POINTS

HOUR: Final = 3600 * 1_000_000
STORING: Final = tuple(
    point
    for point in POINTS
    if point.startswith("recurring.") and point != "recurring.run_cancelled"
)
"""Points of a process that stores the next run."""
CANCELLING: Final = (
    *("recurring.run_cancelled", "recurring.record_written", "recurring.changed"),
    *("changing.key_cancelled", "changing.row_cancelled", "changing.cancelled"),
)
"""Points of a process that cancels the next run."""


class Scene:
    """An endpoint's tables, and the processes that change its schedule."""

    def __init__(self, url: str, endpoint: str, folder: Path, fork_server: ForkServer) -> None:
        self.url, self.endpoint = url, endpoint
        self.now = START
        self._folder, self._fork_server = folder, fork_server
        self._processes = 0
        with closing(persistence(url)) as store:
            store.install()

    def run(self, work: str, crash: str | None = None, *, every: str = "1 hour") -> None:
        """Have a process do *work*, or die at the point *crash*."""
        self._processes += 1
        given: dict[str, Any] = {
            "worker": "tests.crash.scheduler",
            "url": self.url,
            "endpoint": self.endpoint,
            "at": self.now,
            "every": every,
            "work": work,
        }
        output = self._folder / f"{self._processes}.txt"
        doomed = None if crash is None else Crash(crash, 1)
        worker = Worker(self._fork_server, given, output, doomed)
        worker.wait_until_it_ends()
        assert worker.was_killed is (crash is not None), f"{crash}: {worker.said}"
        assert "Traceback" not in worker.said, worker.said

    def pending(self) -> list[int]:
        """The hours after the start at which the stored runs are due."""
        with closing(persistence(self.url)) as store:
            found = store.timeouts(self.endpoint, FakeClock(self.now)).list(TimeoutFilter())
        return [(one.due - START) // HOUR for one in found]

    def dispatch(self) -> list[int]:
        """Send what is due; return the hours of the runs."""
        with closing(persistence(self.url)) as opened:
            store = opened.timeouts(self.endpoint, FakeClock(self.now))
            chunk = store.claim(self.now, 100, "dispatcher")
            with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
                outcomes = [
                    Outcome(key=one.key, kind=OutcomeKind.DISPATCHED, at=self.now)
                    for one in locked.timeouts
                ]
                locked.close(outcomes)
        return [(outcome.key.due - START) // HOUR for outcome in outcomes]

    def is_paused(self) -> bool:
        """Whether the store says that the schedule is paused."""
        with closing(persistence(self.url)) as opened:
            [record] = opened.timeouts(self.endpoint, FakeClock(self.now)).schedules()
        assert record.name == NAME
        return record.is_paused


@pytest.fixture(params=["sqlite", "postgres", pytest.param("mysql", marks=pytest.mark.long)])
def scene(
    request: pytest.FixtureRequest, unique: str, tmp_path: Path, fork_server: ForkServer
) -> Iterator[Scene]:
    """An endpoint of its own in each kind of database."""
    made = Scene(request.getfixturevalue(f"{request.param}_url"), unique, tmp_path, fork_server)
    yield made
    with closing(persistence(made.url)) as store:
        store.uninstall(unique, force=True)


def test_each_occurrence_runs_once_whatever_process_dies_where(scene: Scene) -> None:
    """At each hour a process dies at a point, and the next hour's process goes on."""
    scene.run("step", STORING[0])
    assert STORING[0] == "recurring.row_inserted"
    sent: list[int] = []
    for point in STORING[1:]:
        scene.run("step", point)
        scene.run("step")
        scene.now += HOUR
        sent += scene.dispatch()

        scene.run("step", point)
        sent += scene.dispatch()
        scene.now += HOUR
    scene.run("step")
    sent += scene.dispatch()

    hours = (scene.now - START) // HOUR
    assert sorted(sent) == list(range(1, hours + 1))
    assert scene.pending() == [hours + 1]


@pytest.mark.parametrize("point", CANCELLING)
def test_a_pause_that_dies_has_not_happened(scene: Scene, point: str) -> None:
    scene.run("step")

    scene.run("pause", point)
    assert (scene.is_paused(), scene.pending()) == (False, [1])

    scene.run("pause")
    assert (scene.is_paused(), scene.pending()) == (True, [])
    scene.now += HOUR + HOUR // 2
    scene.run("resume", "recurring.run_stored")
    assert (scene.is_paused(), scene.pending()) == (True, [])

    scene.run("resume")
    assert (scene.is_paused(), scene.pending()) == (False, [1, 2])


def test_a_change_of_the_schedule_that_dies_leaves_the_run_of_before(scene: Scene) -> None:
    scene.run("step")
    scene.now += HOUR // 2

    scene.run("step", "recurring.run_cancelled", every="6 hours")
    assert scene.pending() == [1]

    scene.run("step", every="6 hours")
    assert scene.pending() == [6]


def test_the_points_of_recurring_timeouts_are_reached_here() -> None:
    covered = {*STORING, *CANCELLING}

    assert {point for point in POINTS if point.startswith("recurring.")} <= covered
