"""A migration is killed at each point; another process goes on, or aborts: all in one place."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from chaos.forkserver_client import ForkServer
from tests.crash.cases import MIGRATIONS, Crash
from tests.crash.mover import PREFIXES
from tests.crash.site import Worker
from tests.persistence.making import SECOND, timeout
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Timeout, TimeoutFilter, TimeoutStore
from timeoutmgr.crashpoints import POINTS
from timeoutmgr.migration import MigrationRunState
from timeoutmgr.persistence import SqlPersistence

BATCH: Final = 1
AMOUNT: Final = 9
HALFWAY: Final = Crash("migration.delivered", 2)
"""The crash before an abort: batch 1 is moved, batch 2 at target and source, the rest not."""

NOT_IN_STORES: Final = frozenset(
    point
    for point in POINTS
    if point.startswith(("draining.", "foreign."))
    or point in {"migration.finished", "migration.found_hidden"}
)
"""Reached where source or target is no store: ``test_foreign_table.py``, ``test_draining.py``, and
``migration.finished`` in ``tests/migration/test_into_levels.py``.
"""
ABORTING: Final = (
    *("migration.aborting", "migration.shut_for_good", "leaving.some_removed", "leaving.restored"),
    *("migration.returned", "migration.aborted"),
)
"""In the order in which an abort comes by them."""
RUNNING: Final = tuple(
    point
    for point in POINTS
    if point.startswith(MIGRATIONS) and point not in {*ABORTING, *NOT_IN_STORES}
)
_LAST: Final = ("arriving.fence_stands", "migration.shut", "migration.completed")
IN_ORDER: Final = (
    *(point for point in RUNNING if point.startswith("ledger.")),
    *(point for point in RUNNING if not point.startswith("ledger.") and point not in _LAST),
    *_LAST,
)
"""Points on the way of a run: it has come by the earlier points, and has a batch left."""
ONCE: Final = {
    *("migration.planned", "migration.taken_over", "migration.prepared", "migration.opened"),
    *("migration.shut", "migration.completed", "ledger.run_written", "ledger.batches_written"),
    "arriving.fence_stands",
    *ABORTING,
}


class Scene:
    """The timeouts of one endpoint, in two stores, and the processes that move them."""

    def __init__(self, url: str, endpoint: str, folder: Path, fork_server: ForkServer) -> None:
        self.url = url
        self.endpoint = endpoint
        self._folder = folder
        self._fork_server = fork_server
        self._processes = 0
        self.more: dict[str, Any] = {}
        self.given = _timeouts()

    def fill(self) -> None:
        """Store the timeouts of the migration at its source."""
        with closing(SqlPersistence(self.url, prefix=PREFIXES[0])) as persistence:
            persistence.timeouts(self.endpoint, SystemClock()).store_many(self.given)

    def kill(self, crash: Crash, *, aborts: bool = False) -> None:
        """Let a process die at *crash*."""
        worker = self._start(crash, aborts)
        worker.wait_until_it_ends()
        assert worker.was_killed, f"{crash} is not reached: {worker.said}"

    def finish(self, *, aborts: bool = False) -> None:
        """Have a process do all that is left."""
        worker = self._start(None, aborts)
        worker.wait_until_it_ends()
        assert "Traceback" not in worker.said, worker.said

    def check(self, *, moved: bool) -> None:
        """Each timeout is in exactly one store, pending, whole and visible to its poller."""
        source, target = (self._pending(prefix) for prefix in PREFIXES)
        assert sorted(source + target, key=lambda one: one.id) == self.given
        assert source == ([] if moved else source)
        with closing(SqlPersistence(self.url, prefix=PREFIXES[0])) as persistence:
            ledger = persistence.migration_ledger(self.endpoint, SystemClock())
            assert ledger.open_run() is None
            for run in ledger.runs():
                assert run.state is (MigrationRunState.COMPLETED if moved else run.state)
                assert run.report is not None
                assert run.report["verified"]
            timeouts = persistence.timeouts(self.endpoint, SystemClock()).context.tables.timeouts
            with persistence.database.read() as connection:
                mine = timeouts.c.endpoint == self.endpoint
                hidden = timeouts.select().where(mine, timeouts.c.hidden_by.is_not(None))
                assert connection.execute(hidden).all() == []

    def _pending(self, prefix: str) -> list[Timeout]:
        with closing(SqlPersistence(self.url, prefix=prefix)) as persistence:
            store: TimeoutStore = persistence.timeouts(self.endpoint, SystemClock())
            return store.list(TimeoutFilter())

    def _start(self, crash: Crash | None, aborts: bool) -> Worker:
        self._processes += 1
        given: dict[str, Any] = {
            "worker": "tests.crash.mover",
            "url": self.url,
            "prefixes": PREFIXES,
            "endpoint": self.endpoint,
            "batch": BATCH,
            "aborts": aborts,
            **self.more,
        }
        return Worker(self._fork_server, given, self._folder / f"{self._processes}.txt", crash)


@pytest.fixture
def scene(
    kind: str,
    migrating_url: Callable[[str], str],
    unique: str,
    tmp_path: Path,
    fork_server: ForkServer,
) -> Scene:
    """A fresh endpoint in a database of this *kind*."""
    made = Scene(migrating_url(kind), unique, tmp_path, fork_server)
    made.fill()
    return made


def _points(points: tuple[str, ...]) -> list[Crash]:
    return [Crash(one, nth) for one in points for nth in (1, 2) if nth == 1 or one not in ONCE]


@pytest.mark.behaviour(132)
@pytest.mark.parametrize("kind", ["sqlite"])
def test_a_run_that_dies_at_one_point_after_the_other_is_finished(scene: Scene) -> None:
    for point in IN_ORDER:
        scene.kill(Crash(point, 1))
    scene.finish()
    scene.check(moved=True)


@pytest.mark.behaviour(134)
@pytest.mark.parametrize("kind", ["sqlite"])
@pytest.mark.parametrize("point", ["migration.hidden", "migration.sending", "migration.removed"])
def test_a_run_that_died_is_aborted(scene: Scene, point: str) -> None:
    _kill_running(scene, Crash(point, 2), aborts=True)


@pytest.mark.behaviour(134)
@pytest.mark.parametrize("kind", ["sqlite"])
def test_an_abort_that_dies_at_one_point_after_the_other_is_finished(scene: Scene) -> None:
    scene.kill(HALFWAY)
    for point in ABORTING:
        scene.kill(Crash(point, 1), aborts=True)
    scene.finish(aborts=True)
    scene.check(moved=False)


@pytest.mark.crash_full
@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mysql"])
@pytest.mark.parametrize("aborts", [False, True])
@pytest.mark.parametrize("crash", _points(RUNNING), ids=str)
def test_a_run_that_died_anywhere(scene: Scene, crash: Crash, aborts: bool) -> None:
    _kill_running(scene, crash, aborts)


@pytest.mark.crash_full
@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mysql"])
@pytest.mark.parametrize("crash", _points(ABORTING), ids=str)
def test_an_abort_that_died_anywhere(scene: Scene, crash: Crash) -> None:
    _kill_aborting(scene, crash)


def test_every_point_of_a_migration_is_died_at() -> None:
    points = {point for point in POINTS if point.startswith(MIGRATIONS)}

    assert {*RUNNING, *ABORTING, *NOT_IN_STORES} == points


def _kill_running(scene: Scene, crash: Crash, aborts: bool) -> None:
    if crash.point == "migration.taken_over":
        scene.kill(HALFWAY)
    if crash.point == "arriving.keys_revived":
        crash = Crash(crash.point, 1)
    scene.kill(crash)
    scene.finish(aborts=aborts)
    # A plan that was not committed, and a run that is complete, leave nothing to abort.
    scene.check(moved=not aborts)


def _kill_aborting(scene: Scene, crash: Crash) -> None:
    scene.kill(HALFWAY)
    scene.kill(crash, aborts=True)
    scene.finish(aborts=True)
    scene.check(moved=False)


def _timeouts() -> list[Timeout]:
    far = SystemClock().now() + 3600 * SECOND
    return [timeout(f"t{number}", far + number) for number in range(AMOUNT)]
