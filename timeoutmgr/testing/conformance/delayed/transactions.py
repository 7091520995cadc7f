"""In the queue's transaction everything comes and goes with it."""

# ruff: noqa: D102 - the name of a case is its claim

from __future__ import annotations

import pytest

from timeoutmgr.contracts import Clock, DelayedMessageStore, TransactionMode
from timeoutmgr.instants import Micros
from timeoutmgr.testing.conformance.delayed.suite import (
    DelayedStores,
    DelayedSuite,
    database_of,
    drain,
    fetch,
    fetched,
    ids,
)
from timeoutmgr.testing.conformance.facts import needs
from timeoutmgr.testing.conformance.samples import timeout

SCOPE = TransactionMode.TRANSACTION_SCOPE


class InTransactions(DelayedSuite):
    """Methods with the open connection of the queue, as in ``transaction_scope``."""

    @pytest.fixture
    def joined(self, stores: DelayedStores) -> DelayedMessageStore:
        """Return a store that is initialized for it."""
        return stores(SCOPE)

    @needs(transactions=True)
    def test_what_is_stored_comes_with_the_commit(
        self, joined: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        with database_of(joined).begin() as transaction:
            joined.store(timeout("a", now - 1), transaction=transaction)
            before = joined.next()

        assert (before, drain(joined, clock)) == (None, ["a"])

    @needs(transactions=True)
    def test_what_is_stored_goes_with_the_rollback(
        self, stores: DelayedStores, joined: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        joined.store(timeout("old", now - 9))

        with stores.rolled_back(joined) as transaction:
            joined.store(timeout("a", now - 2), transaction=transaction)
            joined.store(timeout("old", now - 8), transaction=transaction)
        joined.store(timeout("a", now - 1))  # it was never seen

        assert [(one.id, one.due) for one in fetched(joined, clock)] == [
            ("old", now - 9),
            ("a", now - 1),
        ]

    @needs(transactions=True)
    def test_a_removal_comes_and_goes_with_it(
        self, stores: DelayedStores, joined: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        joined.store(timeout("a", now - 1))

        with stores.rolled_back(joined) as transaction:
            [undone] = fetch(joined, clock, transaction, 1)
            assert joined.remove(undone, transaction=transaction)
        between = ids(fetched(joined, clock))
        with database_of(joined).begin() as transaction:
            [done] = fetch(joined, clock, transaction, 1)
            assert joined.remove(done, transaction=transaction)

        assert (undone.id, between, done.id) == ("a", ["a"], "a")
        assert joined.next() is None

    @needs(transactions=True)
    def test_storing_and_removing_are_one_transaction(
        self, stores: DelayedStores, joined: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        joined.store(timeout("a", now - 1))

        with stores.rolled_back(joined) as transaction:
            [one] = fetch(joined, clock, transaction, 1)
            joined.store(timeout("b", now - 1), transaction=transaction)
            joined.remove(one, transaction=transaction)

        assert drain(joined, clock) == ["a"]
