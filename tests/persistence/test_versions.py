"""The version of a timeout counts how often it was moved; key and row agree about it."""

from __future__ import annotations

from sqlalchemy import select

from tests.persistence.conftest import Stores
from tests.persistence.making import NOW, timeout
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.persistence.sql.tables import tables


def test_every_reschedule_raises_the_version(sql: Stores) -> None:
    persistence, kept = sql.persistence, tables(None, "suite_")
    assert isinstance(persistence, SqlPersistence)
    store = sql()
    store.store_many([timeout("a")])

    store.reschedule("a", NOW + 5)
    store.reschedule("a", NOW + 3)

    with persistence.database.read() as connection:
        versions = [
            connection.execute(
                select(table.c.version).where(table.c.endpoint == sql.endpoint, table.c.id == "a")
            ).scalar_one()
            for table in (kept.keys, kept.timeouts)
        ]
    assert versions == [2, 2]
