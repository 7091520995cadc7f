from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import pytest

from timeoutmgr.database.session_locks import SessionLocks
from timeoutmgr.pipeline.errors import RunConflict
from timeoutmgr.pipeline.ledger import JobLedger, JobRun, JobRunState, at_work, exclusive_lock
from timeoutmgr.pipeline.stores import Store

TERMS = {"dataset": "spring", "paths": ["a"]}


def test_the_first_run_of_the_same_parameters_is_found_in_any_state(store: Store) -> None:
    ledger = JobLedger(store)
    ledger.begin("other", "schedule", TERMS | {"dataset": "Spring"}, 1)
    ledger.begin("archive", "archive", TERMS, 2)
    ledger.begin("first", "schedule", TERMS, 3)
    ledger.begin("again", "schedule", TERMS, 3)
    ledger.move("first", JobRunState.COMPLETED)

    found = ledger.first("schedule", TERMS)

    assert found is not None
    assert (found.run_id, found.created) in {("first", 3), ("again", 3)}
    assert ledger.first("schedule", TERMS | {"paths": []}) is None


def test_two_runs_of_the_same_parameters_cannot_be_of_two_instants(store: Store) -> None:
    ledger = JobLedger(store)
    ledger.begin("first", "schedule", TERMS, 3)

    for name in ("first", "second"):
        with pytest.raises(RunConflict, match=r"'first' of the same .* run it again"):
            ledger.begin(name, "schedule", TERMS, 4)

    assert ledger.find("second") is None
    assert ledger.begin("first", "schedule", TERMS, 3).created == 3


def test_a_lock_that_another_process_acquires_a_moment_before_is_a_conflict(
    postgres: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, answers = SessionLocks.dead_owners, [{"it"}]

    def dead(locks: SessionLocks, owners: Collection[str]) -> set[str]:
        return answers.pop() if answers else real(locks, owners)

    with exclusive_lock(postgres, "it"):
        monkeypatch.setattr(SessionLocks, "dead_owners", dead)
        with pytest.raises(RunConflict, match="is at it: it; wait"):
            exclusive_lock(postgres, "it").__enter__()


def test_an_ended_run_has_its_end_and_its_report(store: Store) -> None:
    ledger = JobLedger(store)
    ledger.begin("first", "schedule", TERMS)
    ledger.note("first", {"new": 7})
    ledger.move("first", JobRunState.COMPLETED)

    ended = ledger.find("first")
    ledger.move("first", JobRunState.RUNNING)
    again = ledger.find("first")

    assert ended is not None
    assert ended.ended is not None
    assert ended.ended >= ended.created
    assert ended.report == {"new": 7}
    assert again is not None
    assert again.ended is None


def begin_of(ledger: JobLedger, name: str) -> Callable[..., JobRun]:
    """Return the function that begins the run *name*."""
    return partial(ledger.begin, kind="schedule", parameters=TERMS | {"dataset": name})


def test_a_run_whose_process_is_killed_right_after_its_begin_is_aborted(store: Store) -> None:
    ledger = JobLedger(store)

    def killed(run_id: str, **more: Any) -> JobRun:
        begin_of(ledger, "dead")(run_id, **more)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), at_work(store, "dead", killed):
        pass

    assert ledger.abort_the_dead("schedule") == ["dead"]


def test_a_run_of_a_dead_process_is_recorded_as_ended_and_can_be_resumed(store: Store) -> None:
    ledger = JobLedger(store)
    for name in ("dead", "alive", "unknown"):
        ledger.begin(name, "schedule", TERMS | {"dataset": name})
    ledger.begin("dead", "schedule", TERMS | {"dataset": "dead"}, runner="of a dead process")
    with at_work(store, "alive", begin_of(ledger, "alive")):
        aborted = ledger.abort_the_dead("schedule")
        running = [run.run_id for run in ledger.runs("schedule", JobRunState.RUNNING)]
    found = ledger.find("dead")

    assert (aborted, sorted(running)) == (["dead"], ["alive", "unknown"])
    assert found is not None
    assert (found.state, found.ended is not None) == (JobRunState.ABORTED, True)
    with at_work(store, "dead", begin_of(ledger, "dead")):
        assert ledger.abort_the_dead("schedule") == ["alive"]
