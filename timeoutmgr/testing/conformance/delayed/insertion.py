"""A message is stored once while it is there, and comes back as it went in."""

# ruff: noqa: D102 - the name of a case is its claim

from __future__ import annotations

import pytest

from timeoutmgr.contracts import (
    Clock,
    DelayedMessageStore,
    DelayedMessageStoreWithInfrastructure,
    StatesCapabilities,
    TransactionMode,
)
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.features.delayed_delivery import DelayedDeliverySettings
from timeoutmgr.message.instants import Micros
from timeoutmgr.testing.conformance.delayed.suite import (
    DelayedStores,
    DelayedSuite,
    fetched,
    forms,
    ids,
    put,
)
from timeoutmgr.testing.conformance.plugin import needs
from timeoutmgr.testing.conformance.samples import (
    SECOND,
    race,
    timeout,
)


class DelayedInsertion(DelayedSuite):
    """``initialize``, ``setup_infrastructure``, ``store`` and ``store_many``."""

    def test_an_endpoint_accepts_the_store(self, stores: DelayedStores) -> None:
        store = stores.made()

        assert DelayedDeliverySettings(store).store is store

    def test_the_store_has_the_batch_forms_that_the_suite_states(
        self, store: DelayedMessageStore
    ) -> None:
        assert forms(store) == {
            "fetches_in_batches": self.fetches_in_batches,
            "stores_in_batches": self.stores_in_batches,
            "removes_in_batches": self.removes_in_batches,
        }

    def test_the_store_has_the_capabilities_that_the_suite_states(
        self, store: DelayedMessageStore
    ) -> None:
        stated = store.capabilities if isinstance(store, StatesCapabilities) else None

        assert stated is None or stated.row_locks is self.row_locks

    @needs(transactions=False)
    def test_a_store_without_transactions_refuses_transaction_scope(
        self, stores: DelayedStores
    ) -> None:
        with pytest.raises(ConfigurationError):
            stores(TransactionMode.TRANSACTION_SCOPE)

    def test_a_concurrent_second_set_up_keeps_stored_messages(
        self, stores: DelayedStores, store: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        put(store, timeout("a", now - 1))

        for again in (stores.made(), stores.made()):
            if isinstance(again, DelayedMessageStoreWithInfrastructure):
                again.setup_infrastructure(stores.endpoint)
        first, second = race(stores, stores)

        assert ids(fetched(first, clock)) == ids(fetched(second, clock)) == ["a"]

    def test_storing_again_keeps_the_failure_count(
        self, store: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        one = timeout("a", now - SECOND)
        put(store, one)
        store.increment_failure_count(one, now - 1)

        put(store, one)

        assert [each.attempts for each in fetched(store, clock)] == [1]
