"""A lock by key leaves a row that is not due, unless the row is due within a moment."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from tests.persistence.making import NOW, SECOND, SetClock, outcomes, timeout
from timeoutmgr.contracts import CancelResult, Key, TimeoutState, TimeoutStore
from timeoutmgr.message.instants import Micros
from timeoutmgr.persistence.sql.context import StoreContext
from timeoutmgr.persistence.sql.dispatch.lock import DispatchRows, LockedRows


def test_a_row_that_is_not_due_is_not_locked_although_it_is_asked_for(store: TimeoutStore) -> None:
    store.store_many([timeout("a"), timeout("b", NOW + 1)])
    chunk = store.claim(NOW, 10, "o")

    with store.lock_for_dispatch(chunk.token, [*chunk.keys, Key(NOW + 1, "b")]) as locked:
        locked_ids = [one.id for one in locked.timeouts]

    assert locked_ids == ["a"]


def test_a_row_that_is_due_in_a_moment_is_locked_where_ahead_is_asked_for(
    store: TimeoutStore, clock: SetClock
) -> None:
    store.store_many([timeout("a", NOW + 2_000), timeout("b", NOW + 2_001)])
    chunk = store.claim(NOW, 10, "o", ahead=3_000)

    with store.lock_for_dispatch(chunk.token, chunk.keys, ahead=2_000) as locked:
        locked_ids = [one.id for one in locked.timeouts]

    assert [key.id for key in chunk.keys] == ["a", "b"]
    assert locked_ids == ["a"]


def test_rows_that_are_locked_early_have_the_time_of_the_store(
    store: TimeoutStore, clock: SetClock
) -> None:
    store.store_many([timeout("a", NOW + 2_000)])
    chunk = store.claim(NOW, 10, "o", ahead=2_000)

    with store.lock_for_dispatch(chunk.token, chunk.keys, ahead=2_000) as locked:
        now = getattr(locked, "now", None)  # optional: without it a store locks no row early
        assert now is not None
        before = now()
        clock.at += 2_000
        after = now()

    assert (before, after) == (NOW, NOW + 2_000)


class Interrupted(SetClock):
    """A clock of a process that does not run for five milliseconds after each look at it."""

    def now(self) -> Micros:
        self.at += 5_000
        return self.at - 5_000

    def monotonic(self) -> float:
        return self.now() / SECOND


def test_a_process_that_does_not_run_for_a_while_takes_it_for_earlier_and_never_for_later() -> None:
    clock = Interrupted()
    context = cast(StoreContext, SimpleNamespace(clock=clock, has_database_clock=False))

    now = LockedRows(context, DispatchRows(), lambda outcomes: None).now()

    assert now <= clock.at - 5_000


def test_a_row_that_is_locked_early_cannot_be_cancelled_any_more(store: TimeoutStore) -> None:
    store.store_many([timeout("a", NOW + 2_000)])
    chunk = store.claim(NOW, 10, "o", ahead=2_000)

    with store.lock_for_dispatch(chunk.token, chunk.keys, ahead=2_000) as locked:
        cancelled = store.cancel("a")
        locked.close(outcomes([one.key for one in locked.timeouts]))

    assert cancelled is CancelResult.TOO_LATE
    assert store.find("a") == (TimeoutState.DISPATCHED, None)
