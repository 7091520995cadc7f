"""A fetch reads by the key, in a table of any size, also before the table has statistics."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection

from tests.persistence.delayed.conftest import SECOND, Shelf
from tests.persistence.making import timeout
from timeoutmgr.persistence import SqlDelayedMessageStore


@pytest.mark.behaviour(124)
def test_fetching_reads_along_the_key(shelf: Shelf, store: SqlDelayedMessageStore) -> None:
    now = shelf.now()
    for start in range(0, 6000, 1000):
        numbers = range(start, start + 1000)
        store.store_many([timeout(f"t{n}", now + 3600 * SECOND + n) for n in numbers])

    with shelf.database.begin() as connection:
        store.fetch_due(shelf.clock.now(), 1, transaction=connection)
        plan = _plan(connection, store)

    name = shelf.database.dialect.name
    if name == "sqlite":
        assert "USING PRIMARY KEY (next_try<?)" in plan
        assert "TEMP B-TREE" not in plan
    elif name == "postgresql":
        assert "Index Scan" in plan
        assert "Index Cond: " in plan
        assert "Filter" not in plan
        assert "Sort" not in plan
    else:
        assert "PRIMARY" in plan
        assert "filesort" not in plan


def _plan(connection: Connection, store: SqlDelayedMessageStore) -> str:
    explain = "EXPLAIN QUERY PLAN " if connection.dialect.name == "sqlite" else "EXPLAIN "
    statement = store._rows._due.params(at=1, limit=200, from_due=1, from_id="a").compile(
        dialect=connection.dialect, compile_kwargs={"literal_binds": True}
    )
    found = connection.exec_driver_sql(explain + str(statement))
    return "\n".join(str(row) for row in found)
