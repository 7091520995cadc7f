"""The contents of a snapshot, without a JVM."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from sqlalchemy import Connection, text

from tests.pipeline.rows import batch, row
from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.pipeline import snapshots
from timeoutmgr.pipeline.readers.arrow_batches import fetch
from timeoutmgr.pipeline.snapshots import SharedSnapshot, snapshot
from timeoutmgr.pipeline.stores import Store, open_store
from timeoutmgr.pipeline.views import Selection, projected
from timeoutmgr.pipeline.writers.loader import Loader


def by_sessions_of(store: Store, **options: str) -> Store:
    """Return *store* by sessions with such *options* in their URL."""
    url = store.database.url.update_query_dict(options).render_as_string(hide_password=False)
    prefix = store.tables.timeouts.name.removesuffix("timeouts")
    return open_store("it", {"TIMEOUTMGR_STORE_IT": url}, prefix=prefix)


def test_a_snapshot_outlives_the_servers_limit_for_idle_transactions(postgres: Store) -> None:
    Loader(postgres).load([batch([row(1)])])
    # The server ends these when they are idle in a transaction.
    store = by_sessions_of(postgres, options="-c idle_in_transaction_session_timeout=500")

    with snapshot(store) as held, store.database.apart.connect() as other:
        assert isinstance(held, SharedSnapshot)
        other.execute(text("SELECT 1"))
        # Begun later, and idle too: its end is the server's.
        driver = other.connection.driver_connection
        assert driver is not None
        assert select.select([driver.fileno()], [], [], 30)[0]
        other.invalidate()
        columns = projected("pending", ["message_id"])
        batches = fetch(postgres, "pending", columns, Selection(), snapshot=held.name)
        found = [one for each in batches for one in each["message_id"].to_pylist()]

    store.persistence.close()
    assert found == ["m1"]


def test_a_server_that_ends_the_session_of_a_snapshot_is_an_outage(
    postgres: Store, unique: str
) -> None:
    store = by_sessions_of(postgres, application_name=unique)
    ended = text(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = :name"
    )

    with (
        pytest.raises(StorageUnavailable),
        snapshot(store),
        postgres.database.begin() as connection,
    ):
        connection.execute(ended, {"name": unique})

    store.persistence.close()


def test_a_server_that_ends_the_session_of_a_copy_is_an_outage(
    store_of: Callable[[str], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(connection: Connection, *_given: object) -> Iterator[pa.RecordBatch]:
        yield connection.exec_driver_sql("KILL CONNECTION_ID()")

    monkeypatch.setattr(snapshots, "fetch_within", killed)

    with pytest.raises(StorageUnavailable):
        snapshot(store_of("mysql")).__enter__()
