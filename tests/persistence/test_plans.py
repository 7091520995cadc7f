"""At size, every statement of the hot paths goes by a key."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import event, text

from tests.persistence.conftest import Stores
from tests.persistence.making import NOW, SetClock, dispatch, rolled_back, timeout
from timeoutmgr.contracts import Key, TimeoutFilter
from timeoutmgr.database import Database
from timeoutmgr.persistence import SqlPersistence, SqlSettings
from timeoutmgr.persistence.sql.store import SqlTimeoutStore
from timeoutmgr.transport.sql import SqlTransport

ROWS = 50_000
_FEW_PAGES = 50
_BIG = ("suite_timeouts", "suite_timeout_keys", "suite_timeout_history")


@pytest.mark.behaviour(124)
def test_hot_statements_read_by_key(sql: Stores) -> None:
    store, persistence = sql(), sql.persistence
    assert isinstance(persistence, SqlPersistence)
    database = persistence.database
    for at in range(0, ROWS, 1_000):
        store.store_many([timeout(f"{n:06}", NOW + n, saga=f"{n}") for n in range(at, at + 1_000)])
    sql.clock.at = NOW + ROWS // 2
    _analyze(database)
    ran: list[tuple[str, Any]] = []

    def note(_c: Any, _u: Any, statement: str, parameters: Any, _x: Any, many: bool) -> None:
        ran.append((statement, parameters[0] if many else parameters))

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        store.claim(sql.clock.at, 100, "other")
        dispatch(store, store.claim(sql.clock.at, 100, "o"), at=sql.clock.at)
        store.claim(0, 100, "o")
        store.store_many([timeout("new"), timeout("049999")])
        store.cancel("040000")
        store.cancel("never seen")
        store.reschedule("040001", NOW)
        store.cancel_saga("40002")
        store.find("040003")
        store.key_of("040003")
        store.list(TimeoutFilter(), limit=10, after=Key(NOW + 30_000, "x"))
        store.list(TimeoutFilter(id="040003"), limit=10)
        store.count(TimeoutFilter(id="never seen"))
        store.next_due()
        store.purge()
    finally:
        event.remove(database.engine, "before_cursor_execute", note)

    scans = [statement for statement, values in ran if _scans(database, statement, values)]
    assert scans == []
    assert len(ran) > 30


@pytest.mark.behaviour(124)
def test_a_saga_and_an_id_are_looked_up_by_index(sql: Stores) -> None:
    store, persistence = sql(), sql.persistence
    assert isinstance(persistence, SqlPersistence)
    database = persistence.database
    for at in range(0, 5_000, 1_000):
        store.store_many([timeout(f"{n:06}", NOW + n) for n in range(at, at + 1_000)])
    store.store_many([timeout("of a saga", NOW, saga="s")])
    _analyze(database)
    ran: list[tuple[str, Any]] = []

    def note(_c: Any, _u: Any, statement: str, parameters: Any, *_: Any) -> None:
        ran.append((statement, parameters))

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        assert store.count(TimeoutFilter(saga_id="s")) == 1
        assert store.count(TimeoutFilter(id="of a saga")) == 1
    finally:
        event.remove(database.engine, "before_cursor_execute", note)

    of_saga, of_id = (_plan(database, *one) for one in ran if "count" in one[0])
    assert "saga_id_endpoint_idx" in of_saga or "suite_timeouts_saga" in of_saga, of_saga
    key = {
        "sqlite": "SEARCH suite_timeouts USING PRIMARY KEY (endpoint=? AND due=? AND id=?)",
        "postgresql": "_pkey on suite_timeouts_",
    }.get(database.dialect.name, "'key': 'PRIMARY'")
    assert key in of_id, of_id


def test_sqlite_goes_by_both_ends_of_an_interval_and_not_by_its_instants(
    sqlite_url: str, persistence_of: Callable[..., SqlPersistence]
) -> None:
    # All are due at one instant: by that alone each statement would read them all.
    persistence = persistence_of(sqlite_url)
    persistence.install()
    database, store = persistence.database, persistence.timeouts("e", SetClock())
    store.store_many([timeout(f"{n:03}", NOW) for n in range(400)])
    ran: list[tuple[str, Any]] = []

    def note(_c: Any, _u: Any, statement: str, parameters: Any, _x: Any, many: bool) -> None:
        ran.append((statement, parameters[0] if many else parameters))

    first, _second = store.claim(NOW, 100, "o"), store.claim(NOW, 100, "o")
    store.notify_stored(NOW)  # all gaps are looked at again
    event.listen(database.engine, "before_cursor_execute", note)
    try:
        store.claim(NOW, 100, "o")
        dispatch(store, first)
    finally:
        event.remove(database.engine, "before_cursor_execute", note)

    within = [
        one
        for one in ran
        if ">= (?, ?)" in one[0] and ("< (?, ?)" in one[0] or "<= (?, ?)" in one[0])
    ]
    assert {statement.split()[0] for statement, _ in within} == {"SELECT", "DELETE"}
    for statement, values in within:
        assert "(due,id)>(?,?) AND (due,id)<(?,?)" in _plan(database, statement, values), statement
    assert any("< (?, ?)" in statement for statement, _ in within)


def test_at_one_instant_postgresql_reads_no_further_than_a_chunk(
    postgres_url: str, unique: str, persistence_of: Callable[..., SqlPersistence]
) -> None:
    # Twenty thousand of one due time fill more than a hundred pages of the index.
    settings = SqlSettings(clock="host")
    persistence = persistence_of(postgres_url, prefix=f"{unique}_", settings=settings)
    persistence.install()
    database, store = persistence.database, persistence.timeouts("e", SetClock())
    for at in range(0, 20_000, 1_000):
        store.store_many([timeout(f"{n:05}", NOW) for n in range(at, at + 1_000)])
    database.run(lambda one: one.execute(text(f"ANALYZE {unique}_timeouts, {unique}_timeout_keys")))
    ran: list[tuple[str, Any]] = []

    def note(_c: Any, _u: Any, statement: str, parameters: Any, _x: Any, _many: bool) -> None:
        if "FOR UPDATE" in statement or "WITH ORDINALITY" in statement:
            ran.append((statement, parameters))

    first, _second, _third = (store.claim(NOW, 100, "o") for _ in range(3))
    store.notify_stored(NOW)  # all gaps are looked at again
    event.listen(database.engine, "before_cursor_execute", note)
    try:
        store.claim(NOW, 100, "o")
        with store.lock_for_dispatch(first.token, first.keys) as locked:
            found = len(locked.timeouts)
    finally:
        event.remove(database.engine, "before_cursor_execute", note)

    assert (found, len(ran)) == (100, 2)
    pages = [_pages(database, one.partition(" FOR UPDATE")[0], values) for one, values in ran]
    assert max(pages) < 250, pages  # two for each row, and on the way there


def test_moving_reads_no_further_than_a_chunk(
    postgres_url: str, unique: str, persistence_of: Callable[..., SqlPersistence]
) -> None:
    persistence = persistence_of(
        postgres_url, prefix=f"{unique}_", settings=SqlSettings(clock="host")
    )
    persistence.install()
    database, store = persistence.database, persistence.timeouts("e", SetClock())
    assert isinstance(store, SqlTimeoutStore)
    for at in range(0, 20_000, 1_000):
        store.store_many([timeout(f"{n:05}", NOW) for n in range(at, at + 1_000)])
    with closing(SqlTransport(database, prefix=f"{unique}_")) as transport:
        transport.install()
        transport.session().create_queues(["billing"])
        rows = transport.message_rows()
        assert rows is not None
        move = store.mover(rows, lambda name: True)
    assert move is not None
    _analyze_all(database, unique)
    chunk = store.claim(NOW, 100, "o")
    ran: list[tuple[str, Any]] = []

    def note(_c: Any, _u: Any, statement: str, parameters: Any, _x: Any, _many: bool) -> None:
        if "timeouts" in statement:
            ran.append((statement, parameters))

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        with rolled_back(database) as transaction:
            assert len(move(chunk.token, chunk.keys, NOW, transaction)[1]) == 100
    finally:
        event.remove(database.engine, "before_cursor_execute", note)

    looked, moved = (_pages(database, one.partition(" FOR UPDATE")[0], v) for one, v in ran)
    assert looked < 250, looked
    # Of each row: its page, four of the indexes of keys and of history, that of its message.
    assert moved < 2_500, moved


def _analyze_all(database: Database, prefix: str) -> None:
    names = ("timeouts", "timeout_keys", "timeout_history", "queues", "queue_messages")
    tables = ", ".join(f"{prefix}_{name}" for name in names)
    database.run(lambda one: one.execute(text(f"ANALYZE {tables}")))


def _pages(database: Database, statement: str, values: Any) -> int:
    """Return how many pages *statement* reads; its transaction is rolled back."""
    with rolled_back(database) as connection:
        connection.exec_driver_sql("SET LOCAL enable_sort = off")
        plan = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, BUFFERS) {statement}", values)
        lines = [str(line) for line in plan.scalars()]
    found = next(line for line in lines if "Buffers:" in line)
    return sum(int(number) for number in re.findall(r"(?:hit|read)=(\d+)", found))


def _plan(database: Database, statement: str, values: Any) -> str:
    words = "EXPLAIN QUERY PLAN " if database.is_sqlite else "EXPLAIN "
    with database.read() as connection:
        plan = connection.exec_driver_sql(words + statement, values).mappings().all()
    return "\n".join(str(dict(row)) for row in plan)


def _analyze(database: Database) -> None:
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if database.is_sqlite:
            return  # plans must be right without
        word = "ANALYZE TABLE" if database.dialect.name != "postgresql" else "ANALYZE"
        for table in _BIG:
            connection.execute(text(f"{word} {table}"))


def _scans(database: Database, statement: str, values: Any) -> bool:
    if not statement.startswith(("SELECT", "UPDATE", "DELETE")):
        return False
    if not any(table in statement for table in _BIG):
        return False
    words = "EXPLAIN QUERY PLAN " if database.is_sqlite else "EXPLAIN "
    with database.read() as connection:
        plan = connection.exec_driver_sql(words + statement, values).mappings().all()
    if database.is_sqlite:
        lines = [row["detail"] for row in plan]
        return any(line.startswith("SCAN suite_timeout") for line in lines)
    if database.dialect.name == "postgresql":
        return any(
            f"Seq Scan on {table}" in row["QUERY PLAN"]
            # A partition of a page or two is best read so.
            and float(row["QUERY PLAN"].partition("..")[2].partition(" ")[0]) > _FEW_PAGES
            for row in plan
            for table in _BIG
        )
    return any(
        row["type"] == "ALL" and str(row["table"]).startswith("suite_timeout") for row in plan
    )


@pytest.mark.behaviour(124)
def test_before_the_first_statistics_a_claim_reads_in_order(
    postgres_url: str, unique: str, persistence_of: Callable[..., SqlPersistence]
) -> None:
    settings = SqlSettings(clock="host")
    persistence = persistence_of(postgres_url, prefix=f"{unique}_", settings=settings)
    persistence.install()
    store = persistence.timeouts("e", SetClock())
    for at in range(0, 5_000, 1_000):
        store.store_many([timeout(f"{n:06}", NOW) for n in range(at, at + 1_000)])
    engine, ran = persistence.database.engine, list[tuple[str, Any]]()

    def note(_c: Any, _u: Any, statement: str, parameters: Any, *_: Any) -> None:
        ran.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", note)
    try:
        store.claim(NOW, 100, "o")
        dispatch(store, store.claim(NOW, 100, "o"))
    finally:
        event.remove(engine, "before_cursor_execute", note)

    ordered = [(sql, values) for sql, values in ran if "LIMIT" in sql and "ORDER BY" in sql]
    assert len(ordered) >= 2
    with persistence.database.read() as connection:
        assert "set_config" in ran[0][0]
        connection.exec_driver_sql(*ran[0])
        for sql, values in ordered:
            plan = connection.exec_driver_sql(f"EXPLAIN {sql}", values).scalars().all()
            assert not any("Sort" in line for line in plan), plan
