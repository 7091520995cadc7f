"""Concurrent calls: every removal, failure and insert counts exactly once."""

# ruff: noqa: D102 - the name of a case is its claim

from __future__ import annotations

from functools import partial

from timeoutmgr.contracts import Clock, DelayedMessageStore
from timeoutmgr.message.instants import Micros
from timeoutmgr.testing.conformance.delayed.suite import (
    DelayedStores,
    DelayedSuite,
    drain,
    fetched,
    put,
)
from timeoutmgr.testing.conformance.samples import HOUR, SECOND, Track, timeout


class DelayedRaces(DelayedSuite):
    """The races that the docstrings of the contract name."""

    def test_two_processes_store_a_shared_id_once(
        self,
        stores: DelayedStores,
        store: DelayedMessageStore,
        now: Micros,
        clock: Clock,
        rounds: int,
    ) -> None:
        other = stores()
        count = max(5, rounds // 5)
        with Track(2) as track:
            for n in range(count):
                one = timeout(f"{n:04}", now - HOUR + n)
                track.race(partial(store.store, one), partial(other.store, one))

        assert drain(store, clock) == [f"{n:04}" for n in range(count)]

    def test_exactly_one_of_two_removals_returns_true(
        self, stores: DelayedStores, store: DelayedMessageStore, now: Micros, rounds: int
    ) -> None:
        other = stores()
        with Track(2) as track:
            for n in range(max(5, rounds // 5)):
                one = timeout(f"{n}", now + HOUR)
                put(store, one)
                answers = track.race(partial(store.remove, one), partial(other.remove, one))
                assert sorted(answers) == [False, True]

    def test_two_concurrent_failures_count_twice(
        self,
        stores: DelayedStores,
        store: DelayedMessageStore,
        now: Micros,
        clock: Clock,
        rounds: int,
    ) -> None:
        other, one = stores(), timeout("a", now - SECOND)
        put(store, one)
        count = max(5, rounds // 5)
        with Track(2) as track:
            for _ in range(count):
                track.race(
                    partial(store.increment_failure_count, one, now - SECOND),
                    partial(other.increment_failure_count, one, now - SECOND),
                )

        assert [each.attempts for each in fetched(store, clock)] == [2 * count]

    def test_concurrent_inserts_counts_and_removals_lose_no_message(
        self,
        stores: DelayedStores,
        store: DelayedMessageStore,
        now: Micros,
        clock: Clock,
        rounds: int,
    ) -> None:
        other = stores()
        kept: list[str] = []
        with Track(3) as track:
            for n in range(max(5, rounds // 5)):
                failing, removed, new = (timeout(f"{n:03}{what}", now - SECOND) for what in "fgn")
                put(store, failing, removed)
                track.race(
                    partial(store.increment_failure_count, failing, now - SECOND),
                    partial(other.remove, removed),
                    partial(other.store, new),
                )
                kept += [failing.id, new.id]

        assert sorted(drain(store, clock)) == sorted(kept)
