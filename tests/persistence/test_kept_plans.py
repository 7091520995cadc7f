"""PostgreSQL's plans of the store's statements: made for few timeouts, used on many."""

from __future__ import annotations

from contextlib import closing
from typing import Final

import pytest
from sqlalchemy import text

from tests.persistence.explaining import USES, rows_read
from tests.persistence.making import NOW, SECOND, SetClock, dispatch, timeout
from timeoutmgr.database import Database, DatabaseSettings
from timeoutmgr.persistence import SqlPersistence, SqlSettings
from timeoutmgr.persistence.sql.store import SqlTimeoutStore
from timeoutmgr.transport.sql import SqlTransport

ROWS: Final = 100_000
FEW: Final = 1
_MOST: Final = 3_000
"""Rows that a statement may read: a chunk several times over."""
_FILL: Final = (
    "INSERT INTO {p}timeouts (endpoint, due, id, destination, message_id, headers, body,"
    " content_type, content_encoding, created, version, attempts, maybe_sent)"
    " SELECT 'e', :due + n % 7, 'many ' || n, 'q', 'm', '{{}}', '', 'text/plain', 'utf-8', 0,"
    " 0, 0, 0 FROM generate_series(1, :rows) AS n",
    "INSERT INTO {p}timeout_keys (endpoint, id, due, version, state)"
    " SELECT 'e', 'many ' || n, :due + n % 7, 0, 'pending' FROM generate_series(1, :rows) AS n",
    "INSERT INTO {p}timeout_history (id, event, at, due, endpoint, destination, attempt, node)"
    " SELECT 'old ' || n, 'dispatched', :due, :due, 'e', 'q', 0, 'n'"
    " FROM generate_series(1, :rows) AS n",
)


class Store:
    """A store and a queue in one database, used on one connection."""

    def __init__(
        self, persistence: SqlPersistence, transport: SqlTransport, *, prefix: str
    ) -> None:
        self.database = persistence.database
        self.store: SqlTimeoutStore = persistence.timeouts("e", SetClock(), atomic_dispatch=True)
        self._apart = persistence.timeouts("e", SetClock())
        rows = transport.message_rows()
        assert rows is not None
        self._move = self.store.mover(rows, lambda _destination: True)
        self._uses = 0
        self._prefix = prefix

    def use(self, count: int) -> None:
        """Store, dispatch, move, cancel and reschedule timeouts, *count* at a time."""
        store, self._uses = self.store, self._uses + 1
        names = [f"own {self._uses} {n}" for n in range(4 * count)]
        store.store_many([timeout(one, NOW - SECOND + n % 3) for n, one in enumerate(names)])
        store.store_many([timeout(one, NOW - SECOND + n % 3) for n, one in enumerate(names)])
        assert dispatch(self._apart, self._apart.claim(NOW, count, "o"))
        chunk = store.claim(NOW, count, "o")
        with self.database.begin() as transaction:
            assert self._move is not None
            assert self._move(chunk.token, chunk.keys, NOW, transaction)[1]
        chunk = store.claim(NOW, count, "o")
        with self.database.begin() as transaction:
            with store.lock_for_dispatch(
                chunk.token, chunk.keys, transaction=transaction
            ) as locked:
                assert locked.timeouts
            store.claim(NOW, 1, "other", transaction=transaction)
        self._apart.release(chunk.token)
        while (chunk := self._apart.claim(NOW - SECOND + 3, 4 * count, "o")).keys:
            dispatch(self._apart, chunk)
        store.store_many([timeout(f"later {self._uses}", NOW + SECOND)])
        store.reschedule(f"later {self._uses}", NOW + 2 * SECOND)
        store.cancel(f"later {self._uses}")

    def fill(self) -> None:
        with self.database.begin() as connection:
            for statement in _FILL:
                where = {"due": NOW - SECOND // 2, "rows": ROWS}
                connection.execute(text(statement.format(p=self._prefix)), where)

    def leave_alone(self, *, analysed: bool) -> None:
        """Empty the tables of their dead rows, and have no process analyse them from now on."""
        at_once = self.database.engine.execution_options(isolation_level="AUTOCOMMIT")
        with at_once.connect() as connection:
            for name in ("timeouts_all", "timeout_keys", "timeout_history", "claims"):
                table = self._prefix + name
                connection.execute(text(f"ALTER TABLE {table} SET (autovacuum_enabled = off)"))
                if analysed:
                    connection.execute(text(f"VACUUM ANALYZE {table}"))


@pytest.mark.behaviour(124)
@pytest.mark.parametrize("analysed", [True, False])
def test_plans_for_few_timeouts_read_little_of_many(
    postgres_url: str, unique: str, analysed: bool
) -> None:
    database, prefix = Database(postgres_url, DatabaseSettings(pool_size=1)), f"{unique}_"
    persistence = SqlPersistence(database, prefix=prefix, settings=SqlSettings(clock="host"))
    with closing(SqlTransport(database, prefix=prefix)) as transport, closing(persistence):
        persistence.install()
        transport.install()
        transport.session().create_queues(["billing", "q"])
        made = Store(persistence, transport, prefix=prefix)
        made.use(FEW)
        made.leave_alone(analysed=analysed)
        for _ in range(USES):
            made.use(FEW)
        made.fill()

        with rows_read(database.engine, prefix) as read:
            made.use(100)

    assert {statement: rows for statement, rows in read.items() if rows > _MOST} == {}
