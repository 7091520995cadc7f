"""Pauses, bulk runs and the audit of a store: exactly once, also beside dispatchers."""

# ruff: noqa: D102 - the name of a case says what it checks

from __future__ import annotations

from typing import Final

from timeoutmgr.contracts import CancelResult, Key, TimeoutState, TimeoutStore
from timeoutmgr.contracts.audit import AuditEntry, AuditOutcome, ChangedBy, KeepsAudit
from timeoutmgr.contracts.bulk_runs import BulkAction, BulkChange, BulkRun, BulkState, KeepsBulkRuns
from timeoutmgr.contracts.pauses import PausesDispatch
from timeoutmgr.message.instants import Micros
from timeoutmgr.testing.conformance.plugin import needs
from timeoutmgr.testing.conformance.samples import HOUR, SECOND, SetClock, timeout
from timeoutmgr.testing.conformance.stores.suite import ALL, Stores, StoreSuite, drain, pending

BY: Final = ChangedBy(channel="api", actor="ann", reason="conformance")
SHIFT: Final = BulkChange(action=BulkAction.SHIFT, by=2 * HOUR)
CANCEL: Final = BulkChange(action=BulkAction.CANCEL)


@needs(pauses_dispatch=True)
class PauseCases(StoreSuite):
    """:class:`timeoutmgr.contracts.pauses.PausesDispatch`."""

    def test_what_a_pause_holds_is_not_sent_and_counts_no_attempt(
        self, stores: Stores, store: TimeoutStore, now: Micros
    ) -> None:
        due = timeout("a", now - SECOND)
        store.store_many([due, timeout("b", now, destination="shipping")])
        chunk = store.claim(now, 10, "o")

        assert pausing(stores()).pause("billing", None, BY)  # in another process

        with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
            assert [one.id for one in locked.timeouts] == ["b"]
            locked.close([])
        assert drain(store) == ["b"]
        found = store.find("a")
        assert found is not None
        assert found[1] is not None
        assert (found[0], found[1].due, found[1].attempts) == (TimeoutState.PENDING, due.due, 0)

    def test_a_resume_sends_what_was_parked(self, store: TimeoutStore, now: Micros) -> None:
        store.store_many([timeout(f"{n}", now - n) for n in range(5)])
        paused = pausing(store)
        paused.pause("billing", None, BY)
        assert drain(store) == []
        [pause] = paused.pauses()
        assert (pause.destination, pause.parked.number) == ("billing", 5)

        assert paused.resume("billing", BY)
        unpark(paused)

        assert sorted(drain(store)) == ["0", "1", "2", "3", "4"]
        assert (paused.pauses(), paused.resume("billing", BY)) == ([], False)

    @needs(settable_clock=True)
    def test_a_pause_of_the_endpoint_ends_by_itself(
        self, store: TimeoutStore, clock: SetClock
    ) -> None:
        now = clock.at
        store.store_many([timeout("a", now), timeout("b", now, destination="shipping")])
        pausing(store).pause(None, now + HOUR, BY)
        assert drain(store) == []

        clock.at += HOUR

        assert sorted(drain(store)) == ["a", "b"]
        assert pausing(store).pauses() == []

    @needs(settable_clock=True)
    def test_a_parked_timeout_is_cancelled_and_moved_as_ever(
        self, store: TimeoutStore, clock: SetClock
    ) -> None:
        now = clock.at
        store.store_many([timeout("a", now), timeout("b", now)])
        pausing(store).pause("billing", None, BY)
        assert drain(store) == []
        self.lapse(clock)

        cancelled = store.cancel("a")
        store.reschedule("b", now + HOUR)
        pausing(store).resume("billing", BY)
        unpark(pausing(store))

        assert cancelled in (CancelResult.CANCELLED, CancelResult.MAYBE_SENT)
        assert drain(store) == []
        assert store.key_of("b") == Key(now + HOUR, "b")


