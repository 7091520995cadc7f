"""Timeouts that a frame selects are changed by the run engine of the command line."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.rows import batch, read, row
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts.bulk_runs import BulkAction, BulkChange
from timeoutmgr.endpoint.bulk_runs import BulkRuns
from timeoutmgr.message.instants import duration_micros
from timeoutmgr.pipeline import WrongColumns, plan_change, read_timeouts
from timeoutmgr.pipeline.stores import Store
from timeoutmgr.pipeline.writers.loader import Loader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR = 3_600_000_000


def bulk_of(store: Store) -> BulkRuns:
    timeouts = store.persistence.timeouts("sales", SystemClock())
    return BulkRuns(timeouts, lambda _at: None, nullcontext, lambda _destination: None)


@pytest.mark.parametrize(
    "change",
    [
        BulkChange(action=BulkAction.SHIFT, by=HOUR),
        BulkChange(action=BulkAction.REROUTE, destination="billing-eu"),
        BulkChange(action=BulkAction.CANCEL),
    ],
    ids=lambda one: one.action.value,
)
def test_a_frame_selects_and_changes_what_its_list_of_ids_does(
    change: BulkChange, spark: SparkSession, sqlite: Store
) -> None:
    rows = [row(number) for number in range(20)]
    Loader(sqlite).load([batch(rows)])
    bulk, pending = bulk_of(sqlite), read_timeouts(spark, sqlite, columns=["id", "saga_id"])
    chosen = sorted(one["id"] for one in rows if one["saga_id"] is not None)

    plan = plan_change(pending.where("saga_id IS NOT NULL"), bulk, change)

    listed = bulk.plan(change, ids=chosen)
    assert [*bulk.keys(plan.run.id)] == [*bulk.keys(listed.run.id)]
    assert sorted(key.id for key in bulk.keys(plan.run.id)) == chosen
    before = {one["id"]: one for one in read(sqlite, "pending")}
    assert bulk.apply(plan.run.id).changed == len(chosen)
    after = {one["id"]: one for one in read(sqlite, "pending")}
    untouched = before.keys() - {*chosen}
    assert {id_: after[id_] for id_ in untouched} == {id_: before[id_] for id_ in untouched}
    match change.action:
        case BulkAction.SHIFT:
            moved = {after[id_]["due"] - before[id_]["due"] for id_ in chosen}
            assert {duration_micros(by) for by in moved} == {HOUR}
        case BulkAction.REROUTE:
            assert {after[id_]["destination"] for id_ in chosen} == {"billing-eu"}
        case _:
            assert after.keys() == untouched


def test_a_frame_without_ids_is_refused(spark: SparkSession, sqlite: Store) -> None:
    frame = spark.sql("SELECT 1 AS message_id")

    with pytest.raises(WrongColumns, match="have no column 'id'"):
        plan_change(frame, bulk_of(sqlite), BulkChange(action=BulkAction.CANCEL))
