"""A store holds each message once, and returns it unchanged."""

# ruff: noqa: D102 - the name of a case says what it checks

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial

import pytest

from timeoutmgr.contracts import (
    Clock,
    DelayedMessageStore,
    DelayedMessageStoreWithInfrastructure,
    RemovesInBatches,
    StatesCapabilities,
    TransactionMode,
)
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.features.delayed_delivery import DelayedDeliverySettings
from timeoutmgr.message.instants import Micros
from timeoutmgr.testing.conformance.delayed.suite import (
    DelayedStores,
    DelayedSuite,
    drain,
    failing,
    fetch,
    fetched,
    forms,
    put,
)
from timeoutmgr.testing.conformance.plugin import needs
from timeoutmgr.testing.conformance.samples import HOUR, SECOND, Track, race, timeout
from timeoutmgr.testing.conformance.shared_cases import ids


class DelayedRaces(DelayedSuite):
    """Each of concurrent removals, failures and inserts counts exactly once."""

    def test_two_processes_store_a_shared_id_once(
        self,
        stores: DelayedStores,
        store: DelayedMessageStore,
        now: Micros,
        clock: Clock,
        rounds: int,
    ) -> None:
        other = stores()
        count = max(5, rounds // 5)
        with Track(2) as track:
            for n in range(count):
                one = timeout(f"{n:04}", now - HOUR + n)
                track.race(partial(store.store, one), partial(other.store, one))

        assert drain(store, clock) == [f"{n:04}" for n in range(count)]

    def test_exactly_one_of_two_removals_returns_true(
        self, stores: DelayedStores, store: DelayedMessageStore, now: Micros, rounds: int
    ) -> None:
        other = stores()
        with Track(2) as track:
            for n in range(max(5, rounds // 5)):
                one = timeout(f"{n}", now + HOUR)
                put(store, one)
                answers = track.race(partial(store.remove, one), partial(other.remove, one))
                assert sorted(answers) == [False, True]

    def test_two_concurrent_failures_count_twice(
        self,
        stores: DelayedStores,
        store: DelayedMessageStore,
        now: Micros,
        clock: Clock,
        rounds: int,
    ) -> None:
        other, one = stores(), timeout("a", now - SECOND)
        put(store, one)
        count = max(5, rounds // 5)
        with Track(2) as track:
            for _ in range(count):
                track.race(
                    partial(store.increment_failure_count, one, now - SECOND),
                    partial(other.increment_failure_count, one, now - SECOND),
                )

        assert [each.attempts for each in fetched(store, clock)] == [2 * count]

    def test_concurrent_inserts_counts_and_removals_lose_no_message(
        self,
        stores: DelayedStores,
        store: DelayedMessageStore,
        now: Micros,
        clock: Clock,
        rounds: int,
    ) -> None:
        other = stores()
        kept: list[str] = []
        with Track(3) as track:
            for n in range(max(5, rounds // 5)):
                failing, removed, new = (timeout(f"{n:03}{what}", now - SECOND) for what in "fgn")
                put(store, failing, removed)
                track.race(
                    partial(store.increment_failure_count, failing, now - SECOND),
                    partial(other.remove, removed),
                    partial(other.store, new),
                )
                kept += [failing.id, new.id]

        assert sorted(drain(store, clock)) == sorted(kept)


class DelayedRemoval(DelayedSuite):
    """``remove`` and ``remove_many`` return whether the message was stored."""

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
        put(store, one)  # the id is free again
        assert store.next() == now + HOUR

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

    @needs(keeps_endpoints_apart=True)
    def test_endpoints_of_one_storage_do_not_see_each_other(
        self,
        make_store: Callable[[], DelayedMessageStore],
        store: DelayedMessageStore,
        now: Micros,
        clock: Clock,
    ) -> None:
        with closing(DelayedStores(make_store, clock)) as others:
            other = others()
            put(store, timeout("a", now - 1))
            put(other, timeout("a", now - 2), timeout("b", now - 1))

            assert (drain(store, clock), drain(other, clock)) == (["a"], ["a", "b"])

    def test_storing_again_keeps_the_failure_count(
        self, store: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        one = timeout("a", now - SECOND)
        put(store, one)
        store.increment_failure_count(one, now - 1)

        put(store, one)

        assert [each.attempts for each in fetched(store, clock)] == [1]
