"""An order to clear a saga affects timeouts by their position in the manager's queue."""

# ruff: noqa: D102 - the name of a case says what it checks

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

import pytest

from timeoutmgr.contracts import (
    ClearsInOrder,
    Place,
    RepeatKind,
    SagaClear,
    Timeout,
    TimeoutState,
    TimeoutStore,
)
from timeoutmgr.contracts.sagas import REMEMBERED
from timeoutmgr.message.instants import Micros
from timeoutmgr.testing.conformance.plugin import needs
from timeoutmgr.testing.conformance.samples import HOUR, SECOND, SetClock, Track, timeout
from timeoutmgr.testing.conformance.stores.suite import Stores, StoreSuite, dispatch, pending

_MINUTE: Final = 60 * SECOND


@needs(clears_in_order=True)
class SagaCases(StoreSuite):
    """``clear_saga``, and ``store_many`` after it."""

    def test_a_clear_reaches_timeouts_that_its_consumer_stored_whatever_their_time_of_sending(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        mine, its, none = placed("a", now, 1), placed("b", now, 2), timeout("c", now, saga="s")
        later = [replace(one, created=now + _MINUTE) for one in (mine, its, none)]
        store.store_many(later)
        store.store_many([placed("d", now, 1, saga="S"), timeout("e", now)])

        assert list(clear(store, ordered(now))) == ["a"]
        assert pending(store) == ["b", "c", "d", "e"]

    def test_a_clear_reaches_what_was_stored_before_it_was_delivered(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        early = replace(placed("a", now, 2), place=Place(2, None, now - HOUR))
        late = placed("b", now, 2)
        store.store_many([replace(one, created=now + _MINUTE) for one in (early, late)])

        assert list(clear(store, ordered(now))) == ["a"]

    @pytest.mark.parametrize("place", [None, "redelivered"])
    def test_without_a_place_the_time_of_sending_decides(
        self, store: TimeoutStore, now: Micros, place: str | None
    ) -> None:
        store.store_many(
            [replace(placed("a", now, 1), created=at) for at in [now]]
            + [replace(placed("b", now, 1), created=now + 1)]
        )
        order = replace(ordered(now), place=Place(1, None, now) if place else None)

        assert list(clear(store, order)) == ["a"]

    def test_kept_timeouts_stay_and_timeouts_ahead_do_not(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        store.store_many(
            [replace(timeout(one, now, saga="s"), created=now + SECOND) for one in "abc"]
        )

        order = replace(ordered(now), kept=frozenset("ab"), ahead=frozenset("bc"))
        assert list(clear(store, order)) == ["c"]

    def test_a_clear_that_is_carried_out_does_nothing_again(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        store.store_many([placed("a", now, 1)])
        clear(store, ordered(now))
        store.store_many([placed("b", now, 1)])

        assert list(clear(store, ordered(now))) == []
        assert list(clear(store, replace(ordered(now), order_id="c2"))) == ["b"]

    def test_a_clear_of_hundreds_of_timeouts_is_carried_out_in_full(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        store.store_many([placed(f"{n}", now + n, 1) for n in range(700)])

        assert len(clear(store, ordered(now))) == 700
        assert pending(store) == []

    def test_a_delivered_message_that_was_sent_before_a_clear_is_cancelled_on_arrival(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        clear(store, ordered(now))
        sent_before, kept = placed("a", now, 2), placed("k", now, 2)
        sent_after = replace(placed("b", now, 2), created=now + 1)
        by_no_queue = timeout("c", now, saga="s")
        redelivered = replace(placed("d", now, 1), place=Place(1, None, now))

        repeats = store.store_many([sent_before, kept, sent_after, by_no_queue, redelivered])

        assert sorted((one.timeout.id, one.kind) for one in repeats) == [
            ("a", RepeatKind.CANCELLED),
            ("d", RepeatKind.CANCELLED),
        ]
        assert pending(store) == ["b", "c", "k"]
        assert store.find("a") == (TimeoutState.CANCELLED, None)
        [again] = store.store_many([sent_before])
        assert again.kind is RepeatKind.DUPLICATE

    def test_a_message_that_stood_behind_a_clear_is_stored_whenever_it_was_sent(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        clear(store, ordered(now))
        mine = replace(placed("a", now, 1), created=now - HOUR)
        delivered_later = replace(
            placed("b", now, 2), created=now - HOUR, place=Place(2, now + HOUR, now + HOUR)
        )

        assert list(store.store_many([mine, delivered_later])) == []
        assert pending(store) == ["a", "b"]

    def test_an_older_clear_that_comes_late_narrows_no_memory(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        clear(store, replace(ordered(now), order_id="c2", sent=now))
        clear(store, replace(ordered(now), order_id="c1", sent=now - HOUR))

        [repeat] = store.store_many([placed("a", now, 2)])
        assert repeat.kind is RepeatKind.CANCELLED

    @needs(settable_clock=True)
    def test_a_clear_is_forgotten_after_a_day(
        self, store: TimeoutStore, now: Micros, clock: SetClock
    ) -> None:
        clear(store, ordered(now))
        clock.at = now + REMEMBERED + 1
        store.purge()

        assert list(store.store_many([placed("a", now, 2)])) == []

    def test_a_clear_passes_by_timeouts_that_a_dispatcher_has_locked(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        store.store_many([placed("a", now - 1, 1), placed("b", now + HOUR, 1)])
        chunk = store.claim(now, 1, "o")

        with store.lock_for_dispatch(chunk.token, chunk.keys):
            assert list(clear(store, ordered(now))) == ["b"]

        assert dispatch(store, "", [timeout("a", now - 1).key]) == ["a"]

    def test_of_a_clear_and_a_concurrent_insert_one_sees_the_other(
        self, stores: Stores, now: Micros, track: Track
    ) -> None:
        rounds = max(20, self.races // 20)
        for n in range(rounds):
            store = stores(f"{stores.endpoint}.{n % 4}")
            one = replace(placed(f"t{n}", now + HOUR, 2, saga=f"s{n}"), created=now - 1)
            order = replace(ordered(now), saga_id=f"s{n}", order_id=f"c{n}")
            track.race(partial(store.store_many, [one]), partial(clear, store, order))
            assert store.find(one.id) == (TimeoutState.CANCELLED, None)

    @needs(transactions=True)
    def test_a_clear_and_its_memory_end_with_the_callers_transaction(
        self, stores: Stores, now: Micros
    ) -> None:
        store = stores()
        assert isinstance(store, ClearsInOrder)
        store.store_many([placed("a", now, 1)])

        with stores.rolled_back() as transaction:
            store.await_clears(transaction)
            undone = store.clear_saga(ordered(now), transaction=transaction)
        left = pending(store)
        with stores.committed() as transaction:
            store.await_clears(transaction)
            store.store_many([placed("b", now, 1)], transaction=transaction)
            done = store.clear_saga(ordered(now), transaction=transaction)

        assert (list(undone), left, sorted(done)) == (["a"], ["a"], ["a", "b"])


def ordered(now: Micros) -> SagaClear:
    """Return an order that consumer 1 received in the last second; it keeps ``k``."""
    place = Place(1, now - SECOND, now)
    return SagaClear(
        saga_id="s", order_id="c1", sent=now, place=place, kept=frozenset("k"), channel="test"
    )


def placed(name: str, due: Micros, receiver: int, saga: str = "s") -> Timeout:
    """Return a timeout that consumer *receiver* got in the hour before *due*."""
    made = timeout(name, due, saga=saga)
    return replace(made, place=Place(receiver, due - HOUR, due))


def clear(store: TimeoutStore, order: SagaClear) -> list[str]:
    """Carry out *order*; return the ids of the cancelled timeouts, sorted."""
    assert isinstance(store, ClearsInOrder)
    return sorted(store.clear_saga(order))
