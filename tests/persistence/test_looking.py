"""Queries of a store, and the purge of old rows."""

from __future__ import annotations

import os

import pytest
from sqlalchemy import update

from tests.persistence.conftest import Stores
from tests.persistence.explaining import rows_read
from tests.persistence.making import NOW, SECOND, dispatch, rolled_back, timeout
from timeoutmgr.contracts import (
    Key,
    MeasuresPurge,
    ReportsEndpoints,
    TimeoutFilter,
    TimeoutState,
    TimeoutStore,
)
from timeoutmgr.persistence import MemoryTimeoutStore, SqlTimeoutStore
from timeoutmgr.persistence.sql import queries
from timeoutmgr.persistence.sql.maintenance import AT_ONCE, StoreMaintenance

DAY = 86_400 * SECOND


def test_pages_cover_everything_once_in_order(store: TimeoutStore) -> None:
    store.store_many([timeout(f"{n % 7}{n:03}", NOW + n % 5) for n in range(50)])

    seen: list[Key] = []
    while page := store.list(TimeoutFilter(), limit=7, after=seen[-1] if seen else None):
        seen += [one.key for one in page]

    assert len(seen) == 50
    assert seen == sorted(set(seen))


def test_a_page_within_one_instant_reads_no_timeout_before_it(row_locking: Stores) -> None:
    store = row_locking()
    assert isinstance(store, SqlTimeoutStore)
    store.store_many([timeout(f"{n:04}", NOW) for n in range(1_000)])

    with rows_read(store.context.database.engine, "suite_") as read:
        page = store.list(TimeoutFilter(), limit=10, after=Key(NOW, "0499"))

    assert [one.id for one in page] == [f"{n:04}" for n in range(500, 510)]
    assert max(read.values()) < 100


def test_a_page_of_many_timeouts_that_wait_does_not_read_them_all(
    row_locking: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "SORTED", 50)
    store = row_locking()
    assert isinstance(store, SqlTimeoutStore)
    store.store_many([timeout(f"{n:04}", NOW + n) for n in range(1_000)])
    timeouts, database = store.context.tables.timeouts, store.context.database
    waiting = update(timeouts).where(timeouts.c.endpoint == store.endpoint)
    database.run(lambda connection: connection.execute(waiting.values(original_due=NOW - SECOND)))
    before = TimeoutFilter(due_before=NOW)

    with rows_read(database.engine, "suite_") as read:
        page = store.list(before, limit=10, after=Key(NOW + 499, "0499"))

    assert [one.id for one in page] == [f"{n:04}" for n in range(500, 510)]
    assert max(read.values()) < 200
    assert sum(map(len, store.key_pages(before, [], 10))) == 1_000


def test_filters_select_the_named_timeouts(store: TimeoutStore) -> None:
    store.store_many(
        [
            timeout("a", NOW, saga="s"),
            timeout("b", NOW + 1, destination="other"),
            timeout("c", NOW + 2, saga="s"),
        ]
    )
    expected = {
        TimeoutFilter(): "abc",
        TimeoutFilter(id="b"): "b",
        TimeoutFilter(saga_id="s"): "ac",
        TimeoutFilter(destination="other"): "b",
        TimeoutFilter(due_from=NOW + 1): "bc",
        TimeoutFilter(due_before=NOW + 1): "a",
        TimeoutFilter(due_from=NOW + 1, due_before=NOW + 2): "b",
        TimeoutFilter(saga_id="s", due_from=NOW + 1): "c",
        TimeoutFilter(id="none"): "",
    }

    found = {which: "".join(one.id for one in store.list(which)) for which in expected}
    counted = {which: store.count(which) for which in expected}

    assert found == expected
    assert counted == {which: len(names) for which, names in expected.items()}


def test_an_id_that_was_never_seen_is_not_found(store: TimeoutStore) -> None:
    assert store.find("a") is None
    assert store.key_of("a") is None


def test_key_of_follows_a_timeout_until_it_is_closed(store: TimeoutStore) -> None:
    store.store_many([timeout("a")])
    first = store.key_of("a")
    store.reschedule("a", NOW + 1)
    second = store.key_of("a")
    store.cancel("a")

    assert [first, second, store.key_of("a")] == [Key(NOW, "a"), Key(NOW + 1, "a"), None]


def test_statistics_count_and_measure_lateness(stores: Stores) -> None:
    store = stores()
    store.store_many([timeout(f"{n:03}", NOW - n) for n in range(100)])
    store.store_many([timeout("later", NOW + SECOND), timeout("never", NOW + SECOND)])
    dispatch(store, store.claim(NOW, 98, "o"))
    store.claim(NOW, 1, "o")
    store.cancel("never")

    found = store.statistics()

    assert (found.pending, found.due, found.claimed, found.oldest_due) == (3, 2, 1, NOW - 1)
    assert found.outcomes["dispatched"] == 98
    assert found.outcomes["cancelled"] == 1
    assert (found.lateness_p50, found.lateness_p99, found.lateness_max) == (50, 99, 99)


