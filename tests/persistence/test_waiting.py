"""Timeouts that wait for a retry slow down no claim, and keep their content."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import event, text

from tests.persistence.conftest import Stores
from tests.persistence.making import NOW, SECOND, dispatch, ids, outcomes, timeout
from tests.support.waiting import eventually
from timeoutmgr.contracts import (
    CancelResult,
    ChangeResult,
    Key,
    OutcomeKind,
    TimeoutFilter,
    TimeoutState,
    TimeoutStore,
)
from timeoutmgr.database import Database
from timeoutmgr.persistence import SqlPersistence

HOUR = 3_600 * SECOND
WAITING = 4_000
ALL = TimeoutFilter()


def put_off(store: TimeoutStore, *, until: int, limit: int = 1_000) -> None:
    """Claim all due timeouts, deliver none, and put their next attempt off to *until*."""
    while (chunk := store.claim(NOW, limit, "o")).keys:
        with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
            retries = outcomes(chunk.keys, OutcomeKind.RETRY)
            locked.close([replace(one, next_try=until) for one in retries])


def test_timeouts_that_wait_for_a_retry_do_not_add_to_the_cost_of_a_claim(sql: Stores) -> None:
    crowded, quiet = sql(), sql(endpoint=f"{sql.endpoint} quiet")
    for start in range(0, WAITING, 1_000):
        names = range(start, start + 1_000)
        crowded.store_many([timeout(f"{n:05}", NOW - HOUR + n) for n in names])
    put_off(crowded, until=NOW + HOUR)
    _settle(sql)
    for store in (crowded, quiet):
        store.store_many([timeout(f"due {n}") for n in range(5)])

    beside_many = _cost_of_a_claim(sql, sql())
    beside_none = _cost_of_a_claim(sql, sql(endpoint=f"{sql.endpoint} quiet"))

    assert beside_none.count > 0
    # The first rows may lie on both sides of the border of two pages of an index.
    assert beside_many.count <= 1.3 * beside_none.count + beside_many.borders


def test_a_timeout_that_waits_is_not_early_and_not_forgotten(stores: Stores) -> None:
    store = stores()
    store.store_many([timeout("waits"), timeout("other", NOW + 2 * SECOND)])
    put_off(store, until=NOW + SECOND)

    assert store.claim(NOW, 9, "o").next_due == NOW + SECOND
    stores.clock.at = NOW + SECOND - 1
    assert store.claim(stores.clock.at, 9, "o").keys == ()
    stores.clock.at += 1
    assert dispatch(store, store.claim(stores.clock.at, 9, "o")) == ["waits"]


def test_another_process_finds_a_timeout_for_its_next_try(stores: Stores) -> None:
    ours, theirs = stores(), stores()
    ours.store_many([timeout("waits"), timeout("later", NOW + HOUR)])
    put_off(ours, until=NOW + SECOND)
    assert theirs.claim(NOW, 9, "p").next_due == NOW + SECOND
    stores.clock.at = NOW + SECOND

    assert ids(theirs.claim(stores.clock.at, 9, "p")) == ["waits"]


def test_a_waiting_timeout_is_claimed_behind_timeouts_due_before_its_next_try(
    stores: Stores,
) -> None:
    store = stores()
    store.store_many([timeout("waits", NOW - HOUR)])
    put_off(store, until=NOW + 2 * SECOND)
    store.store_many([timeout("first", NOW + SECOND), timeout("last", NOW + 3 * SECOND)])
    stores.clock.at = NOW + 4 * SECOND

    assert ids(store.claim(stores.clock.at, 9, "o")) == ["first", "waits", "last"]


def test_a_waiting_timeout_is_shown_with_its_original_due_time(stores: Stores) -> None:
    store = stores()
    store.store_many([timeout("waits", NOW - HOUR), timeout("later", NOW + 2 * HOUR)])
    put_off(store, until=NOW + HOUR)
    expected = replace(timeout("waits", NOW - HOUR), attempts=1, next_try=NOW + HOUR)

    assert store.find("waits") == (TimeoutState.PENDING, expected)
    assert store.list(ALL) == [expected, timeout("later", NOW + 2 * HOUR)]
    assert store.list(TimeoutFilter(due_before=NOW)) == [expected]
    assert store.list(TimeoutFilter(due_from=NOW - HOUR, due_before=NOW)) == [expected]
    assert store.list(TimeoutFilter(due_from=NOW)) == [timeout("later", NOW + 2 * HOUR)]
    assert store.count(TimeoutFilter(due_before=NOW)) == 1
    assert store.count(TimeoutFilter(due_from=NOW, due_before=NOW + 9 * HOUR)) == 1
    assert store.key_of("waits") == Key(NOW + HOUR, "waits")
    assert store.next_due() == NOW + HOUR


def test_pages_cover_waiting_timeouts_once(stores: Stores) -> None:
    store = stores()
    store.store_many([timeout(f"{n}", NOW - n) for n in range(7)])
    put_off(store, until=NOW + HOUR)
    store.store_many([timeout(f"new {n}", NOW - n) for n in range(7)])
    which = TimeoutFilter(due_before=NOW + 1)

    seen: list[Key] = []
    while page := store.list(which, limit=3, after=seen[-1] if seen else None):
        seen += [one.key for one in page]

    assert len(seen) == 14
    assert seen == sorted(set(seen))


def test_a_waiting_timeout_is_overdue_all_the_same(stores: Stores) -> None:
    store = stores()
    store.store_many([timeout("waits", NOW - HOUR), timeout("later", NOW + HOUR)])
    put_off(store, until=NOW + HOUR)

    found = store.statistics()

    assert (found.pending, found.due, found.oldest_due) == (2, 1, NOW - HOUR)


def test_lateness_is_that_of_the_first_due_time(stores: Stores) -> None:
    store = stores()
    store.store_many([timeout("waits", NOW - HOUR)])
    put_off(store, until=NOW + SECOND)
    stores.clock.at = NOW + SECOND
    dispatch(store, store.claim(stores.clock.at, 9, "o"), at=stores.clock.at)

    assert store.statistics().lateness_max == HOUR + SECOND


def test_a_partial_dispatch_measures_the_lateness_of_a_waiting_timeout(stores: Stores) -> None:
    store = stores()
    store.store_many([timeout("waits", NOW - HOUR)])
    put_off(store, until=NOW + 1)
    store.store_many([timeout("given up", NOW)])
    stores.clock.at += 1
    chunk = store.claim(stores.clock.at, 9, "o")
    with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
        ends = {"waits": OutcomeKind.DISPATCHED, "given up": OutcomeKind.FAILED}
        locked.close([one for key in chunk.keys for one in outcomes([key], ends[key.id])])

    assert store.statistics().lateness_max == HOUR


def test_a_waiting_timeout_is_cancelled_and_rescheduled(stores: Stores) -> None:
    store = stores()
    store.store_many([timeout("a"), timeout("b", saga="s"), timeout("c")])
    put_off(store, until=NOW + HOUR)

    assert store.cancel("a") is CancelResult.CANCELLED
    assert store.cancel_saga("s") == ["b"]
    assert store.reschedule("c", NOW + SECOND) is ChangeResult.CHANGED
    assert store.list(ALL) == [
        replace(timeout("c", NOW + SECOND), created=NOW - SECOND, attempts=1)
    ]
    stores.clock.at = NOW + SECOND
    assert ids(store.claim(stores.clock.at, 9, "o")) == ["c"]


def test_a_second_try_keeps_the_first_due_time(stores: Stores) -> None:
    store = stores()
    store.store_many([timeout("a", NOW - HOUR)])
    put_off(store, until=NOW + 1)
    stores.clock.at += 1
    chunk = store.claim(stores.clock.at, 9, "o")
    with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
        [again] = outcomes(chunk.keys, OutcomeKind.RETRY)
        locked.close([replace(again, next_try=NOW + SECOND)])

    [found] = store.list(ALL)

    assert (found.due, found.next_try, found.attempts) == (NOW - HOUR, NOW + SECOND, 2)


def test_a_late_dispatch_does_not_move_a_cancelled_timeout(sqlite: Stores) -> None:
    store = sqlite()
    store.store_many([timeout("a")])
    chunk = store.claim(NOW, 9, "o")
    with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
        sqlite.clock.at = NOW + 61 * SECOND  # the fence has fallen
        assert store.cancel("a") is CancelResult.MAYBE_SENT
        [again] = outcomes(chunk.keys, OutcomeKind.RETRY)
        locked.close([replace(again, next_try=NOW + HOUR)])

    assert store.find("a") == (TimeoutState.CANCELLED, None)
    assert store.list(ALL) == []


def _settle(stores: Stores) -> None:
    """Remove the dead rows of the moves, as the server does by itself after a while."""
    assert isinstance(stores.persistence, SqlPersistence)
    database = stores.persistence.database
    if database.dialect.name == "postgresql":
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as one:
            # The server's own ANALYZE has a snapshot, which keeps the dead rows.
            snapshots = text(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                "AND backend_xmin IS NOT NULL AND pid <> pg_backend_pid()"
            )
            eventually(lambda: one.execute(snapshots).scalar_one() == 0, "no snapshot is in use")
            one.execute(text("VACUUM suite_timeouts"))


@dataclass
class Meter:
    """Counts the work of a database for statements."""

    count: int = 0
    borders: int = 0
    """Reads that are counted in pages: each may meet one page more."""


def _cost_of_a_claim(stores: Stores, store: TimeoutStore) -> Meter:
    """Return the cost of a process' first claims: pages, rows or steps, as the database counts."""
    assert isinstance(stores.persistence, SqlPersistence)
    with _metered(stores.persistence.database) as meter:
        first, second = store.claim(NOW, 3, "o"), store.claim(NOW, 3, "o")
    assert (len(first.keys), len(second.keys)) == (3, 2)
    return meter


