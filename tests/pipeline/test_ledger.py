from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from timeoutmgr.database.session_locks import SessionLocks
from timeoutmgr.pipeline.errors import RunConflict
from timeoutmgr.pipeline.ledger import JobLedger, JobRun, JobRunState, exclusive_lock
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
        with pytest.raises(RunConflict, match="does this now: it; wait"):
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


class KilledAtTheBegin(JobLedger):
    """The ledger of a process that is killed right after the begin of a run."""

    def begin(self, *given: Any, **more: Any) -> JobRun:
        super().begin(*given, **more)
        raise KeyboardInterrupt


def test_a_run_whose_process_is_killed_right_after_its_begin_is_aborted(store: Store) -> None:
    with pytest.raises(KeyboardInterrupt):
        KilledAtTheBegin(store).at_work("dead", "schedule", TERMS).__enter__()

    assert JobLedger(store).abort_the_dead("schedule") == ["dead"]


def test_a_run_of_a_dead_process_is_recorded_as_ended_and_can_be_resumed(store: Store) -> None:
    ledger = JobLedger(store)
    for name in ("dead", "alive", "unknown"):
        ledger.begin(name, "schedule", TERMS | {"dataset": name})
    with ledger.at_work("alive", "schedule", TERMS | {"dataset": "alive"}):
        ledger.begin("dead", "schedule", TERMS | {"dataset": "dead"}, runner="of a dead process")
        aborted = ledger.abort_the_dead("schedule")
        running = [run.run_id for run in ledger.runs("schedule", JobRunState.RUNNING)]
    found = ledger.find("dead")

    assert (aborted, sorted(running)) == (["dead"], ["alive", "unknown"])
    assert found is not None
    assert (found.state, found.ended is not None) == (JobRunState.ABORTED, True)
    with ledger.at_work("dead", "schedule", TERMS | {"dataset": "dead"}):
        again, ended = ledger.find("dead"), ledger.find("alive")
    assert again is not None
    assert ended is not None
    assert (again.state, ended.state) == (JobRunState.RUNNING, JobRunState.ABORTED)
