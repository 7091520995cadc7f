"""Concurrent claims never share a key, and skip no due key."""

# ruff: noqa: D102 - the name of a case says what it checks

from __future__ import annotations

import pytest

from timeoutmgr.contracts import CancelResult, Chunk, OutcomeKind, TimeoutStore
from timeoutmgr.message.instants import Micros
from timeoutmgr.testing.conformance.plugin import needs
from timeoutmgr.testing.conformance.samples import HOUR, SECOND, SetClock, timeout
from timeoutmgr.testing.conformance.stores.suite import (
    StoreSuite,
    dispatch,
    drain,
    ids,
    outcomes,
    pending,
    store_and_claim,
)


class TimeoutClaims(StoreSuite):
    """``claim``, ``release`` and ``next_due``."""

    def test_an_empty_store_claims_nothing_and_has_no_due_time(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        assert store.claim(now, 10, "o") == Chunk("", (), None)
        assert store.next_due() is None

    def test_a_claim_has_the_oldest_keys_and_the_next_due_time(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        store.store_many([timeout("c", now - 1), timeout("b", 5), timeout("a", -SECOND)])

        chunk = store.claim(now, 2, "o")

        assert ids(chunk) == ["a", "b"]
        assert chunk.next_due == now - 1

    def test_ids_of_one_instant_leave_in_byte_order(self, store: TimeoutStore, now: Micros) -> None:
        names = ["b", "A", "ä", "Z", "_", "0", "a b", "\U0001f600", "\uffee", "a"]

        store.store_many([timeout(name, now - 1) for name in names])

        in_order = sorted(names, key=str.encode)
        assert pending(store) == in_order
        assert ids(store.claim(now, 100, "o")) == in_order

    def test_a_claim_leaves_out_later_keys_and_returns_the_next_due_time(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        store.store_many([timeout("a", now - 1), timeout("b", now + HOUR)])

        chunk = store.claim(now, 10, "o", ahead=HOUR // 2)

        assert ids(chunk) == ["a"]
        assert chunk.next_due == now + HOUR
        assert store.next_due() == now - 1

    @pytest.mark.parametrize("chunks", [2, 3, 9])
    def test_chunks_of_one_claim_are_in_order_with_distinct_tokens(
        self, store: TimeoutStore, now: Micros, chunks: int
    ) -> None:
        store.store_many([timeout(name, now - 9 + n) for n, name in enumerate("abcdefg")])

        claimed = store.claim(now, 2, "o", chunks=chunks).all
        rest = drain(store)

        assert 1 <= len(claimed) <= chunks
        assert all(1 <= len(one.keys) <= 2 for one in claimed)
        assert len({one.token for one in claimed}) == len(claimed)
        assert [key.id for one in claimed for key in one.keys] + rest == list("abcdefg")

    def test_each_chunk_of_a_claim_ends_by_itself(self, store: TimeoutStore, now: Micros) -> None:
        store.store_many([timeout(name, now - 9 + n) for n, name in enumerate("abcd")])
        claimed = store.claim(now, 1, "o", chunks=3).all

        dispatch(store, claimed[0].token, claimed[0].keys)
        for one in claimed[1:]:
            store.release(one.token)

        assert drain(store) == list("bcd")

    @pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
    def test_a_claim_keeps_its_limit_and_the_next_claim_continues(
        self, store: TimeoutStore, now: Micros, limit: int
    ) -> None:
        names = "abcdefg"
        store.store_many([timeout(name, now - 9 + n) for n, name in enumerate(names)])

        chunks = []
        while (chunk := store.claim(now, limit, "o")).keys:
            chunks.append(ids(chunk))

        assert chunks == [list(names[at : at + limit]) for at in range(0, 7, limit)]

    def test_a_claimed_key_is_given_to_no_other_owner(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        store.store_many([timeout("a", now - 1)])
        first = store.claim(now, 5, "one")

        second = store.claim(now, 5, "two")

        assert (ids(first), ids(second), second.token) == (["a"], [], "")
        assert second.next_due is not None, "there is something, and no instant to look for it"

    def test_claim_tokens_are_unique(self, store: TimeoutStore, now: Micros) -> None:
        store.store_many([timeout(f"{n}", now - 1) for n in range(20)])

        tokens = [store.claim(now, 1, "o").token for _ in range(20)]

        assert len({*tokens, ""}) == 21

    def test_a_released_timeout_can_be_cancelled(self, store: TimeoutStore, now: Micros) -> None:
        store.release(store_and_claim(store, now, 2, timeout("a", now - 1)).token)

        assert store.cancel("a") is CancelResult.CANCELLED

    @needs(row_locks=True)
    def test_a_timeout_of_an_order_that_perhaps_was_sent_is_maybe_sent(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        token = store_and_claim(store, now, 2, timeout("a", now - 1)).token
        store.release(token, maybe_sent=True)

        assert store.cancel("a") is CancelResult.MAYBE_SENT

    def test_releasing_an_unknown_token_changes_nothing(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        chunk = store_and_claim(store, now, 2, timeout("a", now - 1))

        store.release("nobody's")
        store.release("")

        assert ids(store.claim(now, 2, "o")) == []
        assert dispatch(store, chunk.token, chunk.keys) == ["a"]

    @needs(settable_clock=True)
    def test_a_claim_expires_at_the_end_of_its_time_and_not_before(
        self, store: TimeoutStore, clock: SetClock
    ) -> None:
        store.store_many([timeout("a", clock.at)])
        store.claim(clock.at, 2, "o")

        self.lapse(clock)
        clock.at -= 1
        early = store.claim(clock.at, 2, "o")
        clock.at += 1
        late = store.claim(clock.at, 2, "o")

        assert (ids(early), ids(late)) == ([], ["a"])

    @needs(settable_clock=True)
    def test_a_retry_waits_and_delays_no_other_timeout(
        self, store: TimeoutStore, clock: SetClock
    ) -> None:
        now = clock.at
        chunk = store_and_claim(store, now, 30, *[timeout(f"{n:02}", now) for n in range(40)])
        with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
            locked.close(outcomes(chunk.keys, now, OutcomeKind.RETRY, now + SECOND))

        others = drain(store)
        idle, waits = store.claim(now, 30, "o"), store.next_due()
        store.reschedule("00", now)
        others += drain(store)
        clock.at = now + SECOND
        again = store.claim(clock.at, 30, "o")

        assert others == [*(f"{n:02}" for n in range(30, 40)), "00"]
        assert idle == Chunk("", (), now + SECOND)
        assert waits == now + SECOND
        assert ids(again) == [f"{n:02}" for n in range(1, 30)]

    def test_a_claim_finds_a_late_row_before_a_claimed_row(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        chunk = store_and_claim(store, now, 10, timeout("b", now - 5))
        store.store_many([timeout("a", now - 9)])

        assert drain(store) == ["a"]
        assert dispatch(store, chunk.token, chunk.keys) == ["b"]

    def test_late_rows_inside_a_claimed_interval_are_found_after_its_close(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        chunk = store_and_claim(store, now, 10, timeout("a", now - 9), timeout("c", now - 7))
        store.store_many([timeout("b", now - 8), timeout("aa", now - 9)])

        sent = drain(store)
        sent += dispatch(store, chunk.token, chunk.keys)
        sent += drain(store)

        assert sorted(sent) == ["a", "aa", "b", "c"]

    @pytest.mark.parametrize("limit", [100, 333])
    def test_an_instant_larger_than_a_chunk_leaves_once_and_whole(
        self, store: TimeoutStore, now: Micros, limit: int
    ) -> None:
        names = [f"{n:04}" for n in range(1_000)]
        store.store_many([timeout(name, now - 1) for name in names])

        assert drain(store, limit=limit) == names