def test_an_empty_store_has_statistics(store: TimeoutStore) -> None:
    found = store.statistics()

    assert (found.pending, found.due, found.oldest_due, found.claimed) == (0, 0, None, 0)
    assert (found.lateness_p50, found.lateness_p99, found.lateness_max) == (None, None, None)


def test_tombstones_outlive_redeliveries_and_are_purged_in_the_end(stores: Stores) -> None:
    store = stores()
    store.store_many([timeout("a"), timeout("pending", NOW + 99 * DAY)])
    dispatch(store, store.claim(NOW, 1, "o"))

    stores.clock.at = NOW + 30 * DAY
    assert store.purge() == 0
    assert store.find("a") == (TimeoutState.DISPATCHED, None)
    stores.clock.at += 1
    assert store.purge() >= 2

    assert store.purge() == 0
    assert store.find("a") is None
    assert store.key_of("pending") == Key(NOW + 99 * DAY, "pending")


def test_a_purge_is_bounded(sql: Stores) -> None:
    store = sql()
    for part in range(3):
        store.store_many([timeout(f"{part}.{n}") for n in range(500)])
    dispatch(store, store.claim(NOW, 1_500, "o"))
    sql.clock.at += 31 * DAY

    removed = []
    while count := store.purge():
        removed.append(count)

    assert len(removed) > 1
    assert max(removed) <= 3_000


def test_two_processes_never_purge_the_same_rows(row_locking: Stores) -> None:
    first, second = row_locking(), row_locking()
    first.store_many([timeout(f"{n}") for n in range(700)])
    dispatch(first, first.claim(NOW, 700, "o"))
    row_locking.clock.at += 31 * DAY
    assert isinstance(first, SqlTimeoutStore)

    with rolled_back(first.context.database) as transaction:
        ours = StoreMaintenance(first.context)._purge(transaction)
        theirs = second.purge()  # it does not wait for the first purge

    # Of 700 keys, and as many rows of history, each has taken as many as go at once.
    assert (ours, theirs) == (2 * AT_ONCE, 2 * AT_ONCE)
    assert first.purge() == 2 * AT_ONCE


@pytest.mark.parametrize("name", ["tombstone", "history"])
def test_the_lag_is_the_age_of_the_oldest_row_past_its_retention(stores: Stores, name: str) -> None:
    store = stores()
    if name == "tombstone":
        store.cancel("never seen")
    else:
        store.store_many([timeout("a")])
        dispatch(store, store.claim(NOW, 1, "o"))
    _lags_until_it_is_purged(stores, store)


def test_a_process_that_is_silent_for_too_long_is_part_of_the_lag(sql: Stores) -> None:
    store = sql()
    store.heartbeat(f"silent {sql.endpoint}", {})
    _lags_until_it_is_purged(sql, store)


def _lags_until_it_is_purged(stores: Stores, store: TimeoutStore) -> None:
    assert isinstance(store, MeasuresPurge)
    stores.clock.at += 30 * DAY - 7
    assert store.purge_lag() == 0
    stores.clock.at += 7 + 3 * SECOND
    assert store.purge_lag() == 3 * SECOND
    while store.purge():
        continue
    assert store.purge_lag() == 0


def test_a_process_that_stopped_cleanly_leaves_no_heartbeat(stores: Stores) -> None:
    store = stores()
    store.heartbeat("here", {})
    store.heartbeat("stopped", {})

    store.unregister_process("stopped")
    store.unregister_process("stopped")

    assert [each.owner for each in store.processes()] == ["here"]


def test_heartbeats_are_seen_by_all(stores: Stores) -> None:
    store = stores()
    assert isinstance(store, SqlTimeoutStore | MemoryTimeoutStore)
    owner = f"owner of {stores.endpoint}"

    store.heartbeat(owner, {"poller": "starting"})
    stores.clock.at += SECOND
    store.heartbeat(owner, {"poller": "healthy"})

    [found] = [each for each in store.processes() if each.owner == owner]
    assert (found.started, found.heartbeat) == (NOW, NOW + SECOND)
    assert (found.endpoint, found.pid) == (stores.endpoint, os.getpid())
    assert found.state == {"poller": "healthy"}


def test_a_store_answers_and_has_a_clock(stores: Stores) -> None:
    store = stores()

    store.ping()

    assert store.now() == stores.clock.at
    assert store.endpoint == stores.endpoint


def test_endpoints_with_pending_timeouts_are_reported_with_their_last_heartbeat(
    sql: Stores, unique: str
) -> None:
    sales, billing, idle = (f"{unique}.{name}" for name in ("sales", "billing", "idle"))
    for name, due in ((sales, NOW + 2), (billing, NOW + 1), (sales, NOW + 3)):
        sql(endpoint=name).store_many([timeout(f"{due}", due)])
    sql(endpoint=billing).heartbeat(f"{unique}1", {})
    sql(endpoint=idle).heartbeat(f"{unique}2", {})
    assert isinstance(sql.persistence, ReportsEndpoints)

    reports = [one for one in sql.persistence.endpoints() if one.endpoint.startswith(unique)]

    found = [(one.endpoint, one.earliest, one.last_heartbeat > 0) for one in reports]
    assert found == [(billing, NOW + 1, True), (sales, NOW + 2, False)]
