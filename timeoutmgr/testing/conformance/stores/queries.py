"""Queries return the truth and change nothing; a purge removes only old rows."""

# ruff: noqa: D102 - the name of a case says what it checks

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from timeoutmgr.contracts import (
    CancelResult,
    Count,
    Insight,
    Key,
    Persistence,
    TimeoutFilter,
    TimeoutState,
    TimeoutStore,
)
from timeoutmgr.contracts.reports import COUNTED
from timeoutmgr.message.instants import Micros, duration_micros
from timeoutmgr.testing.conformance.plugin import needs
from timeoutmgr.testing.conformance.samples import HOUR, SECOND, SetClock, timeout
from timeoutmgr.testing.conformance.stores.suite import ALL, Stores, StoreSuite, drain

FILTERS = {
    TimeoutFilter(): "abcd",
    TimeoutFilter(id="b"): "b",
    TimeoutFilter(id="none"): "",
    TimeoutFilter(saga_id="s"): "ac",
    TimeoutFilter(destination="other"): "b",
    TimeoutFilter(destination="billing", saga_id="s"): "ac",
    TimeoutFilter(message_id="message b"): "b",
    TimeoutFilter(due_from=2): "bcd",
    TimeoutFilter(due_before=2): "a",
    TimeoutFilter(due_from=2, due_before=3): "b",
    TimeoutFilter(saga_id="s", due_from=2, due_before=4): "c",
    TimeoutFilter(tried_from=2, due_before=4): "bc",
    TimeoutFilter(tried_from=2, tried_before=3): "b",
}
_FOUR = [
    timeout("a", 1, saga="s"),
    timeout("b", 2, destination="other"),
    timeout("c", 3, saga="s"),
    timeout("d", 4, saga="S"),
]


