"""If a change races with a dispatch, exactly one wins, and the change's result says which."""

# ruff: noqa: D102 - the name of a case says what it checks

from __future__ import annotations

from dataclasses import replace

import pytest

from timeoutmgr.contracts import (
    CancelResult,
    ChangeResult,
    Key,
    OutcomeKind,
    RepeatKind,
    ReroutesTimeouts,
    TimeoutState,
    TimeoutStore,
)
from timeoutmgr.message.instants import LATEST, Micros
from timeoutmgr.testing.conformance.plugin import needs
from timeoutmgr.testing.conformance.samples import HOUR, SetClock, timeout
from timeoutmgr.testing.conformance.stores.suite import (
    ALL,
    StoreSuite,
    drain,
    outcomes,
    pending,
    store_and_claim,
)


class CommandCases(StoreSuite):
    """``cancel``, ``cancel_saga`` and ``reschedule``."""

    def test_a_cancelled_timeout_is_never_dispatched(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        store.store_many([timeout("a", now - 2), timeout("b", now - 1)])

        assert store.cancel("a") is CancelResult.CANCELLED

        assert drain(store) == ["b"]
        assert store.find("a") == (TimeoutState.CANCELLED, None)

    def test_a_repeated_cancel_gives_the_same_answer(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        store.store_many([timeout("a", now)])

        assert [store.cancel("a") for _ in range(3)] == [CancelResult.CANCELLED] * 3

    def test_a_repeated_cancel_of_an_unknown_id_keeps_its_answer(self, store: TimeoutStore) -> None:
        assert store.reschedule("a", 5) is ChangeResult.UNKNOWN
        assert [store.cancel("a") for _ in range(3)] == [CancelResult.WILL_BE_CANCELLED] * 3
        assert store.reschedule("a", 5) is ChangeResult.UNKNOWN

    @pytest.mark.parametrize("kind", [OutcomeKind.DISPATCHED, OutcomeKind.FAILED])
    def test_a_change_after_the_outcome_is_too_late(
        self, store: TimeoutStore, now: Micros, kind: OutcomeKind
    ) -> None:
        chunk = store_and_claim(store, now, 1, timeout("a", now - 1, saga="s"))
        with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
            locked.close(outcomes(chunk.keys, now, kind))

        assert store.cancel("a") is CancelResult.TOO_LATE
        assert store.reschedule("a", now) is ChangeResult.TOO_LATE
        assert list(store.cancel_saga("s")) == []

    def test_a_change_during_the_dispatch_is_too_late(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        store.store_many([timeout("a", now - 1, saga="s"), timeout("b", now + HOUR, saga="s")])
        chunk = store.claim(now, 1, "o")

        with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
            answers = [store.cancel("a"), store.reschedule("a", now), list(store.cancel_saga("s"))]
            locked.close(outcomes(chunk.keys, now))

        assert answers == [CancelResult.TOO_LATE, ChangeResult.TOO_LATE, ["b"]]
        assert store.find("a") == (TimeoutState.DISPATCHED, None)
        assert store.find("b") == (TimeoutState.CANCELLED, None)

    def test_a_claimed_timeout_can_be_cancelled_before_its_lock(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        chunk = store_and_claim(store, now, 1, timeout("a", now - 1))

        # A store that does not record the lock cannot know that the timeout was not sent.
        assert store.cancel("a") in (CancelResult.CANCELLED, CancelResult.MAYBE_SENT)

        with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
            assert list(locked.timeouts) == []
            locked.close([])

    @needs(settable_clock=True)
    def test_a_rescheduled_timeout_leaves_at_its_new_time_only(
        self, store: TimeoutStore, clock: SetClock
    ) -> None:
        now = clock.at
        store.store_many([timeout("a", now), timeout("b", now + HOUR)])

        answers = [store.reschedule("a", now + 2), store.reschedule("b", now - 1)]
        first = drain(store)
        clock.at = now + 1
        early = drain(store)
        clock.at = now + 2
        second = drain(store)

        assert answers == [ChangeResult.CHANGED, ChangeResult.CHANGED]
        assert (first, early, second) == (["b"], [], ["a"])

    def test_a_reschedule_changes_the_due_time_alone(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        stored = timeout("a", now, saga="s", body=b"\x00\xff")
        store.store_many([stored])

        store.reschedule("a", LATEST)

        found = store.find("a")
        assert found is not None
        assert found[1] is not None
        assert (found[1].due, found[1].message, found[1].saga_id) == (LATEST, stored.message, "s")
        assert found[1].created == stored.created

    def test_a_reschedule_to_the_same_time_changes_nothing(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        store.store_many([timeout("a", now - 1)])

        assert store.reschedule("a", now - 1) is ChangeResult.CHANGED

        assert drain(store) == ["a"]

    def test_cancel_saga_cancels_every_timeout_of_the_saga(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        store.store_many(
            [timeout(name, now, saga=saga) for name, saga in [("a", "s"), ("b", "s"), ("c", "S")]]
        )
        store.store_many([timeout("d", now)])

        assert sorted(store.cancel_saga("s")) == ["a", "b"]
        assert list(store.cancel_saga("s")) == []
        assert list(store.cancel_saga("never")) == []
        assert pending(store) == ["c", "d"]
        assert store.find("a") == (TimeoutState.CANCELLED, None)

    def test_cancel_saga_spares_timeouts_that_were_sent_later(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        sent = {"before": now - 1, "then": now, "later": now + 1}
        made = [replace(timeout(name, now, saga="s"), created=at) for name, at in sent.items()]
        store.store_many(made)

        assert sorted(store.cancel_saga("s", sent_until=now)) == ["before", "then"]

        assert pending(store) == ["later"]

    def test_cancel_saga_keeps_the_named_timeouts(self, store: TimeoutStore, now: Micros) -> None:
        store.store_many([timeout(name, now, saga="s") for name in "abc"])

        assert sorted(store.cancel_saga("s", keeping=["b", "elsewhere"])) == ["a", "c"]

        assert pending(store) == ["b"]

    def test_cancel_saga_cancels_hundreds_of_timeouts(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        store.store_many([timeout(f"{n}", now + n, saga="s") for n in range(700)])

        assert len(store.cancel_saga("s")) == 700
        assert store.count(ALL) == 0

    @needs(reroutes=True)
    def test_a_rerouted_timeout_goes_to_its_new_destination_whole(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        assert isinstance(store, ReroutesTimeouts)
        store.store_many([timeout("a", now - 1, saga="s"), timeout("b", now - 1)])

        done = store.reroute([Key(now - 1, "a"), Key(now - 1, "of nobody")], "elsewhere")

        assert (list(done.keys), list(done.maybe_sent)) == ([Key(now - 1, "a")], [])
        before = timeout("a", now - 1, saga="s")
        assert store.find("a") == (TimeoutState.PENDING, replace(before, destination="elsewhere"))
        [repeat] = store.store_many([before])
        assert repeat.kind is RepeatKind.DUPLICATE
        assert drain(store) == ["a", "b"]

    @needs(reroutes=True)
    def test_a_timeout_that_moved_is_closed_or_is_locked_is_not_rerouted(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        assert isinstance(store, ReroutesTimeouts)
        keys = [Key(now - n, name) for n, name in enumerate("abc", 1)]
        store.store_many([timeout(name, due) for due, name in keys])
        store.reschedule("a", now + HOUR)
        store.cancel("b")
        chunk = store.claim(now, 1, "o")

        with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
            done = store.reroute(keys, "elsewhere")
            locked.close(outcomes(chunk.keys, now))

        assert list(done.keys) == []
        assert [one.destination for one in store.list(ALL)] == ["billing"]

    def test_statistics_count_a_cancel(self, store: TimeoutStore, now: Micros) -> None:
        store.store_many([timeout("a", now)])
        store.cancel("a")

        assert store.statistics().outcomes.get("cancelled") == 1
