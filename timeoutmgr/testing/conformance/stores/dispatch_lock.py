"""Only one dispatcher at a time holds the lock of a timeout, until it records the outcome."""

# ruff: noqa: D102 - the name of a case says what it checks

from __future__ import annotations

from dataclasses import replace

import pytest

from timeoutmgr.contracts import (
    CancelResult,
    ChangeResult,
    Key,
    OutcomeKind,
    TimeoutState,
    TimeoutStore,
)
from timeoutmgr.message.foreign import (
    KOMBU,
    Foreign,
    QueueDeclaration,
    Route,
    foreign_of,
    outgoing_to,
)
from timeoutmgr.message.instants import Micros
from timeoutmgr.testing.conformance.plugin import needs
from timeoutmgr.testing.conformance.samples import HOUR, SetClock, Undone, having, timeout
from timeoutmgr.testing.conformance.stores.suite import (
    ALL,
    Stores,
    StoreSuite,
    dispatch,
    drain,
    ids,
    outcomes,
    pending,
    store_and_claim,
)


class TimeoutDispatchLock(StoreSuite):
    """``lock_for_dispatch`` and the locked timeouts."""

    def test_locked_timeouts_are_whole_and_in_order(self, store: TimeoutStore, now: Micros) -> None:
        stored = [timeout("b", now - 5), timeout("a", now - 5), timeout("c", now - 6)]
        chunk = store_and_claim(store, now, 10, *stored)

        with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
            assert list(locked.timeouts) == [stored[2], stored[1], stored[0]]
            locked.close([])

    def test_a_foreign_message_is_locked_and_found_as_it_was_stored(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        route = Route("ex/change", "eu.ä", (QueueDeclaration("tasks", "ex/change", "topic", "#"),))
        foreign = Foreign(route, KOMBU, bytes(range(256)) * 64, bytes(range(256)), "content", "eta")
        made = timeout("f", now - 5, destination=route.destination, body=foreign.body)
        stored = having(made, foreign.as_headers())
        store.store_many([timeout("a", now - 6), stored])
        assert store.find("f") == (TimeoutState.PENDING, stored)
        chunk = store.claim(now, 10, "o")

        with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
            assert locked.timeouts[1] == stored
            found = foreign_of(outgoing_to(stored.destination, locked.timeouts[1].message))
            assert found == replace(foreign, content="", due_header="")
            locked.close([])

    @pytest.mark.parametrize(
        ("kind", "state"),
        [
            (OutcomeKind.DISPATCHED, TimeoutState.DISPATCHED),
            (OutcomeKind.FAILED, TimeoutState.FAILED),
        ],
    )
    def test_a_dispatched_or_failed_timeout_is_closed_for_good(
        self, store: TimeoutStore, now: Micros, kind: OutcomeKind, state: TimeoutState
    ) -> None:
        chunk = store_and_claim(store, now, 10, timeout("a", now - 1))

        with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
            locked.close(outcomes(chunk.keys, now, kind))

        assert store.find("a") == (state, None)
        assert drain(store) == []
        assert store.statistics().claimed == 0

    def test_outcomes_may_be_mixed(self, store: TimeoutStore, now: Micros) -> None:
        chunk = store_and_claim(store, now, 10, *[timeout(name, now - 1) for name in "abcd"])
        a, b, c, d = chunk.keys
        retried = outcomes([c], now, OutcomeKind.RETRY, now - 1)

        with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
            locked.close(
                outcomes([a, d], now)
                + outcomes([b], now, OutcomeKind.FAILED)
                + [replace(one, maybe_sent=True) for one in retried]
            )

        states = [found[0].value for name in "abcd" if (found := store.find(name))]
        assert states == ["dispatched", "failed", "pending", "dispatched"]
        assert store.cancel("c") is CancelResult.MAYBE_SENT

    def test_a_key_without_outcome_stays_and_is_free(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        chunk = store_and_claim(store, now, 10, timeout("a", now - 1), timeout("b", now - 1))

        with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
            locked.close(outcomes(chunk.keys[:1], now))

        assert drain(store) == ["b"]

    def test_an_attempt_is_counted_and_nothing_else_changes(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        stored = timeout("a", now - 9, saga="s")
        store.store_many([stored])
        for attempt in range(3):
            chunk = store.claim(now, 10, "o")
            with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
                assert [one.attempts for one in locked.timeouts] == [attempt]
                locked.close(outcomes(chunk.keys, now, OutcomeKind.RETRY, now - 1))

        tried = replace(stored, attempts=3, next_try=now - 1)
        assert store.find("a") == (TimeoutState.PENDING, tried)

    def test_a_locked_timeout_is_left_out_of_other_claims_and_locks(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        chunk = store_and_claim(store, now, 10, timeout("a", now - 1), timeout("b", now - 1))

        with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
            store.release(chunk.token, maybe_sent=True)  # perhaps it was this dispatcher's order
            assert ids(store.claim(store.now(), 10, "p")) == []
            assert pending(store) == ["a", "b"]
            assert store.count(ALL) == 2
            assert store.find("a") == (TimeoutState.PENDING, locked.timeouts[0])
            with store.lock_for_dispatch(chunk.token, chunk.keys) as other:
                assert list(other.timeouts) == []
            with store.lock_for_dispatch("", chunk.keys[:1]) as other:
                assert list(other.timeouts) == []
            locked.close(outcomes(chunk.keys, now))

        assert store.count(ALL) == 0

    def test_a_lock_leaves_out_closed_moved_and_later_keys(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        store.store_many([timeout(name, now - 5) for name in "abc"])
        chunk = store_and_claim(store, now, 10, timeout("d", now + HOUR))
        store.cancel("a")
        store.reschedule("b", now - 9)

        wanted = [*chunk.keys, Key(now + HOUR, "d"), Key(now - 5, "never")]

        assert dispatch(store, chunk.token, wanted) == ["c"]
        assert pending(store) == ["b", "d"]

    def test_a_repeated_key_is_locked_once(self, store: TimeoutStore, now: Micros) -> None:
        (key,) = store_and_claim(store, now, 1, timeout("a", now - 1)).keys

        assert dispatch(store, "", [key, key]) in (["a"], [])  # claimed, or claimed on the spot
        assert drain(store) == []

    @needs(settable_clock=True)
    def test_a_bare_id_is_claimed_when_due_and_not_early(
        self, store: TimeoutStore, clock: SetClock
    ) -> None:
        due = clock.at + 1
        store.store_many([timeout("a", due)])

        early = dispatch(store, "", [Key(due, "a")])
        clock.at = due
        then = dispatch(store, "", [Key(due, "a")])

        assert (early, then) == ([], ["a"])

    def test_a_repeated_control_message_dispatches_nothing(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        chunk = store_and_claim(store, now, 10, timeout("a", now - 1))
        dispatch(store, chunk.token, chunk.keys)

        assert dispatch(store, chunk.token, chunk.keys) == []
        assert dispatch(store, "", chunk.keys) == dispatch(store, "", []) == []

    def test_leaving_without_close_frees_timeouts_and_leaves_them_maybe_sent(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        chunk = store_and_claim(store, now, 10, timeout("a", now - 1), timeout("b", now - 1))

        with pytest.raises(Undone), store.lock_for_dispatch(chunk.token, chunk.keys):
            raise Undone
        again = store.claim(now, 10, "o")
        store.release(again.token)

        assert ids(again) == ["a", "b"]
        assert store.cancel("a") is CancelResult.MAYBE_SENT
        assert store.reschedule("b", now + HOUR) is ChangeResult.MAYBE_SENT
        assert store.cancel("b") is CancelResult.MAYBE_SENT

    def test_a_second_close_raises(self, store: TimeoutStore, now: Micros) -> None:
        chunk = store_and_claim(store, now, 10, timeout("a", now - 1))

        with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
            locked.close(outcomes(chunk.keys, now))
            with pytest.raises(RuntimeError):
                locked.close([])

    def test_an_outcome_of_an_unlocked_key_changes_nothing(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        chunk = store_and_claim(store, now, 1, timeout("a", now - 2), timeout("b", now - 1))

        with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
            locked.close(outcomes([Key(now - 1, "b"), Key(now, "never")], now))

        assert pending(store) == ["a", "b"]
        assert store.find("never") is None

    @needs(row_locks=True, settable_clock=True)
    def test_with_row_locks_an_expired_claim_keeps_its_locked_timeout(
        self, store: TimeoutStore, clock: SetClock
    ) -> None:
        store.store_many([timeout("a", clock.at), timeout("b", clock.at)])
        chunk = store.claim(clock.at, 10, "o")

        with store.lock_for_dispatch(chunk.token, chunk.keys[:1]) as locked:
            self.lapse(clock)
            meanwhile = store.claim(clock.at, 10, "p")
            locked.close(outcomes(chunk.keys[:1], clock.at))

        assert "a" not in ids(meanwhile)
        assert store.find("a") == (TimeoutState.DISPATCHED, None)

    @needs(row_locks=False, settable_clock=True)
    def test_without_row_locks_an_expired_claim_locks_nothing(
        self, store: TimeoutStore, clock: SetClock
    ) -> None:
        store.store_many([timeout("a", clock.at)])
        old = store.claim(clock.at, 10, "o")
        self.lapse(clock)
        new = store.claim(clock.at, 10, "p")

        assert dispatch(store, old.token, old.keys) == []
        assert dispatch(store, new.token, new.keys) == ["a"]

    @needs(row_locks=False, settable_clock=True)
    def test_without_row_locks_an_expired_claim_still_records_its_dispatch(
        self, store: TimeoutStore, clock: SetClock
    ) -> None:
        store.store_many([timeout("a", clock.at)])
        chunk = store.claim(clock.at, 10, "o")

        with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
            self.lapse(clock)
            later = store.claim(clock.at, 10, "p")
            locked.close(outcomes(chunk.keys, clock.at))

        assert dispatch(store, later.token, later.keys) == []
        assert store.find("a") == (TimeoutState.DISPATCHED, None)

    @needs(settable_clock=True)
    def test_an_expired_claim_leaves_a_locked_timeout_maybe_sent(
        self, stores: Stores, store: TimeoutStore, clock: SetClock
    ) -> None:
        store.store_many([timeout("a", clock.at)])
        chunk = store.claim(clock.at, 1, "o")

        locked = store.lock_for_dispatch(chunk.token, chunk.keys)
        locked.__enter__()
        self.lapse(clock)
        locked.__exit__(None, None, None)
        store.release(store.claim(clock.at, 1, "o").token)

        assert stores().cancel("a") is CancelResult.MAYBE_SENT