class QueryCases(StoreSuite):
    """``find``, ``key_of``, ``list``, ``count``, ``statistics``, heartbeats, ``purge``."""

    @pytest.mark.parametrize("which", FILTERS, ids=range(len(FILTERS)))
    def test_a_filter_selects_the_matching_timeouts(
        self, store: TimeoutStore, which: TimeoutFilter
    ) -> None:
        store.store_many(_FOUR)

        assert "".join(one.id for one in store.list(which)) == FILTERS[which]
        assert store.count(which) == len(FILTERS[which])
        if isinstance(store, Insight):  # its bounds are more than few rows
            assert store.count_in_bounds(which) == Count(len(FILTERS[which]))
            page = store.list_in_bounds(which)
            assert "".join(one.id for one in page.timeouts) == FILTERS[which]
            assert page.searched_to is None

    def test_a_bounded_count_is_exact_or_a_lower_bound(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        for start in range(0, COUNTED + 1, 1_000):
            end = min(start + 1_000, COUNTED + 1)
            store.store_many([timeout(f"{n:06}", now + HOUR + n) for n in range(start, end)])
        if not isinstance(store, Insight):
            return

        found = store.count_in_bounds(ALL)
        fewer = store.count_in_bounds(TimeoutFilter(due_from=now + HOUR + 1))

        assert found in (Count(COUNTED + 1), Count(COUNTED, exact=False))
        assert fewer == Count(COUNTED) or (fewer.number <= COUNTED and not fewer.exact)

    @pytest.mark.parametrize("size", [1, 7, 50, 51])
    def test_pages_have_everything_once_and_in_order(self, store: TimeoutStore, size: int) -> None:
        store.store_many([timeout(f"{n % 7}{n:03}", n % 5) for n in range(50)])

        seen: list[Key] = []
        while page := store.list(ALL, limit=size, after=seen[-1] if seen else None):
            assert len(page) <= size
            seen += [one.key for one in page]

        assert len(seen) == 50
        assert seen == sorted(set(seen), key=lambda key: (key.due, key.id.encode()))

    def test_find_and_key_of_return_none_for_an_unknown_id(self, store: TimeoutStore) -> None:
        assert store.find("a") is None
        assert store.key_of("a") is None

    def test_a_key_follows_its_timeout_until_the_end(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        store.store_many([timeout("a", now)])
        keys = [store.key_of("a")]
        store.reschedule("a", now + HOUR)
        keys.append(store.key_of("a"))
        store.cancel("a")
        keys.append(store.key_of("a"))

        assert keys == [Key(now, "a"), Key(now + HOUR, "a"), None]

    def test_an_empty_store_has_statistics(self, store: TimeoutStore) -> None:
        found = store.statistics()

        assert (found.pending, found.due, found.oldest_due, found.claimed) == (0, 0, None, 0)
        assert (found.lateness_p50, found.lateness_p99, found.lateness_max) == (None, None, None)

    @needs(settable_clock=True)
    def test_statistics_count_rows_and_measure_lateness(
        self, store: TimeoutStore, clock: SetClock
    ) -> None:
        now = clock.at
        store.store_many([timeout(f"{n:03}", now - n) for n in range(1, 101)])
        drain(store)
        store.store_many([timeout("due", now - 7), timeout("later", now + HOUR)])
        store.claim(now, 1, "o")

        found = store.statistics()

        assert (found.pending, found.due, found.claimed, found.oldest_due) == (2, 1, 1, now - 7)
        assert found.outcomes["dispatched"] == 100
        assert (found.lateness_p50, found.lateness_p99, found.lateness_max) == (50, 99, 100)

    @needs(settable_clock=True)
    def test_an_id_is_remembered_for_its_time_and_then_forgotten(
        self, store: TimeoutStore, clock: SetClock
    ) -> None:
        store.store_many([timeout("a", clock.at), replace(timeout("kept", 2**60), created=0)])
        drain(store)
        store.cancel("early")

        clock.at += duration_micros(self.tombstone_retention)
        assert store.purge() == 0
        assert store.find("a") == (TimeoutState.DISPATCHED, None)
        assert store.cancel("early") is CancelResult.WILL_BE_CANCELLED
        clock.at += 1
        while store.purge():
            continue

        assert store.find("a") is None
        assert store.key_of("kept") == Key(2**60, "kept")

    @needs(settable_clock=True)
    def test_a_process_shows_its_first_and_its_last_heartbeat(
        self, stores: Stores, store: TimeoutStore, clock: SetClock
    ) -> None:
        started, owner = clock.at, f"owner of {stores.endpoint}"
        store.heartbeat(owner, {"poller": "starting"})
        clock.at += SECOND
        store.heartbeat(owner, {"poller": "healthy"})

        (found,) = store.processes()

        assert (found.owner, found.endpoint) == (owner, stores.endpoint)
        assert (found.started, found.heartbeat) == (started, started + SECOND)
        assert found.state == {"poller": "healthy"}

    def test_unregister_process_removes_the_heartbeat(
        self, stores: Stores, store: TimeoutStore
    ) -> None:
        stays, goes = (f"{stores.endpoint} {what}" for what in ("stays", "goes"))
        store.heartbeat(stays, {})
        store.heartbeat(goes, {})

        store.unregister_process(goes)
        store.unregister_process(goes)
        store.unregister_process("never came")

        assert [each.owner for each in store.processes()] == [stays]

    def test_the_store_answers_a_ping_and_its_clock_never_goes_back(
        self, store: TimeoutStore
    ) -> None:
        store.ping()

        readings = [store.now() for _ in range(20)]

        assert readings == sorted(readings)

    def test_the_store_knows_its_endpoint(self, stores: Stores, store: TimeoutStore) -> None:
        assert store.endpoint == stores.endpoint

    def test_the_capabilities_are_those_of_the_suite(self, persistence: Persistence) -> None:
        """The facts of a class decide which cases are run, so they must be true."""
        assert persistence.capabilities.durable is self.durable
        assert persistence.capabilities.row_locks is self.row_locks
        assert (persistence.database is not None) is self.transactions
        assert persistence.capabilities.name

    def test_a_second_install_keeps_stored_timeouts(
        self, persistence: Persistence, store: TimeoutStore, now: Micros
    ) -> None:
        store.store_many([timeout("a", now)])

        persistence.install()
        persistence.check()

        assert store.count(ALL) == 1
        assert isinstance(persistence.ddl(), str)

    @needs(durable=True)
    def test_another_persistence_finds_stored_timeouts(
        self, make_persistence: Callable[[], Persistence], stores: Stores, now: Micros
    ) -> None:
        stores().store_many([timeout("a", now)])
        other = make_persistence()

        found = other.timeouts(stores.endpoint, stores.clock).find("a")
        other.close()
        other.close()

        assert found == (TimeoutState.PENDING, timeout("a", now))
