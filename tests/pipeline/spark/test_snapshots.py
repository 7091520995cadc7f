from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.pipeline.making import batch, row
from timeoutmgr.pipeline import snapshot
from timeoutmgr.pipeline.errors import SnapshotGone
from timeoutmgr.pipeline.frames import read_timeouts
from timeoutmgr.pipeline.jobs.running import told_by_workers
from timeoutmgr.pipeline.loading import Loader
from timeoutmgr.pipeline.snapshots import SharedSnapshot
from timeoutmgr.pipeline.stores import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def test_a_snapshot_is_read_whole_and_by_columns(spark: SparkSession, postgres: Store) -> None:
    made = [row(n) for n in range(500)]
    Loader(postgres).load([batch(made)])

    with snapshot(postgres) as held:
        whole = held.read(spark, "pending").toArrow().to_pylist()
        two = held.read(spark, "pending", columns=["message_id", "due"]).toArrow()

    assert sorted(one["message_id"] for one in whole) == sorted(one["message_id"] for one in made)
    assert {one["due"] for one in whole} == {one["due"] for one in made}
    assert two.column_names == ["message_id", "due"]
    assert two.num_rows == 500


def test_a_pyspark_that_is_another_inside_reads_by_the_data_source(
    spark: SparkSession, postgres: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    Loader(postgres).load([batch([row(n) for n in range(500)])])

    with snapshot(postgres) as held:
        tasks = held.read(spark, "pending", columns=["message_id"])
        monkeypatch.delattr("pyspark.util.PythonEvalType.SQL_MAP_ARROW_ITER_UDF")
        source = held.read(spark, "pending", columns=["message_id"])
        found = [sorted(row[0] for row in one.collect()) for one in (tasks, source)]

    assert "MapInArrow" in plan_of(tasks)
    assert "MapInArrow" not in plan_of(source)
    assert found[0] == found[1]
    assert len(found[1]) == 500


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def test_a_table_without_parts_is_empty(spark: SparkSession, postgres: Store) -> None:
    with snapshot(postgres) as held:
        assert isinstance(held, SharedSnapshot)
        frame = read_timeouts(spark, postgres.name, snapshot=held.name, parts=[])

        assert frame.count() == 0


def test_spark_does_not_take_a_store_for_small(spark: SparkSession, postgres: Store) -> None:
    with snapshot(postgres) as held:
        pending, keys = held.read(spark, "pending"), held.read(spark, "keys")
        plan = plan_of(pending.join(keys, "id"))

    assert "SortMergeJoin" in plan
    assert "Broadcast" not in plan


def test_a_snapshot_that_has_ended_is_named_by_the_tasks(
    spark: SparkSession, postgres: Store
) -> None:
    with snapshot(postgres) as held:
        frame = held.read(spark, "pending")

    with pytest.raises(SnapshotGone, match="run it again"), told_by_workers():
        frame.count()
