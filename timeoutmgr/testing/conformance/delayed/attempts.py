"""A failure is counted by itself, and puts the message off."""

# ruff: noqa: D102 - the name of a case is its claim

from __future__ import annotations

from timeoutmgr.contracts import Clock, DelayedMessageStore
from timeoutmgr.message.instants import Micros
from timeoutmgr.testing.conformance.delayed.suite import (
    DelayedStores,
    DelayedSuite,
    drain,
    fetch,
    fetched,
    ids,
    put,
)
from timeoutmgr.testing.conformance.plugin import needs
from timeoutmgr.testing.conformance.samples import HOUR, SECOND, SetClock, timeout


class DelayedAttempts(DelayedSuite):
    """``increment_failure_count``."""

    def test_the_next_fetch_shows_each_counted_failure(
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

    def test_a_failure_count_returns_whether_the_store_had_the_message(
        self, store: DelayedMessageStore, now: Micros
    ) -> None:
        one = timeout("a", now - 1)
        put(store, one)
        before = store.increment_failure_count(one, now)
        store.remove(one)

        assert (before, store.increment_failure_count(one, now)) == (True, False)
        assert store.next() is None

    def test_a_postponed_message_delays_no_other(
        self, store: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        failing = timeout("failing", now - 9 * SECOND)
        put(store, failing, timeout("fine", now - SECOND))

        store.increment_failure_count(failing, now + HOUR)

        assert drain(store, clock) == ["fine"]
        assert store.next() == now + HOUR

    @needs(settable_clock=True)
    def test_a_postponed_message_returns_when_its_time_is_over(
        self, store: DelayedMessageStore, clock: SetClock
    ) -> None:
        one = timeout("a", clock.at)
        put(store, one)

        store.increment_failure_count(one, clock.at + 5)
        clock.at += 4
        early = fetched(store, clock)
        clock.at += 1

        assert (early, ids(fetched(store, clock))) == ([], ["a"])

    def test_a_failure_counts_after_the_fetch_ended_without_removal(
        self, stores: DelayedStores, store: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        put(store, timeout("a", now - 2))

        with store.transaction() as transaction:
            [one] = fetch(store, clock, transaction)
        store.increment_failure_count(one, now - 1)

        assert [each.attempts for each in fetched(stores(), clock)] == [1]