@needs(changes_in_bulk=True)
class BulkCases(StoreSuite):
    """:class:`timeoutmgr.contracts.bulk_runs.KeepsBulkRuns`."""

    def test_a_shift_moves_what_its_plan_found_and_is_undone(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        made = [timeout(f"{n}", now + HOUR + n) for n in range(5)]
        store.store_many(made)
        runs = bulk(store)
        plan = runs.plan(ALL, SHIFT, BY)
        store.store_many([timeout("new", now + HOUR)])
        store.reschedule("1", now + 3 * HOUR)
        store.cancel("2")

        done = carry_out(runs, plan.run.id)
        expected = {one.id: one.due + 2 * HOUR for one in made if one.id in "034"}
        others = {"1": now + 3 * HOUR, "new": now + HOUR}
        assert (plan.run.selected, list(plan.samples)) == (5, made)
        assert (done.state, done.changed, done.left) == (BulkState.COMPLETED, 3, 2)
        assert dues(store) == expected | others

        undone = carry_out(runs, plan.run.id, undo=True)
        assert (undone.state, undone.undone) == (BulkState.UNDONE, 3)
        assert dues(store) == {one.id: one.due for one in made if one.id in "034"} | others

    def test_what_a_dispatcher_has_is_left_and_not_awaited(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        store.store_many([timeout("a", now), timeout("b", now + HOUR)])
        runs = bulk(store)
        plan = runs.plan(ALL, CANCEL, BY)

        with store.lock_for_dispatch("", [Key(now, "a")]) as locked:
            assert [one.id for one in locked.timeouts] == ["a"]
            done = carry_out(runs, plan.run.id)

        assert (done.changed, done.left) == (1, 1)
        assert pending(store) == ["a"]

    def test_another_process_goes_on_with_a_run(
        self, stores: Stores, store: TimeoutStore, now: Micros
    ) -> None:
        store.store_many([timeout(f"{n}", now + HOUR) for n in range(3)])
        run_id = bulk(store).plan(["0", "2", "never"], CANCEL, BY).run.id
        bulk(store).begin_bulk(run_id, BY)

        done = carry_out(bulk(stores()), run_id)

        assert (done.selected, done.changed) == (2, 2)
        assert pending(store) == ["1"]


class AuditCases(StoreSuite):
    """:class:`timeoutmgr.contracts.audit.KeepsAudit`."""

    @needs(keeps_audit=True)
    def test_each_change_and_each_attempt_leaves_one_row(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        assert isinstance(store, KeepsAudit)
        store.store_many([timeout("a", now + HOUR), timeout("b", now + HOUR, saga="s")])
        denied = AuditEntry(action="reroute", by=BY, outcome=AuditOutcome.DENIED, changed=0)

        store.reschedule("a", now + 2 * HOUR)
        store.cancel("a")
        store.cancel_saga("s")
        store.write_audit(denied)

        rows = store.audit()
        assert [(row.action, row.outcome, row.changed) for row in rows] == [
            ("reschedule", "done", 1),
            ("cancel", "done", 1),
            ("cancel-saga", "done", 1),
            ("reroute", "denied", 0),
        ]
        assert (rows[-1].actor, rows[-1].reason) == ("ann", "conformance")
        verdict = store.verify_audit({})
        assert (verdict.rows, list(verdict.faults)) == (4, [])


def pausing(store: TimeoutStore) -> PausesDispatch:
    """Return *store*, which must support pauses."""
    assert isinstance(store, PausesDispatch)
    return store


def unpark(store: PausesDispatch) -> None:
    """Make all parked timeouts of ending pauses due again."""
    while not store.unpark().is_last:
        continue


def bulk(store: TimeoutStore) -> KeepsBulkRuns:
    """Return *store*, which must support bulk runs."""
    assert isinstance(store, KeepsBulkRuns)
    return store


def carry_out(store: KeepsBulkRuns, run_id: str, *, undo: bool = False) -> BulkRun:
    """Apply or undo a run, and return it."""
    store.begin_bulk(run_id, BY, undo=undo)
    while store.bulk_step(run_id) is not None:
        continue
    return store.end_bulk(run_id, BY)


def dues(store: TimeoutStore) -> dict[str, Micros]:
    """Return the due times of the pending timeouts."""
    return {one.id: one.due for one in store.list(ALL)}
