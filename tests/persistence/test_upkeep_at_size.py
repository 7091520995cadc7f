"""Beside many kept rows, a purge and the audit read few of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from sqlalchemy import Table, insert, text

from tests.persistence.conftest import Stores
from tests.persistence.explaining import rows_read, statements
from tests.persistence.making import NOW, SECOND
from timeoutmgr.contracts import CancelResult
from timeoutmgr.contracts.bulk_runs import BulkState
from timeoutmgr.persistence.sql import audit, bulk_runs
from timeoutmgr.persistence.sql.load_counts import MOST_DESTINATIONS
from timeoutmgr.persistence.sql.store import SqlTimeoutStore

ROWS = 3_000
FEW = ROWS // 3
MINUTE = 60 * SECOND


@pytest.fixture
def store(row_locking: Stores) -> SqlTimeoutStore:
    """A store in PostgreSQL or MariaDB, which tell how many rows a statement reads."""
    made = row_locking()
    assert isinstance(made, SqlTimeoutStore)
    return made


def fill(store: SqlTimeoutStore, table: Table, rows: list[dict[str, Any]]) -> None:
    database = store.context.database
    database.run(lambda connection: connection.execute(insert(table), rows))
    analyze = "ANALYZE" if database.dialect.name == "postgresql" else "ANALYZE TABLE"
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(f"{analyze} {table.name}"))


def most_read(read: dict[str, int], table: Table) -> int:
    return max(rows for statement, rows in read.items() if table.name in statement)


def test_a_purge_reads_no_keys_of_a_bulk_run_that_keeps_them(
    store: SqlTimeoutStore, unique: str
) -> None:
    tables, endpoint = store.context.tables, store.endpoint
    run = {"run_id": unique, "kind": bulk_runs.KIND, "endpoint": endpoint, "parameters": "{}"}
    kept = run | {"state": BulkState.PLANNED.value, "created": NOW, "ended": None}
    over = run | {"state": BulkState.COMPLETED.value, "created": 0, "ended": 1}
    fill(store, tables.runs, [kept, *(over | {"run_id": f"{unique}{n}"} for n in range(150))])
    key = {"run_id": unique, "no": 0, "due": NOW, "endpoint": endpoint, "version": 0}
    fill(store, tables.run_keys, [key | {"id": f"{number}"} for number in range(ROWS)])

    with rows_read(store.context.database.engine, "suite_") as read:
        store.purge()

    assert most_read(read, tables.run_keys) < FEW


def test_a_purge_and_its_lag_read_few_rows_that_stay(store: SqlTimeoutStore) -> None:
    tables, endpoint = store.context.tables, store.endpoint
    key = {"endpoint": endpoint, "due": NOW, "version": 0}
    pending = key | {"state": "pending", "closed_at": None}
    sent = key | {"state": "dispatched", "closed_at": NOW}
    keys = [(sent if number % 2 else pending) | {"id": f"{number}"} for number in range(ROWS)]
    fill(store, tables.keys, keys)
    tile = {"endpoint": endpoint, "width": MINUTE, "count": 1, "as_of": NOW}
    names = ["", *(f"queue {number}" for number in range(MOST_DESTINATIONS))]
    tiles = [tile | {"bucket": number * MINUTE} for number in range(ROWS // len(names))]
    fill(store, tables.load, [each | {"destination": name} for each in tiles for name in names])

    with rows_read(store.context.database.engine, "suite_") as read:
        assert store.purge_lag() == 0
        assert store.purge() == 0

    assert max(most_read(read, tables.keys), most_read(read, tables.load)) < FEW


def fill_audit(store: SqlTimeoutStore, rows: Iterable[dict[str, Any]]) -> None:
    row: dict[str, Any] = {"endpoint": store.endpoint, "actor": "ann", "channel": "cli"}
    row |= {"action": "cancel", "selection": "{}", "dry_run": 0, "outcome": "done"}
    row |= {"previous_hash": "", "hash": ""}
    fill(store, store.context.tables.audit, [row | each for each in rows])


@pytest.fixture
def audited(store: SqlTimeoutStore) -> SqlTimeoutStore:
    """The store with ROWS rows of the audit."""
    places = ((n % 2, n // 2, NOW - n) for n in range(ROWS))
    fill_audit(store, ({"chain": f"{a}", "number": b, "at": at} for a, b, at in places))
    return store


def test_the_first_change_of_a_process_reads_few_rows_of_the_audit(
    audited: SqlTimeoutStore,
) -> None:
    with rows_read(audited.context.database.engine, "suite_") as read:
        assert audited.cancel("unknown") is CancelResult.WILL_BE_CANCELLED

    assert most_read(read, audited.context.tables.audit) < FEW


def test_the_audit_of_a_run_reads_few_rows(audited: SqlTimeoutStore, unique: str) -> None:
    fill_audit(audited, [{"chain": "of the run", "number": 0, "at": NOW - ROWS, "run_id": unique}])

    with rows_read(audited.context.database.engine, "suite_") as read:
        assert [row.run_id for row in audited.audit(run_id=unique)] == [unique]

    assert most_read(read, audited.context.tables.audit) < FEW


def test_a_check_of_the_audit_reads_each_row_once(
    audited: SqlTimeoutStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "_PAGE", ROWS // 10)

    with rows_read(audited.context.database.engine, "suite_") as read:
        assert audited.verify_audit({}).rows == ROWS

    assert most_read(read, audited.context.tables.audit) < FEW


def test_a_check_of_many_chains_reads_the_audit_twice(store: SqlTimeoutStore) -> None:
    first: dict[str, Any] = {"number": 0, "at": NOW}
    chains = ({"chain": f"{n}", "hash": f"{n}", "previous_hash": f"{n + 1}"} for n in range(ROWS))
    fill_audit(store, (first | each for each in chains))

    with statements(store.context.database.engine) as seen:
        faults = store.verify_audit({}).faults

    assert sum("was edited" in fault for fault in faults) == ROWS  # these hashes are made up
    assert len(faults) == ROWS + 1, "the last chain begins behind a row that is not there"
    assert sum(store.context.tables.audit.name in statement for statement in seen) == 2
