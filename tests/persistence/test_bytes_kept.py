"""The bytes of a dispatched timeout in PostgreSQL: tombstone, history, and their indexes."""

from __future__ import annotations

import socket
from collections.abc import Callable
from uuid import NAMESPACE_URL, uuid5

import pytest
from sqlalchemy import text

from tests.persistence.making import NOW, SetClock, dispatch, timeout
from timeoutmgr.contracts import TimeoutStore
from timeoutmgr.database import Database
from timeoutmgr.persistence import SqlPersistence, SqlSettings

KEPT = 400
"""Bytes that a dispatched timeout keeps at most, if endpoint, queue and host have short names."""
TURNS, AT_ONCE, CHUNK = 12, 1_000, 100


def test_a_dispatched_timeout_keeps_few_bytes(
    postgres_url: str,
    unique: str,
    persistence_of: Callable[..., SqlPersistence],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "node")  # a part of each row of history
    settings = SqlSettings(clock="host")

    # A session that connects at the wrong moment keeps the vacuum from dead rows, and adds bytes.
    for attempt in range(3):
        prefix = f"{unique}{attempt}_"
        kept = _kept(persistence_of(postgres_url, prefix=prefix, settings=settings), prefix)
        if kept <= KEPT:
            break

    assert 250 < kept <= KEPT


def _kept(persistence: SqlPersistence, prefix: str) -> float:
    """Return the bytes that each of many dispatched timeouts keeps."""
    persistence.install()
    store = persistence.timeouts("sales", SetClock())
    for batch in range(TURNS):
        _store_and_dispatch(store, batch)
        _vacuum(persistence.database, prefix)  # as the server does it by itself
    return _bytes(persistence.database, prefix) / (TURNS * AT_ONCE)


def _store_and_dispatch(store: TimeoutStore, batch: int) -> None:
    names = [str(uuid5(NAMESPACE_URL, f"{batch} {number}")) for number in range(AT_ONCE)]
    store.store_many([timeout(name) for name in names])
    for number in range(AT_ONCE // CHUNK):
        at = NOW + batch * AT_ONCE + number
        assert len(dispatch(store, store.claim(NOW, CHUNK, "o"), at)) == CHUNK


def _vacuum(database: Database, prefix: str) -> None:
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(f"VACUUM {prefix}timeout_keys, {prefix}timeout_history"))


def _bytes(database: Database, prefix: str) -> int:
    """Return the bytes of the tables and indexes that keep dispatched timeouts."""
    kept = (
        f"SELECT sum(pg_relation_size(oid) + pg_indexes_size(oid)) FROM pg_class WHERE relname IN "
        f"('{prefix}timeout_keys', '{prefix}timeout_history')"
    )
    with database.read() as connection:
        return int(connection.execute(text(kept)).scalar_one())
