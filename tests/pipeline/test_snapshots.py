"""The contents of a snapshot, without a JVM."""

from __future__ import annotations

import select

from sqlalchemy import text

from tests.pipeline.rows import batch, row
from timeoutmgr.pipeline.readers.arrow_batches import fetch
from timeoutmgr.pipeline.snapshots import SharedSnapshot, snapshot
from timeoutmgr.pipeline.stores import Store, open_store
from timeoutmgr.pipeline.views import Selection, projected
from timeoutmgr.pipeline.writers.loader import Loader


def impatient(store: Store) -> Store:
    """Return *store* by sessions that the server ends when they are idle in a transaction."""
    options = {"options": "-c idle_in_transaction_session_timeout=500"}
    url = store.database.url.update_query_dict(options).render_as_string(hide_password=False)
    prefix = store.tables.timeouts.name.removesuffix("timeouts")
    return open_store("it", {"TIMEOUTMGR_STORE_IT": url}, prefix=prefix)


def test_a_snapshot_outlives_the_servers_limit_for_idle_transactions(postgres: Store) -> None:
    Loader(postgres).load([batch([row(1)])])
    store = impatient(postgres)

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