@contextmanager
def _metered(database: Database) -> Iterator[Meter]:
    meter = Meter()
    counts = {"postgresql": _pages, "sqlite": _steps}.get(database.dialect.name, _rows_read)

    def note(connection: Any, _cursor: Any, sql: str, values: Any, _x: Any, many: bool) -> None:
        # Not the claims, whose dead rows are of other tests.
        is_of_claims = sql.startswith("SELECT suite_claims")
        is_read = sql.startswith("SELECT") and "FROM suite_timeouts" in sql
        if is_read and not is_of_claims and not many:
            meter.count += counts(connection.connection.driver_connection, sql, values)
            meter.borders += counts is _pages

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        yield meter
    finally:
        event.remove(database.engine, "before_cursor_execute", note)


def _pages(driver: Any, sql: str, values: Any) -> int:
    plan = driver.execute(f"EXPLAIN (ANALYZE, BUFFERS) {sql}", values).fetchall()
    found = next((line for (line,) in plan if "Buffers:" in line), "")
    return sum(int(number) for number in re.findall(r"(?:hit|read)=(\d+)", found))


def _steps(driver: sqlite3.Connection, sql: str, values: Any) -> int:
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    driver.set_progress_handler(step, 1)
    driver.execute(sql, values).fetchall()
    driver.set_progress_handler(None, 1)
    return steps


def _rows_read(driver: Any, sql: str, values: Any) -> int:
    with driver.cursor() as cursor:
        cursor.execute("FLUSH STATUS")
        cursor.execute(sql, values)
        cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
        return sum(int(count) for _name, count in cursor.fetchall())
