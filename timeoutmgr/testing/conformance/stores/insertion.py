"""Each id is stored once in its life, whatever comes again, and comes back as it went in."""

# ruff: noqa: D102 - the name of a case is its claim

from __future__ import annotations

from dataclasses import replace

import pytest

from timeoutmgr.contracts import CancelResult, Timeout, TimeoutState, TimeoutStore
from timeoutmgr.errors import MessageRejected
from timeoutmgr.instants import Micros
from timeoutmgr.testing.conformance.facts import needs
from timeoutmgr.testing.conformance.samples import (
    HOUR,
    INSTANTS,
    MESSAGES,
    NAMES,
    UNSTORABLE,
    timeout,
)
from timeoutmgr.testing.conformance.stores.suite import (
    ALL,
    Stores,
    StoreSuite,
    drain,
    pending,
)


class Storing(StoreSuite):
    """``store_many`` and ``find``."""

    @pytest.mark.parametrize("kind", MESSAGES)
    def test_a_message_comes_back_as_it_was_stored(
        self, store: TimeoutStore, now: Micros, kind: str
    ) -> None:
        stored = replace(timeout("a", now + HOUR, saga="s"), message=MESSAGES[kind])

        store.store_many([stored])

        assert store.find("a") == (TimeoutState.PENDING, stored)
        assert store.list(ALL) == [stored]

    @pytest.mark.parametrize("due", INSTANTS, ids=str)
    def test_every_microsecond_of_a_due_time_is_kept(self, store: TimeoutStore, due: int) -> None:
        stored = timeout("a", due)

        store.store_many([stored])

        assert store.list(ALL) == [stored]
        assert store.next_due() == due

    def test_nothing_can_be_stored(self, store: TimeoutStore) -> None:
        store.store_many([])

        assert store.count(ALL) == 0

    def test_a_thousand_are_stored_at_once(self, store: TimeoutStore, now: Micros) -> None:
        names = [f"{n:04}" for n in range(1_000)]

        store.store_many([timeout(name, now + HOUR) for name in names])

        assert pending(store) == names

    def test_storing_again_is_storing_once(self, store: TimeoutStore, now: Micros) -> None:
        first = timeout("a", now + HOUR)
        store.store_many([first])

        store.store_many([timeout("b", now), timeout("a", now, body=b"other"), timeout("b", now)])

        assert store.find("a") == (TimeoutState.PENDING, first)
        assert pending(store) == ["b", "a"]

    def test_of_an_id_twice_in_a_batch_the_first_counts(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        store.store_many([timeout("a", now + 1), timeout("a", now), timeout("b", now + 2)])

        assert [(one.id, one.due) for one in store.list(ALL)] == [("a", now + 1), ("b", now + 2)]

    def test_what_was_dispatched_is_not_stored_again(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        store.store_many([timeout("a", now - 1)])
        drain(store)

        store.store_many([timeout("a", now - 1), timeout("b", now + HOUR)])

        assert store.find("a") == (TimeoutState.DISPATCHED, None)
        assert pending(store) == ["b"]

    def test_what_was_cancelled_is_not_stored_again(self, store: TimeoutStore, now: Micros) -> None:
        store.store_many([timeout("a", now)])
        store.cancel("a")

        store.store_many([timeout("a", now)])

        assert store.find("a") == (TimeoutState.CANCELLED, None)

    def test_what_was_cancelled_before_it_came_is_not_stored(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        assert store.cancel("a") is CancelResult.WILL_BE_CANCELLED

        store.store_many([timeout("a", now), timeout("b", now)])

        assert pending(store) == ["b"]
        assert store.find("a") == (TimeoutState.CANCELLED, None)

    def test_what_was_rescheduled_stays_so_when_it_comes_again(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        store.store_many([timeout("a", now)])
        store.reschedule("a", now + HOUR)

        store.store_many([timeout("a", now)])

        assert [one.due for one in store.list(ALL)] == [now + HOUR]

    @pytest.mark.parametrize(("one", "other"), NAMES)
    def test_names_that_differ_by_a_byte_are_two(
        self, stores: Stores, now: Micros, one: str, other: str
    ) -> None:
        store, twin = stores(), stores(stores.endpoint.upper())

        store.store_many([timeout(one, now, saga=one), timeout(other, now, saga=other)])

        assert store.count(ALL) == 2
        assert twin.count(ALL) == 0
        assert store.find(one + "  ") is None
        assert store.cancel_saga(one) == 1
        assert pending(store) == [other]

    def test_the_longest_names_are_kept(self, store: TimeoutStore, now: Micros) -> None:
        longest = timeout("ä" * 255, now, saga="ö" * 255, destination="ü" * 255)

        store.store_many([longest])

        assert store.find(longest.id) == (TimeoutState.PENDING, longest)

    @needs(limits_text=True)
    @pytest.mark.parametrize("bad", UNSTORABLE.values(), ids=UNSTORABLE)
    def test_what_no_column_takes_is_rejected_with_its_batch(
        self, store: TimeoutStore, bad: Timeout
    ) -> None:
        with pytest.raises(MessageRejected):
            store.store_many([timeout("good", 0), bad])

        assert store.count(ALL) == 0

    def test_endpoints_do_not_see_each_other(self, stores: Stores, now: Micros) -> None:
        one, other = stores(), stores(f"{stores.endpoint}.other")

        one.store_many([timeout("a", now - 2)])
        other.store_many([timeout("a", now - 1)])

        assert drain(one) == ["a"]
        assert [each.due for each in other.list(ALL)] == [now - 1]
        assert other.cancel("a") is CancelResult.CANCELLED
        assert one.find("a") == (TimeoutState.DISPATCHED, None)

    @needs(durable=True)
    def test_another_store_of_the_endpoint_finds_it(self, stores: Stores, now: Micros) -> None:
        stores().store_many([timeout("a", now - 1)])

        assert drain(stores()) == ["a"]
