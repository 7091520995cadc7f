"""The bytes of a dispatched timeout in PostgreSQL: tombstone, history, and their indexes."""

from __future__ import annotations

import socket
from collections.abc import Callable
from uuid import NAMESPACE_URL, uuid5

import pytest
from sqlalchemy import text

from tests.persistence.making import NOW, SetClock, dispatch, timeout
from tests.services.private import PrivateServer
from timeoutmgr.contracts import TimeoutStore
from timeoutmgr.database import Database
from timeoutmgr.persistence import SqlPersistence, SqlSettings

KEPT = 400
"""Bytes that a dispatched timeout keeps at most, if endpoint, queue and host have short names."""
PREFIX = "kept_"
TURNS, AT_ONCE, CHUNK = 12, 1_000, 100


def test_a_dispatched_timeout_keeps_few_bytes(
    private_server: Callable[[str], PrivateServer],
    persistence_of: Callable[..., SqlPersistence],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "node")  # a part of each row of history
    settings = SqlSettings(clock="host")

    # On a server that is shared, transactions of others keep dead rows, and add bytes.
    url = private_server("postgres").url
    kept = _kept(persistence_of(url, prefix=PREFIX, settings=settings))

    assert 250 < kept <= KEPT


def _kept(persistence: SqlPersistence) -> float:
    """Return the bytes that each of many dispatched timeouts keeps."""
    persistence.install()
    store = persistence.timeouts("sales", SetClock())
    for batch in range(TURNS):
        _store_and_dispatch(store, batch)
        _vacuum(persistence.database)  # as the server does it by itself
    return _bytes(persistence.database) / (TURNS * AT_ONCE)


def _store_and_dispatch(store: TimeoutStore, batch: int) -> None:
    names = [str(uuid5(NAMESPACE_URL, f"{batch} {number}")) for number in range(AT_ONCE)]
    store.store_many([timeout(name) for name in names])
    for number in range(AT_ONCE // CHUNK):
        at = NOW + batch * AT_ONCE + number
        assert len(dispatch(store, store.claim(NOW, CHUNK, "o"), at)) == CHUNK


def _vacuum(database: Database) -> None:
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(f"VACUUM {PREFIX}timeout_keys, {PREFIX}timeout_history"))


def _bytes(database: Database) -> int:
    """Return the bytes of the tables and indexes that keep dispatched timeouts."""
    kept = (
        f"SELECT sum(pg_relation_size(oid) + pg_indexes_size(oid)) FROM pg_class WHERE relname IN "
        f"('{PREFIX}timeout_keys', '{PREFIX}timeout_history')"
    )
    with database.read() as connection:
        return int(connection.execute(text(kept)).scalar_one())
