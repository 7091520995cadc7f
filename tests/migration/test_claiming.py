"""A batch belongs to one process at a time, also if processes die, are late, or run elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import select

from tests.migration.conftest import Move, names, pending, some
from timeoutmgr.errors import MigrationFailed, MigrationRefused
from timeoutmgr.migration import Batch, BatchState, MigrationRun, Participants
from timeoutmgr.migration.batch_step import claim_batch, claim_next_batch, hide, move, send
from timeoutmgr.migration.runs import MigrationRunState


class Scene:
    """A run of three batches of three, held by a driver."""

    def __init__(self, move_: Move) -> None:
        self.move = move_
        move_.source.store_many(some(9))
        self.driver = move_.parts()
        self.run = move_.begin(self.driver)

    def worker(self) -> Participants:
        """Another process, which does not hold the run."""
        return self.move.parts()

    def claimed(self, worker: Participants) -> Batch:
        """Return the worker's next batch."""
        found = claim_next_batch(worker, self.run)
        assert found is not None
        return found

    def states(self) -> list[BatchState]:
        """How far the batches are."""
        return [one.state for one in self.driver.ledger.batches(self.run.id)]

    def claims(self) -> int:
        """How many batches the tables say are in somebody's hands."""
        claims = self.move.source.context.tables.batch_claims
        statement = select(claims.c.run_id).where(claims.c.endpoint == self.move.endpoint)
        with self.move.source_persistence.database.read() as connection:
            return len(connection.execute(statement).all())

    def close(self, *workers: Participants) -> None:
        """End all."""
        for one in (*workers, self.driver):
            one.close()


@pytest.fixture
def scene(moves: Move) -> Scene:
    """On every database."""
    return Scene(moves)


@pytest.fixture
def small(move: Move) -> Scene:
    """A scene on SQLite, for claims that hold alike on every database."""
    return Scene(move)


def test_workers_get_different_batches_the_nearest_due_first(scene: Scene) -> None:
    one, other = scene.worker(), scene.worker()

    given = [scene.claimed(one).no, scene.claimed(other).no]
    refused = other.ledger.claim(scene.run, 0, other.runner)

    assert given == [0, 1]
    assert refused is None
    assert scene.driver.ledger.claimed(scene.run.id) == {0, 1}
    scene.close(one, other)


def test_no_batch_is_left_when_all_are_claimed_or_done(scene: Scene) -> None:
    one, other = scene.worker(), scene.worker()
    move(one, scene.run, scene.claimed(one))
    scene.claimed(one)
    scene.claimed(other)

    assert claim_next_batch(scene.driver, scene.run) is None
    over = scene.driver.ledger.claim(scene.run, 0, scene.driver.runner)
    assert over is not None
    assert (over.state, over.claim) == (BatchState.DONE, None)
    scene.close(one, other)


def test_the_batch_of_a_dead_worker_is_next_in_its_last_state(scene: Scene) -> None:
    dead, other = scene.worker(), scene.worker()
    hide(dead, scene.run, scene.claimed(dead))
    dead.close()

    found = scene.claimed(other)

    assert (found.no, found.state, found.collected) == (0, BatchState.HIDDEN, 3)
    assert move(other, scene.run, found).new == 3
    scene.close(other)


def test_a_worker_that_lost_its_batch_writes_nothing_more_of_it(scene: Scene) -> None:
    late, other = scene.worker(), scene.worker()
    hidden = hide(late, scene.run, scene.claimed(late))
    late.ledger.release(late.runner)  # its connection broke
    found = scene.claimed(other)

    with pytest.raises(MigrationFailed, match="is claimed by another process"):
        send(late, scene.run, hidden)

    assert pending(scene.move.target) == []
    assert move(other, scene.run, found).new == 3
    assert names(pending(scene.move.target)) == ["t000", "t001", "t002"]
    scene.close(other)


def test_no_batch_is_claimed_for_a_runner_that_another_runner_replaced(scene: Scene) -> None:
    worker, follower = scene.worker(), scene.worker()
    scene.driver.close()
    followed = follower.ledger.acquire(scene.run.id, follower.runner)

    with pytest.raises(MigrationRefused, match="another process works at run"):
        claim_next_batch(worker, scene.run)

    assert claim_next_batch(follower, followed) is not None
    scene.close(worker, follower)


def test_a_failed_batch_is_left_to_the_runner(scene: Scene) -> None:
    worker, other = scene.worker(), scene.worker()
    worker.ledger.set_aside(scene.run, scene.claimed(worker))
    worker.close()

    assert scene.claimed(other).no == 1
    mine = scene.driver.ledger.claim(scene.run, 0, scene.driver.runner)
    assert mine is not None
    assert mine.claim == scene.run.runner
    scene.close(other)


def test_the_next_runner_waits_for_a_worker_that_outlived_the_last_runner(small: Scene) -> None:
    worker = small.worker()
    hidden = hide(worker, small.run, small.claimed(worker))
    small.driver.close()
    waits: list[float] = []

    def the_worker_ends(seconds: float) -> None:
        waits.append(seconds)
        send(worker, small.run, hidden)

    follower = replace(small.worker(), pause=the_worker_ends)
    report = follower.migrate(small.move.begin(follower))

    assert len(waits) == 1
    assert (report.collected, report.new, report.known, report.verified) == (9, 9, 0, True)
    small.close(worker, follower)


def test_it_does_not_wait_for_ever(small: Scene) -> None:
    worker, follower = small.worker(), replace(small.worker(), pause=lambda _seconds: None)
    claimed = small.claimed(worker)

    with pytest.raises(MigrationRefused, match=r"batch 0 of run .* is claimed by another"):
        claim_batch(follower, small.run, claimed)

    small.close(worker, follower)


@pytest.mark.behaviour(134)
def test_after_an_abort_a_late_worker_hides_nothing(scene: Scene) -> None:
    late = scene.worker()
    claimed = scene.claimed(late)
    late.ledger.release(late.runner)
    aborted = scene.driver.abort(_acquired(scene.driver, scene.run))

    with pytest.raises(MigrationFailed, match="is claimed by another process"):
        hide(late, scene.run, claimed)

    assert aborted.returned == 0
    assert scene.driver.source.hidden(scene.run.id) == 0
    assert len(pending(scene.move.source)) == 9
    scene.close(late)


@pytest.mark.behaviour(134)
def test_an_abort_waits_for_a_worker_and_puts_back_its_remainder(scene: Scene) -> None:
    late = scene.worker()
    claimed = scene.claimed(late)

    def the_worker_dies(_seconds: float) -> None:
        hide(late, scene.run, claimed)
        late.close()

    aborting = replace(scene.driver, pause=the_worker_dies)
    report = aborting.abort(_acquired(aborting, scene.run))

    assert (report.state, report.collected, report.returned) == (MigrationRunState.ABORTED, 3, 3)
    assert scene.states()[0] is BatchState.RETURNED
    assert scene.driver.source.hidden(scene.run.id) == 0
    scene.close()


def test_a_run_that_is_over_leaves_no_claims(scene: Scene) -> None:
    dead = scene.worker()
    scene.claimed(dead)
    dead.close()
    during = scene.claims()

    scene.driver.migrate(scene.run)

    assert (during, scene.claims()) == (1, 0)
    scene.close()


def _acquired(parts: Participants, run: MigrationRun) -> MigrationRun:
    return parts.ledger.acquire(run.id, parts.runner)
