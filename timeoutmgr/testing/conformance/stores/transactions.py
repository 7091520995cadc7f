"""In a caller's transaction everything comes and goes with it."""

# ruff: noqa: D102 - the name of a case is its claim

from __future__ import annotations

import pytest

from timeoutmgr.contracts import CancelResult, TimeoutState, Transaction
from timeoutmgr.errors import CombinationRefused
from timeoutmgr.instants import Micros
from timeoutmgr.testing.conformance.facts import needs
from timeoutmgr.testing.conformance.samples import (
    HOUR,
    SetClock,
    timeout,
)
from timeoutmgr.testing.conformance.stores.suite import (
    ALL,
    Stores,
    StoreSuite,
    ids,
    outcomes,
    pending,
)


class InTransactions(StoreSuite):
    """Methods with a *transaction*."""

    @needs(transactions=True)
    def test_what_is_stored_comes_with_the_commit(self, stores: Stores, now: Micros) -> None:
        store = stores()

        with stores.committed() as transaction:
            store.store_many([timeout("a", now)], transaction=transaction)

        assert pending(store) == ["a"]

    @needs(transactions=True)
    def test_what_is_stored_goes_with_the_rollback(self, stores: Stores, now: Micros) -> None:
        store = stores()
        store.store_many([timeout("old", now)])

        with stores.rolled_back() as transaction:
            store.store_many([timeout("a", now), timeout("old", now)], transaction=transaction)
        store.store_many([timeout("a", now + 1)])  # it was never seen

        assert [(one.id, one.due) for one in store.list(ALL)] == [("old", now), ("a", now + 1)]

    @needs(transactions=True)
    def test_nobody_sees_it_before_the_commit(self, stores: Stores, now: Micros) -> None:
        store = stores()

        with stores.committed() as transaction:
            store.store_many([timeout("a", now)], transaction=transaction)
            inside = store.count(ALL)

        assert (inside, store.count(ALL)) == (0, 1)

    @needs(transactions=True)
    def test_a_dispatch_comes_and_goes_with_it(self, stores: Stores, now: Micros) -> None:
        store = stores(atomic=True)
        store.store_many([timeout("a", now - 1)])

        def send(transaction: Transaction) -> list[str]:
            chunk = store.claim(now, 1, "o", transaction=transaction)
            with store.take_many(chunk.token, chunk.keys, transaction=transaction) as taken:
                taken.close(outcomes(chunk.keys, now))
                return ids(list(taken.timeouts))

        with stores.rolled_back() as transaction:
            undone = send(transaction)
        between = store.find("a")
        with stores.committed() as transaction:
            done = send(transaction)

        assert (undone, done) == (["a"], ["a"])
        assert between == (TimeoutState.PENDING, timeout("a", now - 1))
        assert store.find("a") == (TimeoutState.DISPATCHED, None)

    @needs(transactions=True)
    def test_a_sagas_cancel_comes_and_goes_with_it(self, stores: Stores, now: Micros) -> None:
        store = stores()
        store.store_many([timeout("a", now, saga="s"), timeout("b", now, saga="s")])

        with stores.rolled_back() as transaction:
            undone = store.cancel_saga("s", transaction=transaction)
        left = pending(store)
        with stores.committed() as transaction:
            done = store.cancel_saga("s", transaction=transaction)

        assert (undone, left, done) == (2, ["a", "b"], 2)
        assert pending(store) == []

    @needs(transactions=True, settable_clock=True)
    def test_where_dispatch_is_atomic_nothing_is_maybe_sent(
        self, stores: Stores, clock: SetClock
    ) -> None:
        store = stores(atomic=True)
        store.store_many([timeout("a", clock.at)])
        chunk = store.claim(clock.at, 1, "o")

        with (
            stores.rolled_back() as transaction,
            store.take_many(chunk.token, chunk.keys, transaction=transaction) as taken,
        ):
            assert len(taken.timeouts) == 1
        self.lapse(clock)
        store.release(store.claim(clock.at, 1, "o").token)

        assert store.cancel("a") is CancelResult.CANCELLED

    @needs(transactions=True)
    def test_storing_and_dispatching_are_one_transaction(self, stores: Stores, now: Micros) -> None:
        store = stores()
        store.store_many([timeout("a", now - 1)])
        chunk = store.claim(now, 1, "o")

        with (
            stores.rolled_back() as transaction,
            store.take_many(chunk.token, chunk.keys, transaction=transaction) as taken,
        ):
            store.store_many([timeout("b", now + HOUR)], transaction=transaction)
            taken.close(outcomes(chunk.keys, now))

        assert pending(store) == ["a"]

    @needs(transactions=False)
    def test_a_promise_of_atomic_dispatch_is_refused(self, stores: Stores) -> None:
        with pytest.raises(CombinationRefused):
            stores(atomic=True)
