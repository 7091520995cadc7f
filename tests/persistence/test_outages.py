"""While the database is away a store says so, and works again when it is back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.persistence.conftest import Stores
from tests.persistence.making import NOW, SetClock, dispatch, ids, outcomes, timeout
from tests.services import mysql
from tests.services.private import PrivateServer
from timeoutmgr.contracts import TimeoutFilter, TimeoutState
from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.persistence import SqlPersistence, SqlSettings

Made = Callable[..., SqlPersistence]


@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_a_store_outlives_its_server(
    kind: str, private_server: Callable[[str], PrivateServer], persistence_of: Made
) -> None:
    server = private_server(kind)
    url = mysql.create(server.url, "ours") if kind == "mysql" else server.url
    persistence = persistence_of(url, settings=SqlSettings(clock="host"))
    persistence.install()
    store = persistence.timeouts("e", SetClock())
    store.store_many([timeout("a"), timeout("b")])
    first = store.claim(NOW, 1, "o")

    server.kill()
    for work in (
        store.ping,
        lambda: store.claim(NOW, 1, "o"),
        lambda: store.store_many([timeout("c")]),
        lambda: store.cancel("b"),
        lambda: store.count(TimeoutFilter()),
        lambda: dispatch(store, first),
    ):
        with pytest.raises(StorageUnavailable):
            work()
    server.start()

    # The life that held the first claim went with the server, so that all is free.
    assert ids(store.claim(NOW, 9, "o")) == ["a", "b"]
    assert dispatch(store, first) == ["a"]
    persistence.close()


def test_a_missing_table_is_an_outage_for_a_message(
    empty_url: str, unique: str, persistence_of: Made
) -> None:
    store = persistence_of(empty_url, prefix=f"{unique}_").timeouts("e", SetClock())

    with pytest.raises(StorageUnavailable):
        store.store_many([timeout("a")])


def test_a_dispatch_whose_commit_failed_goes_out_again(row_locking: Stores) -> None:
    store, persistence = row_locking(), row_locking.persistence
    assert isinstance(persistence, SqlPersistence)
    store.store_many([timeout("a")])
    chunk = store.claim(NOW, 1, "o")

    manager = store.lock_for_dispatch(chunk.token, chunk.keys)
    locked = manager.__enter__()
    _cut_transactions(persistence)
    with pytest.raises(StorageUnavailable):
        locked.close(outcomes(chunk.keys))
    manager.__exit__(None, None, None)

    assert store.find("a") == (TimeoutState.PENDING, timeout("a"))
    assert dispatch(store, store.claim(NOW, 1, "o")) == ["a"]


def _cut_transactions(persistence: SqlPersistence) -> None:
    with persistence.database.read() as connection:
        if persistence.database.dialect.name == "postgresql":
            connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = "
                "'idle in transaction' AND datname = current_database() "
                "AND pid <> pg_backend_pid()"
            )
            return
        numbers = connection.exec_driver_sql(
            "SELECT trx_mysql_thread_id FROM information_schema.innodb_trx "
            "JOIN information_schema.processlist ON id = trx_mysql_thread_id "
            "WHERE db = DATABASE() AND id <> CONNECTION_ID()"
        ).scalars()
        for number in numbers.all():
            connection.exec_driver_sql(f"KILL {number}")
