from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from sqlalchemy import text

from tests.pipeline.rows import batch, row
from timeoutmgr.pipeline import frames, snapshot
from timeoutmgr.pipeline.errors import SnapshotEnded
from timeoutmgr.pipeline.frames import PartsReader, read_timeouts
from timeoutmgr.pipeline.jobs.run_context import worker_errors
from timeoutmgr.pipeline.snapshots import SharedSnapshot
from timeoutmgr.pipeline.stores import Store, open_store
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


@pytest.fixture
def in_schema(postgres_url: str, unique: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store that is named by a word, in a schema of its own."""
    monkeypatch.setenv("TIMEOUTMGR_STORE_ELSEWHERE", postgres_url)
    store = open_store("elsewhere", schema=unique)
    with store.database.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {unique}"))
    store.persistence.install()
    yield store
    with store.database.begin() as connection:
        connection.execute(text(f"DROP SCHEMA {unique} CASCADE"))
    store.persistence.close()


def test_tasks_read_the_tables_that_the_snapshot_is_of(
    spark: SparkSession, in_schema: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    Loader(in_schema).load([batch([row(1)])])
    readers: list[PartsReader] = []

    def note(spark: SparkSession, reader: PartsReader) -> DataFrame:
        readers.append(reader)
        return spark.range(0)

    # Run here: another environment would need new workers, which take seconds to begin.
    monkeypatch.setattr(frames, "frame_of", note)
    with snapshot(in_schema) as held:
        held.read(spark, "pending", columns=["message_id"])
        numbers = pa.RecordBatch.from_pydict({"id": range(len(readers[0].parts))})
        found = [one.to_pydict() for one in readers[0](iter([numbers]))]

    assert found == [{"message_id": ["m1"]}]


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def test_a_table_without_parts_is_empty(spark: SparkSession, postgres: Store) -> None:
    with snapshot(postgres) as held:
        assert isinstance(held, SharedSnapshot)
        frame = read_timeouts(spark, postgres.name, snapshot=held.name, parts=[])

        assert frame.count() == 0


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
