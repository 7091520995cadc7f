from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException

from tests.pipeline.rows import batch, row
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.pipeline import snapshot
from timeoutmgr.pipeline.errors import SnapshotEnded
from timeoutmgr.pipeline.frames import read_timeouts
from timeoutmgr.pipeline.jobs.run_context import worker_errors
from timeoutmgr.pipeline.snapshots import SharedSnapshot
from timeoutmgr.pipeline.spark.session import READ_BY
from timeoutmgr.pipeline.stores import Store
from timeoutmgr.pipeline.views import projected
from timeoutmgr.pipeline.writers.loader import Loader

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


def test_a_copy_is_read_whole_and_by_columns(spark: SparkSession, sqlite: Store) -> None:
    made = [row(n) for n in range(3)]
    Loader(sqlite).load([batch(made)])

    with snapshot(sqlite, views=["pending"]) as held:
        whole = held.read(spark, "pending").orderBy("message_id").toArrow()
        two = held.read(spark, "pending", columns=["message_id", "due"]).toArrow()

    assert whole.column_names == projected("pending", None).names
    for one, was in zip(whole.to_pylist(), made, strict=True):
        assert {name: one[name] for name in was} == was
    assert two.column_names == ["message_id", "due"]


def test_a_view_that_was_not_copied_is_not_read_as_empty(
    spark: SparkSession, sqlite: Store
) -> None:
    Loader(sqlite).load([batch([row(1)])])

    with (
        snapshot(sqlite, views=["pending"], columns=["id", "due"]) as held,
        pytest.raises(AnalysisException, match="destination"),
    ):
        held.read(spark, "pending", columns=["id", "destination"])


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def test_a_table_without_parts_is_empty(spark: SparkSession, postgres: Store) -> None:
    with snapshot(postgres) as held:
        assert isinstance(held, SharedSnapshot)
        frame = read_timeouts(spark, postgres.name, snapshot=held.name, parts=[])

        assert frame.count() == 0


def test_as_many_tasks_read_as_the_session_says(spark: SparkSession, postgres: Store) -> None:
    Loader(postgres).load([batch([row(number) for number in range(200)])])
    before = spark.conf.get(READ_BY)
    try:
        with snapshot(postgres) as held:
            tasks = []
            for many in ("1", "3"):
                spark.conf.set(READ_BY, many)
                tasks.append(held.read(spark, "pending").rdd.getNumPartitions())
            spark.conf.set(READ_BY, "a few")
            with pytest.raises(ConfigurationError, match="whole number from 1, got 'a few'"):
                held.read(spark, "pending")
    finally:
        spark.conf.set(READ_BY, str(before))

    assert tasks == [1, 3]


def test_spark_does_not_estimate_a_store_as_small(spark: SparkSession, postgres: Store) -> None:
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

    with pytest.raises(SnapshotEnded, match="run it again"), worker_errors():
        frame.count()
