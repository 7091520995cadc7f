"""In a caller's transaction everything comes and goes with it."""

# ruff: noqa: D102 - the name of a case is its claim

from __future__ import annotations

import pytest

from timeoutmgr.contracts import CancelResult
from timeoutmgr.errors import CombinationRefused
from timeoutmgr.message.instants import Micros
from timeoutmgr.testing.conformance.plugin import needs
from timeoutmgr.testing.conformance.samples import (
    HOUR,
    SetClock,
    timeout,
)
from timeoutmgr.testing.conformance.stores.suite import (
    Stores,
    StoreSuite,
    outcomes,
    pending,
)


class TimeoutTransactions(StoreSuite):
    """Methods with a *transaction*."""

    @needs(transactions=True)
    def test_cancel_saga_ends_with_the_callers_transaction(
        self, stores: Stores, now: Micros
    ) -> None:
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
    def test_atomic_dispatch_leaves_no_timeout_maybe_sent(
        self, stores: Stores, clock: SetClock
    ) -> None:
        store = stores(atomic=True)
        store.store_many([timeout("a", clock.at)])
        chunk = store.claim(clock.at, 1, "o")

        with (
            stores.rolled_back() as transaction,
            store.lock_for_dispatch(chunk.token, chunk.keys, transaction=transaction) as locked,
        ):
            assert len(locked.timeouts) == 1
        self.lapse(clock)
        store.release(store.claim(clock.at, 1, "o").token)

        assert store.cancel("a") is CancelResult.CANCELLED

    @needs(transactions=True)
    def test_a_rollback_undoes_insert_and_outcomes_of_an_earlier_claim(
        self, stores: Stores, now: Micros
    ) -> None:
        store = stores()
        store.store_many([timeout("a", now - 1)])
        chunk = store.claim(now, 1, "o")

        with (
            stores.rolled_back() as transaction,
            store.lock_for_dispatch(chunk.token, chunk.keys, transaction=transaction) as locked,
        ):
            store.store_many([timeout("b", now + HOUR)], transaction=transaction)
            locked.close(outcomes(chunk.keys, now))

        assert pending(store) == ["a"]

    @needs(transactions=False)
    def test_a_store_without_transactions_refuses_atomic_dispatch(self, stores: Stores) -> None:
        with pytest.raises(CombinationRefused):
            stores(atomic=True)
