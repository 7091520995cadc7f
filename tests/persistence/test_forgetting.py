"""An endpoint is taken out of the tables, and the last one takes them with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import select

from tests.persistence.making import NOW, SetClock, dispatch, timeout
from timeoutmgr.contracts import TimeoutFilter
from timeoutmgr.contracts.audit import ChangedBy
from timeoutmgr.contracts.bulk_runs import BulkAction, BulkChange
from timeoutmgr.errors import FeatureRefused, SchemaMissing
from timeoutmgr.persistence import SqlPersistence, SqlSettings

Made = Callable[..., SqlPersistence]
HOST = SqlSettings(clock="host")


def test_nothing_is_removed_while_a_timeout_is_pending(
    empty_url: str, unique: str, persistence_of: Made
) -> None:
    persistence = persistence_of(empty_url, prefix=f"{unique}_", settings=HOST)
    persistence.install()
    store = persistence.timeouts("sales", SetClock())
    store.store_many([timeout("a")])

    with pytest.raises(FeatureRefused, match="1 timeouts of 'sales' are pending"):
        persistence.uninstall("sales")

    assert store.count(TimeoutFilter()) == 1
    assert persistence.uninstall("sales", force=True)
    with pytest.raises(SchemaMissing):
        persistence.check()


def test_the_last_endpoint_takes_the_tables_with_it_and_they_can_be_made_again(
    empty_url: str, unique: str, persistence_of: Made
) -> None:
    persistence = persistence_of(empty_url, prefix=f"{unique}_", settings=HOST)
    persistence.install()
    sales, billing = (persistence.timeouts(name, SetClock()) for name in ("sales", "billing"))
    sales.store_many([timeout("a")])
    sales.heartbeat("owner", {})
    billing.store_many([timeout("b", NOW + 1)])
    chunk = sales.claim(NOW, 10, "owner")
    dispatch(sales, chunk)

    assert not persistence.uninstall("sales")

    assert sales.find("a") is None
    assert sales.processes() == []
    assert billing.count(TimeoutFilter()) == 1
    assert persistence.uninstall("billing", force=True)
    persistence.install()
    persistence.check()
    assert billing.count(TimeoutFilter()) == 0


def test_the_batches_of_an_endpoints_runs_go_with_it(
    empty_url: str, unique: str, persistence_of: Made
) -> None:
    persistence = persistence_of(empty_url, prefix=f"{unique}_", settings=HOST)
    persistence.install()
    sales, billing = (persistence.timeouts(name, SetClock()) for name in ("sales", "billing"))
    cancel = BulkChange(action=BulkAction.CANCEL)
    for store in (sales, billing):
        store.store_many([timeout("a")])
        store.plan(["a"], cancel, ChangedBy(channel="cli"))

    assert not persistence.uninstall("sales", force=True)

    batches = sales.context.tables.batches
    with persistence.database.read() as connection:
        [left] = connection.execute(select(batches.c.run_id)).scalars()
    assert [run.id for run in billing.bulk_runs()] == [left]
    persistence.uninstall("billing", force=True)
