"""A fetch returns the oldest due message, locked, and never before it is due."""

# ruff: noqa: D102 - the name of a case says what it checks

from __future__ import annotations

from timeoutmgr.contracts import Clock, DelayedMessageStore, FetchesInBatches
from timeoutmgr.message.instants import Micros, duration_micros
from timeoutmgr.testing.conformance.delayed.suite import (
    DelayedStores,
    DelayedSuite,
    drain,
    failing,
    fetch,
    fetched,
    put,
)
from timeoutmgr.testing.conformance.plugin import needs
from timeoutmgr.testing.conformance.samples import HOUR, SECOND, SetClock, timeout
from timeoutmgr.testing.conformance.shared_cases import ids


class DelayedAttempts(DelayedSuite):
    """``increment_failure_count`` counts a failure in its own transaction, and delays a message."""

    def test_the_next_fetch_shows_each_counted_failure(
        self, store: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        stored = timeout("a", now - SECOND)
        put(store, stored)

        for count in (1, 2, 3):
            assert store.increment_failure_count(stored, now - 1)
            [found] = fetched(store, clock)
            assert (found.attempts, found.due, found.message) == (count, stored.due, stored.message)

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


class DelayedFetch(DelayedSuite):
    """``transaction``, ``fetch_next_due_timeout``, ``fetch_due`` and ``next``."""

    def test_fetch_next_returns_the_oldest_due_message(
        self, store: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        with store.transaction() as transaction:
            assert store.fetch_next_due_timeout(clock.now(), transaction=transaction) is None
        put(store, timeout("a", now - 1), timeout("b", now - 2), timeout("later", now + HOUR))

        with store.transaction() as transaction:
            first = store.fetch_next_due_timeout(clock.now(), transaction=transaction)

        assert first is not None
        assert first.id == "b"

    @needs(fetches_in_batches=True)
    def test_a_batch_has_the_oldest_messages_up_to_its_limit(
        self, store: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        assert isinstance(store, FetchesInBatches)
        put(store, *(timeout(f"t{n}", now - 9 + n) for n in (2, 0, 3, 1)))

        with store.transaction() as transaction:
            three = store.fetch_due(clock.now(), 3, transaction=transaction)
        with store.transaction() as transaction:
            all_of_them = store.fetch_due(clock.now(), 1_000, transaction=transaction)

        assert (ids(three), ids(all_of_them)) == (["t0", "t1", "t2"], ["t0", "t1", "t2", "t3"])

    def test_a_fetched_message_is_locked_until_its_transaction_ends(
        self, stores: DelayedStores, store: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        put(store, timeout("a", now - 3), timeout("b", now - 2), timeout("c", now - 1))
        other = stores()

        with store.transaction() as transaction:
            first = fetch(store, clock, transaction, 1)
            with other.transaction() as theirs:
                second = fetch(other, clock, theirs, 1)
            passed_by = ids(fetched(other, clock))

        assert (ids(first), ids(second), passed_by) == (["a"], ["b"], ["b", "c"])
        assert ids(fetched(other, clock)) == ["a", "b", "c"]

    def test_two_transactions_of_one_store_fetch_different_messages(
        self, store: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        put(store, timeout("a", now - 2), timeout("b", now - 1))

        with store.transaction() as one, store.transaction() as other:
            both = fetch(store, clock, one, 1) + fetch(store, clock, other, 1)

        assert ids(both) == ["a", "b"]

    def test_an_error_in_a_transaction_is_raised_and_frees_fetched_messages(
        self, store: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        put(store, timeout("a", now - 1))

        with failing(store) as transaction:
            found = ids(fetch(store, clock, transaction))

        assert found == ids(fetched(store, clock)) == ["a"]

    def test_a_locked_message_hinders_no_insert_and_no_query(
        self, stores: DelayedStores, store: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        put(store, timeout("a", now - 9))
        other = stores()

        with store.transaction() as transaction:
            locked = fetch(store, clock, transaction)
            put(other, timeout("b", now - 8), timeout("later", now + HOUR))
            seen = other.next()
            passed_by = ids(fetched(other, clock))

        assert (ids(locked), passed_by) == (["a"], ["b"])
        # The answer may ignore a locked message, but not a free message.
        assert seen in (now - 9, now - 8)
        assert drain(store, clock) == ["a", "b"]

    @needs(lapses=True, settable_clock=True)
    def test_an_expired_fetch_frees_the_message_and_refuses_its_late_removal(
        self, stores: DelayedStores, store: DelayedMessageStore, clock: SetClock
    ) -> None:
        put(store, timeout("a", clock.at))
        other = stores()

        with store.transaction() as stale:
            [one] = fetch(store, clock, stale)
            clock.at += duration_micros(self.holds_for) - 1
            early = fetched(other, clock)
            clock.at += 1
            with other.transaction() as fresh:
                again = fetch(other, clock, fresh)
                late = store.remove(one, transaction=stale)
                in_time = other.remove(one, transaction=fresh)

        assert (early, ids(again)) == ([], ["a"])
        assert (late, in_time) == (False, True)
        assert other.next() is None
