"""Several at once: each message goes to one, and none is passed by."""

# ruff: noqa: D102 - the name of a case is its claim

from __future__ import annotations

import threading
from collections import Counter
from functools import partial

from timeoutmgr.contracts import Clock, DelayedMessageStore
from timeoutmgr.instants import Micros
from timeoutmgr.testing.conformance.delayed.suite import (
    DelayedStores,
    DelayedSuite,
    drain,
    fetched,
    put,
)
from timeoutmgr.testing.conformance.racing import Track, race
from timeoutmgr.testing.conformance.samples import HOUR, SECOND, timeout


class Races(DelayedSuite):
    """The races that the docstrings of the contract name."""

    def test_of_many_that_fetch_each_message_goes_to_one(
        self, stores: DelayedStores, store: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        expected = [f"t{n:03}" for n in range(60)]
        put(store, *(timeout(name, now - HOUR + n) for n, name in enumerate(expected)))
        processes = [store, stores(), stores()]

        got = race(*(partial(drain, one, clock, 7) for one in processes))

        # A fetch may find all of it in others' hands, and end before they have given some back.
        got.append(drain(store, clock))
        assert Counter(name for each in got for name in each) == Counter(expected)
        assert store.next() is None

    def test_writers_of_one_instant_and_two_who_fetch(
        self, stores: DelayedStores, now: Micros, clock: Clock
    ) -> None:
        expected = [f"w{writer}-{n}" for writer in range(4) for n in range(10)]
        written = threading.Event()
        left = threading.Semaphore(0)

        def write(writer: int) -> list[str]:
            mine = stores()
            for n in range(10):
                put(mine, timeout(f"w{writer}-{n}", now - SECOND))
            left.release()
            return []

        def drain_all() -> list[str]:
            mine, got = stores(), []
            while True:
                last = written.is_set()
                got += drain(mine, clock, 3)
                if last:
                    return got

        def watch() -> list[str]:
            for _ in range(4):
                assert left.acquire(timeout=60)
            written.set()
            return []

        got = race(*(partial(write, writer) for writer in range(4)), drain_all, drain_all, watch)

        got.append(drain(stores(), clock))
        assert Counter(name for each in got for name in each) == Counter(expected)

    def test_one_id_stored_by_two_is_one(
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

    def test_a_removal_is_true_for_one_of_two(
        self, stores: DelayedStores, store: DelayedMessageStore, now: Micros, rounds: int
    ) -> None:
        other = stores()
        with Track(2) as track:
            for n in range(max(5, rounds // 5)):
                one = timeout(f"{n}", now + HOUR)
                put(store, one)
                answers = track.race(partial(store.remove, one), partial(other.remove, one))
                assert sorted(answers) == [False, True]

    def test_of_two_failures_at_once_both_are_counted(
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

    def test_a_message_is_stored_or_fetched_while_others_are_counted_and_removed(
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
                failing, gone, new = (timeout(f"{n:03}{what}", now - SECOND) for what in "fgn")
                put(store, failing, gone)
                track.race(
                    partial(store.increment_failure_count, failing, now - SECOND),
                    partial(other.remove, gone),
                    partial(other.store, new),
                )
                kept += [failing.id, new.id]

        assert sorted(drain(store, clock)) == sorted(kept)
