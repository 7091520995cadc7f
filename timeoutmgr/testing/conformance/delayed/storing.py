"""A message is stored once while it is there, and comes back as it went in."""

# ruff: noqa: D102 - the name of a case is its claim

from __future__ import annotations

from dataclasses import replace

import pytest

from timeoutmgr.contracts import (
    Clock,
    DelayedMessageStore,
    DelayedMessageStoreWithInfrastructure,
    StoresInBatches,
    Timeout,
    TransactionMode,
)
from timeoutmgr.delayed_delivery import DelayedDeliverySettings
from timeoutmgr.errors import ConfigurationError, MessageRejected
from timeoutmgr.instants import Micros
from timeoutmgr.testing.conformance.delayed.suite import (
    DelayedStores,
    DelayedSuite,
    drain,
    fetched,
    forms,
    ids,
    put,
)
from timeoutmgr.testing.conformance.facts import needs
from timeoutmgr.testing.conformance.racing import race
from timeoutmgr.testing.conformance.samples import (
    HOUR,
    INSTANTS,
    MESSAGES,
    NAMES,
    SECOND,
    UNSTORABLE,
    timeout,
)


class Storing(DelayedSuite):
    """``initialize``, ``setup_infrastructure``, ``store`` and ``store_many``."""

    def test_an_endpoint_takes_it(self, stores: DelayedStores) -> None:
        store = stores.made()

        assert DelayedDeliverySettings(store).store is store

    def test_it_has_the_forms_that_the_suite_says(self, store: DelayedMessageStore) -> None:
        assert forms(store) == {
            "fetches_in_batches": self.fetches_in_batches,
            "stores_in_batches": self.stores_in_batches,
            "removes_in_batches": self.removes_in_batches,
        }

    def test_capabilities_that_it_tells_are_those_of_the_suite(
        self, store: DelayedMessageStore
    ) -> None:
        told = getattr(store, "capabilities", None)

        assert told is None or told.row_locks is self.row_locks

    @needs(transactions=False)
    def test_a_transaction_that_it_cannot_share_is_refused(self, stores: DelayedStores) -> None:
        with pytest.raises(ConfigurationError):
            stores(TransactionMode.TRANSACTION_SCOPE)

    def test_setting_up_again_and_at_once_keeps_what_is_stored(
        self, stores: DelayedStores, store: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        put(store, timeout("a", now - 1))

        for again in (stores.made(), stores.made()):
            if isinstance(again, DelayedMessageStoreWithInfrastructure):
                again.setup_infrastructure(stores.endpoint)
        first, second = race(stores, stores)

        assert ids(fetched(first, clock)) == ids(fetched(second, clock)) == ["a"]

    @pytest.mark.parametrize("kind", MESSAGES)
    def test_a_message_comes_back_as_it_was_stored(
        self, store: DelayedMessageStore, now: Micros, clock: Clock, kind: str
    ) -> None:
        stored = replace(timeout("a", now - 1), message=MESSAGES[kind])

        put(store, stored)

        assert [_sendable(one) for one in fetched(store, clock)] == [_sendable(stored)]

    @pytest.mark.parametrize("due", INSTANTS, ids=str)
    def test_every_microsecond_of_a_due_time_is_kept(
        self, store: DelayedMessageStore, now: Micros, clock: Clock, due: int
    ) -> None:
        put(store, timeout("a", due))

        assert store.next() == due
        assert [one.due for one in fetched(store, clock)] == ([due] if due <= now else [])

    def test_an_id_that_is_stored_is_left_as_it_is(
        self, store: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        first = timeout("a", now - 2 * SECOND)
        put(store, first, timeout("b", now - SECOND))

        put(store, timeout("a", now - 3 * SECOND, body=b"other"), timeout("a", now + HOUR))

        assert _sendable(fetched(store, clock)[0]) == _sendable(first)
        assert drain(store, clock) == ["a", "b"]
        assert store.next() is None

    def test_storing_again_counts_no_failure_and_forgets_none(
        self, store: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        one = timeout("a", now - SECOND)
        put(store, one)
        store.increment_failure_count(one, now - 1)

        put(store, one)

        assert [each.attempts for each in fetched(store, clock)] == [1]

    @pytest.mark.parametrize(("one", "other"), NAMES)
    def test_names_that_differ_by_a_byte_are_two(
        self, store: DelayedMessageStore, now: Micros, clock: Clock, one: str, other: str
    ) -> None:
        put(store, timeout(one, now - 2), timeout(other, now - 1))

        assert not store.remove(timeout(one + "  ", now))
        assert store.remove(timeout(one, now - 2))
        assert ids(fetched(store, clock)) == [other]

    def test_the_longest_names_are_kept(
        self, store: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        longest = timeout("ä" * 255, now - 1, destination="ü" * 255)

        put(store, longest)

        assert [_sendable(one) for one in fetched(store, clock)] == [_sendable(longest)]

    @needs(limits_text=True)
    @pytest.mark.parametrize("bad", UNSTORABLE.values(), ids=UNSTORABLE)
    def test_what_no_column_takes_is_rejected(
        self, store: DelayedMessageStore, bad: Timeout
    ) -> None:
        with pytest.raises(MessageRejected):
            store.store(bad)

        assert store.next() is None

    @needs(stores_in_batches=True, limits_text=True)
    @pytest.mark.parametrize("bad", UNSTORABLE.values(), ids=UNSTORABLE)
    def test_a_batch_is_stored_whole_or_not_at_all(
        self, store: DelayedMessageStore, now: Micros, bad: Timeout
    ) -> None:
        assert isinstance(store, StoresInBatches)

        with pytest.raises(MessageRejected):
            store.store_many([timeout("good", now), bad])

        assert store.next() is None

    @needs(stores_in_batches=True)
    def test_of_an_id_twice_in_a_batch_the_first_counts(
        self, store: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        assert isinstance(store, StoresInBatches)
        store.store_many([])

        store.store_many([timeout("a", now - 2), timeout("b", now - 1), timeout("a", now - 3)])

        assert [(one.id, one.due) for one in fetched(store, clock)] == [
            ("a", now - 2),
            ("b", now - 1),
        ]

    @needs(stores_in_batches=True)
    def test_a_thousand_are_stored_at_once(
        self, store: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        assert isinstance(store, StoresInBatches)
        names = [f"{n:04}" for n in range(1_000)]

        store.store_many([timeout(name, now - 1_000 + at) for at, name in enumerate(names)])

        assert drain(store, clock, 300) == names

    def test_another_process_finds_it(
        self, stores: DelayedStores, store: DelayedMessageStore, now: Micros, clock: Clock
    ) -> None:
        put(store, timeout("a", now - 1))

        assert drain(stores(), clock) == ["a"]
        assert drain(store, clock) == []


def _sendable(one: Timeout) -> tuple[object, ...]:
    """Return what is needed of *one* to send it; a store may forget the rest."""
    return one.id, one.due, one.destination, one.message, one.attempts
