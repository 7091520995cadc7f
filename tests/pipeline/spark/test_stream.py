from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.pipeline.making import batch, row, settle
from timeoutmgr.pipeline.jobs.stream import StreamOptions, stream
from timeoutmgr.pipeline.loading import Loader
from timeoutmgr.pipeline.stores import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_stream_goes_on_where_it_was(
    spark: SparkSession, postgres: Store, tmp_path: Path
) -> None:
    options = StreamOptions(
        store=postgres.name,
        to=tmp_path / "lake",
        checkpoint=tmp_path / "checkpoint",
        once=True,
        batch_events=60,
    )
    Loader(postgres).load([batch([row(n) for n in range(100)])], chunk_rows=50)
    settle(postgres)
    first = stream(spark, options)
    Loader(postgres).load([batch([row(n) for n in range(100, 130)])])
    settle(postgres)
    second = stream(spark, options)

    found = [one["id"] for one in spark.read.parquet(str(tmp_path / "lake")).collect()]
    assert (first.events, second.events) == (100, 30)
    assert first.batches >= 2
    assert len(found) == len(set(found)) == 130
