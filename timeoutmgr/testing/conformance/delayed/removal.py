"""A removal tells whether the message was there, and it is gone with the transaction's end."""

# ruff: noqa: D102 - the name of a case is its claim

from __future__ import annotations

from timeoutmgr.contracts import Clock, DelayedMessageStore, RemovesInBatches
from timeoutmgr.message.instants import Micros
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
from timeoutmgr.testing.conformance.plugin import needs
from timeoutmgr.testing.conformance.samples import HOUR, timeout


class DelayedRemoval(DelayedSuite):
    """``remove`` and ``remove_many``."""

    def test_a_removal_returns_whether_the_store_had_the_message(
        self, store: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        one = timeout("a", now - 1)
        put(store, one)

        with store.transaction() as transaction:
            fetch(store, clock, transaction)
            answers = [store.remove(one, transaction=transaction) for _ in range(2)]

        assert answers == [True, False]
        assert store.next() is None

    def test_a_message_can_be_removed_before_it_is_due(
        self, store: DelayedMessageStore, now: Micros
    ) -> None:
        one = timeout("a", now + HOUR)
        put(store, one)

        assert [store.remove(one), store.remove(one)] == [True, False]
        assert store.next() is None

    def test_a_removed_message_is_removed_for_every_process(
        self, stores: DelayedStores, store: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        put(store, timeout("a", now - 2), timeout("b", now - 1))

        with store.transaction() as transaction:
            [first, *_] = fetch(store, clock, transaction, 1)
            store.remove(first, transaction=transaction)

        assert ids(fetched(stores(), clock)) == ["b"]
        assert not stores().remove(first)

    @needs(row_locks=True)
    def test_a_failed_transaction_undoes_a_removal(
        self, store: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        put(store, timeout("a", now - 1))

        with failing(store) as transaction:
            [one] = fetch(store, clock, transaction)
            assert store.remove(one, transaction=transaction)

        assert drain(store, clock) == ["a"]

    @needs(removes_in_batches=True)
    def test_a_batch_removal_returns_how_many_messages_it_removed(
        self, store: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        assert isinstance(store, RemovesInBatches)
        there = [timeout(name, now - 1) for name in "abc"]
        put(store, *there)

        with store.transaction() as transaction:
            fetch(store, clock, transaction)
            some = store.remove_many([*there[:2], timeout("never", now)], transaction=transaction)
            none = store.remove_many([], transaction=transaction)
        rest = store.remove_many(there)

        assert (some, none, rest) == (2, 0, 1)
