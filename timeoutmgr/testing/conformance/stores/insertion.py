"""A store accepts each id once, even if the message is delivered again."""

# ruff: noqa: D102 - the name of a case says what it checks

from __future__ import annotations

import pytest

from timeoutmgr.contracts import CancelResult, TimeoutState
from timeoutmgr.errors import CombinationRefused
from timeoutmgr.message.instants import Micros
from timeoutmgr.testing.conformance.plugin import needs
from timeoutmgr.testing.conformance.samples import HOUR, NAMES, SetClock, timeout
from timeoutmgr.testing.conformance.stores.suite import (
    ALL,
    Stores,
    StoreSuite,
    drain,
    outcomes,
    pending,
)


class TimeoutInsertion(StoreSuite):
    """``store_many`` and ``find``."""

    @pytest.mark.parametrize(("one", "other"), NAMES)
    def test_endpoints_and_sagas_that_differ_by_a_byte_are_distinct(
        self, stores: Stores, now: Micros, one: str, other: str
    ) -> None:
        store, twin = stores(), stores(stores.endpoint.upper())

        store.store_many([timeout(one, now, saga=one), timeout(other, now, saga=other)])

        assert store.count(ALL) == 2
        assert twin.count(ALL) == 0
        assert store.find(one + "  ") is None
        assert list(store.cancel_saga(one)) == [one]
        assert pending(store) == [other]

    def test_endpoints_do_not_see_each_other(self, stores: Stores, now: Micros) -> None:
        one, other = stores(), stores(f"{stores.endpoint}.other")

        one.store_many([timeout("a", now - 2)])
        other.store_many([timeout("a", now - 1)])

        assert drain(one) == ["a"]
        assert [each.due for each in other.list(ALL)] == [now - 1]
        assert other.cancel("a") is CancelResult.CANCELLED
        assert one.find("a") == (TimeoutState.DISPATCHED, None)


class TimeoutTransactions(StoreSuite):
    """Methods with a *transaction*: all effects are committed or rolled back with it."""

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

        assert sorted(undone) == left == sorted(done) == ["a", "b"]
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
