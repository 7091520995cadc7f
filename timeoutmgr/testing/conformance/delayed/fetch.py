"""The oldest that is due is handed out, to one at a time, and never before it is due."""

# ruff: noqa: D102 - the name of a case is its claim

from __future__ import annotations

from timeoutmgr.contracts import Clock, DelayedMessageStore, FetchesInBatches
from timeoutmgr.instants import Micros, duration_micros
from timeoutmgr.testing.conformance.delayed.suite import (
    DelayedStores,
    DelayedSuite,
    drain,
    failing,
    fetch,
    fetched,
    ids,
    put,
)
from timeoutmgr.testing.conformance.facts import needs
from timeoutmgr.testing.conformance.samples import HOUR, SECOND, SetClock, timeout


class Fetching(DelayedSuite):
    """``transaction``, ``fetch_next_due_timeout``, ``fetch_due`` and ``next``."""

    def test_where_nothing_is_stored_nothing_is_due(
        self, store: DelayedMessageStore, clock: Clock
    ) -> None:
        with store.transaction() as transaction:
            assert store.fetch_next_due_timeout(clock.now(), transaction=transaction) is None

        assert store.next() is None

    def test_what_is_due_later_is_not_handed_out(
        self, store: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        put(store, timeout("later", now + 2 * HOUR), timeout("sooner", now + HOUR))

        assert fetched(store, clock) == []
        assert store.next() == now + HOUR

    @needs(settable_clock=True)
    def test_due_is_due_in_its_very_microsecond(
        self, store: DelayedMessageStore, clock: SetClock
    ) -> None:
        put(store, timeout("a", clock.at + 1))

        early = fetched(store, clock)
        clock.at += 1

        assert (early, ids(fetched(store, clock))) == ([], ["a"])

    def test_the_oldest_that_is_due_comes_first(
        self, store: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        for at in (3, 1, 4, 2, 5):
            put(store, timeout(f"t{at}", now - 10 * SECOND + at))
        put(store, timeout("later", now + HOUR))

        with store.transaction() as transaction:
            first = store.fetch_next_due_timeout(clock.now(), transaction=transaction)

        assert first is not None
        assert first.id == "t1"
        assert drain(store, clock) == ["t1", "t2", "t3", "t4", "t5"]

    @needs(fetches_in_batches=True)
    def test_a_batch_is_the_oldest_up_to_its_limit(
        self, store: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        assert isinstance(store, FetchesInBatches)
        put(store, *(timeout(f"t{n}", now - 9 + n) for n in (2, 0, 3, 1)))

        with store.transaction() as transaction:
            three = store.fetch_due(clock.now(), 3, transaction=transaction)
        with store.transaction() as transaction:
            all_of_them = store.fetch_due(clock.now(), 1_000, transaction=transaction)

        assert (ids(three), ids(all_of_them)) == (["t0", "t1", "t2"], ["t0", "t1", "t2", "t3"])

    def test_what_is_fetched_is_nobody_elses_until_the_transaction_ends(
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

    def test_what_is_in_one_lanes_hands_is_not_in_the_others(
        self, store: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        put(store, timeout("a", now - 2), timeout("b", now - 1))

        with store.transaction() as one, store.transaction() as other:
            both = fetch(store, clock, one, 1) + fetch(store, clock, other, 1)

        assert ids(both) == ["a", "b"]

    def test_an_error_passes_and_gives_back_what_was_fetched(
        self, store: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        put(store, timeout("a", now - 1))

        with failing(store) as transaction:
            found = ids(fetch(store, clock, transaction))

        assert found == ids(fetched(store, clock)) == ["a"]

    def test_while_a_message_is_in_hand_others_can_be_stored_and_looked_for(
        self, stores: DelayedStores, store: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        put(store, timeout("a", now - 9))
        other = stores()

        with store.transaction() as transaction:
            in_hand = fetch(store, clock, transaction)
            put(other, timeout("b", now - 8), timeout("later", now + HOUR))
            seen = other.next()
            passed_by = ids(fetched(other, clock))

        assert (ids(in_hand), passed_by) == (["a"], ["b"])
        # Of what others have in hand it may tell or not; of what is free it has to.
        assert seen in (now - 9, now - 8)
        assert drain(store, clock) == ["a", "b"]

    @needs(lapses=True, settable_clock=True)
    def test_what_its_holder_keeps_too_long_is_free_and_no_more_the_holders(
        self, stores: DelayedStores, store: DelayedMessageStore, clock: SetClock
    ) -> None:
        put(store, timeout("a", clock.at))
        other = stores()

        with store.transaction() as stale:
            [one] = fetch(store, clock, stale)
            clock.at += duration_micros(self.holds_for)
            with other.transaction() as fresh:
                again = fetch(other, clock, fresh)
                late = store.remove(one, transaction=stale)
                in_time = other.remove(one, transaction=fresh)

        assert ids(again) == ["a"]
        assert (late, in_time) == (False, True)
        assert other.next() is None

    def test_next_is_when_the_first_is_to_be_fetched(
        self, store: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        found = [store.next()]
        for due in (now + HOUR, now + 2 * HOUR, now - SECOND):
            put(store, timeout(f"{due}", due))
            found.append(store.next())
        drain(store, clock)
        found.append(store.next())

        assert found == [None, now + HOUR, now + HOUR, now - SECOND, now + HOUR]
