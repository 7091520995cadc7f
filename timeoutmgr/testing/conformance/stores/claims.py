"""Of many that claim, each key goes to one; nothing that is due is passed by."""

# ruff: noqa: D102 - the name of a case is its claim

from __future__ import annotations

import pytest

from timeoutmgr.contracts import CancelResult, Chunk, OutcomeKind, TimeoutStore
from timeoutmgr.instants import Micros
from timeoutmgr.testing.conformance.facts import needs
from timeoutmgr.testing.conformance.samples import (
    HOUR,
    SECOND,
    SetClock,
    timeout,
)
from timeoutmgr.testing.conformance.stores.suite import (
    StoreSuite,
    dispatch,
    drain,
    ids,
    outcomes,
    pending,
)


class Claiming(StoreSuite):
    """``claim``, ``release`` and ``next_due``."""

    def test_nothing_stored_is_nothing_due(self, store: TimeoutStore, now: Micros) -> None:
        assert store.claim(now, 10, "o") == Chunk("", (), None)
        assert store.next_due() is None

    @needs(settable_clock=True)
    def test_it_is_due_from_its_microsecond_on(self, store: TimeoutStore, clock: SetClock) -> None:
        due = clock.at + 1
        store.store_many([timeout("a", due)])

        before = store.claim(clock.at, 10, "o")
        clock.at = due
        after = store.claim(clock.at, 10, "o")

        assert before == Chunk("", (), due)
        assert ids(after) == ["a"]

    def test_the_oldest_are_first_however_old(self, store: TimeoutStore, now: Micros) -> None:
        store.store_many([timeout("c", now - 1), timeout("b", 5), timeout("a", -SECOND)])

        chunk = store.claim(now, 2, "o")

        assert ids(chunk) == ["a", "b"]
        assert chunk.next_due == now - 1

    def test_of_one_instant_they_are_in_the_order_of_their_bytes(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        names = ["b", "A", "ä", "Z", "_", "0", "a b", "\U0001f600", "\uffee", "a"]

        store.store_many([timeout(name, now - 1) for name in names])

        in_order = sorted(names, key=str.encode)
        assert pending(store) == in_order
        assert ids(store.claim(now, 100, "o")) == in_order

    def test_what_is_not_due_is_told_and_not_handed_out(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        store.store_many([timeout("a", now - 1), timeout("b", now + HOUR)])

        chunk = store.claim(now, 10, "o")

        assert ids(chunk) == ["a"]
        assert chunk.next_due == now + HOUR
        assert store.next_due() == now - 1

    @pytest.mark.parametrize("chunks", [2, 3, 9])
    def test_several_chunks_at_once_are_in_order_and_each_its_own_claim(
        self, store: TimeoutStore, now: Micros, chunks: int
    ) -> None:
        store.store_many([timeout(name, now - 9 + n) for n, name in enumerate("abcdefg")])

        claimed = store.claim(now, 2, "o", chunks=chunks).all
        rest = drain(store)

        assert 1 <= len(claimed) <= chunks
        assert all(1 <= len(one.keys) <= 2 for one in claimed)
        assert len({one.token for one in claimed}) == len(claimed)
        assert [key.id for one in claimed for key in one.keys] + rest == list("abcdefg")

    def test_of_several_chunks_each_ends_by_itself(self, store: TimeoutStore, now: Micros) -> None:
        store.store_many([timeout(name, now - 9 + n) for n, name in enumerate("abcd")])
        claimed = store.claim(now, 1, "o", chunks=3).all

        dispatch(store, claimed[0].token, claimed[0].keys)
        for one in claimed[1:]:
            store.release(one.token)

        assert drain(store) == list("bcd")

    @pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
    def test_no_more_than_the_limit_is_handed_out_and_the_rest_is_next(
        self, store: TimeoutStore, now: Micros, limit: int
    ) -> None:
        names = "abcdefg"
        store.store_many([timeout(name, now - 9 + n) for n, name in enumerate(names)])

        chunks = []
        while (chunk := store.claim(now, limit, "o")).keys:
            chunks.append(ids(chunk))

        assert chunks == [list(names[at : at + limit]) for at in range(0, 7, limit)]

    def test_what_one_holds_is_not_handed_to_another(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        store.store_many([timeout("a", now - 1)])
        first = store.claim(now, 5, "one")

        second = store.claim(now, 5, "two")

        assert (ids(first), ids(second), second.token) == (["a"], [], "")
        assert second.next_due is not None, "there is something, and no instant to look for it"

    def test_tokens_are_no_two_alike(self, store: TimeoutStore, now: Micros) -> None:
        store.store_many([timeout(f"{n}", now - 1) for n in range(20)])

        tokens = [store.claim(now, 1, "o").token for _ in range(20)]

        assert len({*tokens, ""}) == 21

    def test_what_is_released_is_free_at_once(self, store: TimeoutStore, now: Micros) -> None:
        store.store_many([timeout("a", now - 2), timeout("b", now - 1)])
        store.release(store.claim(now, 2, "o").token)

        assert ids(store.claim(now, 2, "p")) == ["a", "b"]

    def test_what_was_released_was_not_sent(self, store: TimeoutStore, now: Micros) -> None:
        store.store_many([timeout("a", now - 1)])
        store.release(store.claim(now, 2, "o").token)

        assert store.cancel("a") is CancelResult.CANCELLED

    def test_an_unknown_token_can_be_released(self, store: TimeoutStore, now: Micros) -> None:
        store.store_many([timeout("a", now - 1)])
        chunk = store.claim(now, 2, "o")

        store.release("nobody's")
        store.release("")

        assert ids(store.claim(now, 2, "o")) == []
        assert dispatch(store, chunk.token, chunk.keys) == ["a"]

    @needs(settable_clock=True)
    def test_a_claim_lapses_when_its_time_is_over_and_not_before(
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
    def test_a_retry_waits_and_holds_up_nobody(self, store: TimeoutStore, clock: SetClock) -> None:
        now = clock.at
        store.store_many([timeout(f"{n:02}", now) for n in range(40)])
        chunk = store.claim(now, 30, "o")
        with store.take_many(chunk.token, chunk.keys) as taken:
            taken.close(outcomes(chunk.keys, now, OutcomeKind.RETRY, now + SECOND))

        others = drain(store)
        idle = store.claim(now, 30, "o")
        clock.at = now + SECOND
        again = store.claim(clock.at, 30, "o")

        assert others == [f"{n:02}" for n in range(30, 40)]
        assert idle == Chunk("", (), now + SECOND)
        assert ids(again) == [f"{n:02}" for n in range(30)]

    def test_a_late_row_before_a_claimed_one_is_found(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        store.store_many([timeout("b", now - 5)])
        chunk = store.claim(now, 10, "o")
        store.store_many([timeout("a", now - 9)])

        assert drain(store) == ["a"]
        assert dispatch(store, chunk.token, chunk.keys) == ["b"]

    def test_late_rows_among_claimed_ones_are_found_once_those_are_closed(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        store.store_many([timeout("a", now - 9), timeout("c", now - 7)])
        chunk = store.claim(now, 10, "o")
        store.store_many([timeout("b", now - 8), timeout("aa", now - 9)])

        sent = drain(store)
        sent += dispatch(store, chunk.token, chunk.keys)
        sent += drain(store)

        assert sorted(sent) == ["a", "aa", "b", "c"]

    @pytest.mark.parametrize("limit", [100, 333])
    def test_more_of_one_instant_than_a_chunk_all_go_out_once(
        self, store: TimeoutStore, now: Micros, limit: int
    ) -> None:
        names = [f"{n:04}" for n in range(1_000)]
        store.store_many([timeout(name, now - 1) for name in names])

        assert drain(store, limit=limit) == names
