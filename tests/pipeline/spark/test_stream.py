from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.archives import write_events
from tests.pipeline.rows import batch, count, row, settle
from timeoutmgr.clock import SystemClock
from timeoutmgr.pipeline.errors import RunConflict
from timeoutmgr.pipeline.jobs.archive import archive
from timeoutmgr.pipeline.jobs.stream import stream
from timeoutmgr.pipeline.options import ArchiveOptions, StreamOptions
from timeoutmgr.pipeline.stores import Store
from timeoutmgr.pipeline.writers.loader import Loader

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


def test_archive_removes_nothing_that_a_stream_has_not_read(
    spark: SparkSession, postgres: Store, tmp_path: Path
) -> None:
    options = StreamOptions(
        store=postgres.name, to=tmp_path / "live", checkpoint=tmp_path / "checkpoint", once=True
    )
    old = ArchiveOptions(
        store=postgres.name, to=tmp_path / "archive", older_than=timedelta(days=30)
    )
    write_events(postgres, range(10))
    settle(postgres)
    stream(spark, options)
    write_events(postgres, range(10, 40))

    first = archive(spark, old, clock=SystemClock())
    left = count(postgres, "history")
    settle(postgres)
    stream(spark, options)
    second = archive(spark, old, clock=SystemClock())

    followed = {one["id"] for one in spark.read.parquet(str(tmp_path / "live")).collect()}
    assert (first.rows, first.removed, first.held, left) == (40, 10, 30, 30)
    assert (second.removed, second.held, second.resumed) == (30, 0, (first.run_id,))
    assert count(postgres, "history") == 0
    assert followed == {f"id{number}" for number in range(40)}


def test_a_lost_checkpoint_and_a_strange_folder_are_refused_before_anything_is_dropped(
    spark: SparkSession, postgres: Store, tmp_path: Path
) -> None:
    options = StreamOptions(
        store=postgres.name, to=tmp_path / "lake", checkpoint=tmp_path / "kept", once=True
    )
    Loader(postgres).load([batch([row(1)])])
    settle(postgres)
    stream(spark, options)

    with pytest.raises(RunConflict, match=r"lost has none: new events .* not be written"):
        stream(spark, replace(options, checkpoint=tmp_path / "lost"))
    with pytest.raises(RunConflict, match=r"strange has none: .* could not read"):
        stream(spark, replace(options, to=tmp_path / "strange"))

    assert not (tmp_path / "lost").exists()
    assert not (tmp_path / "strange").exists()
