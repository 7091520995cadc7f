"""Storing inside a caller's transaction, where nothing was ever stored before."""

from __future__ import annotations

from tests.persistence.conftest import Stores
from tests.persistence.making import rolled_back, timeout
from timeoutmgr.contracts import TimeoutFilter
from timeoutmgr.persistence import SqlPersistence


def test_new_timeouts_come_and_go_with_the_callers_transaction(sql: Stores) -> None:
    store, persistence = sql(), sql.persistence
    assert isinstance(persistence, SqlPersistence)

    with rolled_back(persistence.database) as transaction:
        store.store_many([timeout("a"), timeout("b")], transaction=transaction)
    with persistence.database.begin() as transaction:
        store.store_many([timeout("b"), timeout("c")], transaction=transaction)

    assert [one.id for one in store.list(TimeoutFilter())] == ["b", "c"]
