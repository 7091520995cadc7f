"""Each of several concurrent changes of a schedule sees the effects of the previous change."""

# ruff: noqa: D102 - the name of a case says what it checks

from __future__ import annotations

from dataclasses import replace

import pytest

from timeoutmgr.contracts import (
    CancelResult,
    KeepsSchedules,
    LockedSchedule,
    RunState,
    ScheduleRecord,
    TimeoutState,
    TimeoutStore,
)
from timeoutmgr.message.instants import Micros
from timeoutmgr.testing.conformance.plugin import needs
from timeoutmgr.testing.conformance.samples import HOUR, Undone, race, timeout
from timeoutmgr.testing.conformance.stores.suite import Stores, StoreSuite, drain, pending


@needs(keeps_schedules=True)
class ScheduleCases(StoreSuite):
    """``schedules`` and ``change_schedule`` of a store that keeps schedules."""

    def test_a_record_is_kept_whole_until_it_is_deleted(self, store: TimeoutStore) -> None:
        record = ScheduleRecord(
            name="daily é",
            every="1 day at 06:00",
            configured_at=1,
            done_until=2,
            run_due=3,
            run_id="r",
            is_paused=True,
        )
        kept = with_schedules(store)

        empty = kept.change_schedule("daily é", lambda locked: locked.record)
        kept.change_schedule("daily é", lambda locked: locked.write(record))
        found = kept.change_schedule("daily é", lambda locked: locked.record)

        assert empty == ScheduleRecord(name="daily é")
        assert found == record
        assert list(kept.schedules()) == [record]
        kept.change_schedule("daily é", lambda locked: locked.delete())
        assert list(kept.schedules()) == []

    def test_a_change_sees_the_record_that_it_wrote(self, store: TimeoutStore) -> None:
        def change(locked: LockedSchedule) -> ScheduleRecord:
            locked.write(replace(locked.record, every="1 hour"))
            return locked.record

        assert with_schedules(store).change_schedule("a", change).every == "1 hour"

    def test_each_endpoint_has_its_own_schedules(self, stores: Stores) -> None:
        own, other = with_schedules(stores()), with_schedules(stores("conformance-other"))

        own.change_schedule("a", lambda locked: locked.write(locked.record))

        assert [one.name for one in own.schedules()] == ["a"]
        assert list(other.schedules()) == []

    def test_a_change_stores_and_cancels_runs(self, store: TimeoutStore, now: Micros) -> None:
        def put(locked: LockedSchedule) -> RunState | None:
            store.store_many([timeout("a", now + HOUR)], transaction=locked.transaction)
            return locked.run_state("a")

        def cancel(locked: LockedSchedule) -> tuple[CancelResult, RunState | None]:
            return locked.cancel("a", "test"), locked.run_state("a")

        kept = with_schedules(store)

        assert kept.change_schedule("s", lambda locked: locked.run_state("a")) is None
        assert kept.change_schedule("s", put) == RunState(TimeoutState.PENDING, None)
        assert pending(store) == ["a"]
        result, state = kept.change_schedule("s", cancel)
        assert result is CancelResult.CANCELLED
        assert state is not None
        assert state.state is TimeoutState.CANCELLED
        assert pending(store) == []

    def test_a_run_that_was_sent_has_the_instant_of_its_outcome(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        store.store_many([timeout("a", now - 1)])
        drain(store)

        state = with_schedules(store).change_schedule("s", lambda locked: locked.run_state("a"))

        assert state is not None
        assert state.state is TimeoutState.DISPATCHED
        assert state.closed_at is not None
        assert state.closed_at >= now

    @needs(transactions=True)
    def test_a_change_that_fails_leaves_nothing(self, store: TimeoutStore, now: Micros) -> None:
        def fail(locked: LockedSchedule) -> None:
            store.store_many([timeout("a", now + HOUR)], transaction=locked.transaction)
            locked.write(replace(locked.record, every="1 hour"))
            raise Undone

        with pytest.raises(Undone):
            with_schedules(store).change_schedule("s", fail)

        assert pending(store) == []
        assert [one.every for one in with_schedules(store).schedules()] in ([], [""])

    def test_concurrent_changes_of_a_schedule_lose_none(self, stores: Stores) -> None:
        def count(locked: LockedSchedule) -> None:
            locked.write(replace(locked.record, configured_at=locked.record.configured_at + 1))

        def run() -> None:
            kept = with_schedules(stores())
            for _ in range(10):
                kept.change_schedule("s", count)

        race(run, run, run, run)

        assert [one.configured_at for one in with_schedules(stores()).schedules()] == [40]


def with_schedules(store: TimeoutStore) -> KeepsSchedules:
    """Return *store*, which must keep schedules."""
    assert isinstance(store, KeepsSchedules), "`keeps_schedules` is True"
    return store
