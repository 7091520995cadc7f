"""A failure is counted by itself, and puts the message off."""

# ruff: noqa: D102 - the name of a case is its claim

from __future__ import annotations

from timeoutmgr.contracts import Clock, DelayedMessageStore
from timeoutmgr.instants import Micros
from timeoutmgr.testing.conformance.delayed.suite import (
    DelayedStores,
    DelayedSuite,
    drain,
    fetch,
    fetched,
    ids,
    put,
)
from timeoutmgr.testing.conformance.facts import needs
from timeoutmgr.testing.conformance.samples import HOUR, SECOND, SetClock, timeout


class Counting(DelayedSuite):
    """``increment_failure_count``."""

    def test_each_failure_is_counted_and_told_at_the_next_fetch(
        self, store: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        stored = timeout("a", now - SECOND)
        put(store, stored)

        for count in (1, 2, 3):
            assert store.increment_failure_count(stored, now - 1)
            [found] = fetched(store, clock)
            assert (found.attempts, found.due, found.message) == (
                count,
                stored.due,
                stored.message,
            )

    def test_counting_tells_whether_the_message_was_there(
        self, store: DelayedMessageStore, now: Micros
    ) -> None:
        one = timeout("a", now - 1)
        put(store, one)
        before = store.increment_failure_count(one, now)
        store.remove(one)

        assert (before, store.increment_failure_count(one, now)) == (True, False)
        assert store.next() is None

    def test_a_message_that_is_put_off_holds_up_nobody(
        self, store: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        failing = timeout("failing", now - 9 * SECOND)
        put(store, failing, timeout("fine", now - SECOND))

        store.increment_failure_count(failing, now + HOUR)

        assert drain(store, clock) == ["fine"]
        assert store.next() == now + HOUR

    @needs(settable_clock=True)
    def test_a_message_that_is_put_off_comes_when_its_time_is_over(
        self, store: DelayedMessageStore, clock: SetClock
    ) -> None:
        one = timeout("a", clock.at)
        put(store, one)

        store.increment_failure_count(one, clock.at + 5)
        clock.at += 4
        early = fetched(store, clock)
        clock.at += 1

        assert (early, ids(fetched(store, clock))) == ([], ["a"])

    def test_a_failure_counts_though_what_was_fetched_is_given_back(
        self, stores: DelayedStores, store: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        put(store, timeout("a", now - 2))

        with store.transaction() as transaction:
            [one] = fetch(store, clock, transaction)
        store.increment_failure_count(one, now - 1)

        assert [each.attempts for each in fetched(stores(), clock)] == [1]
