"""A worker of Spark that dies while it stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from tests.pipeline.rows import batch, count, read, row
from timeoutmgr.pipeline.source import TimeoutsDataSource, TimeoutsWriter
from timeoutmgr.pipeline.stores import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 40
CHUNK = 10


def dying(chunk: int, marker: Path) -> type[TimeoutsDataSource]:
    """Return a sink whose process is killed, once in all, before its *chunk*-th commit."""
    path = str(marker)

    # Nested classes go to the workers as they are: they cannot import the tests.
    class DyingWriter(TimeoutsWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            import os
            import signal

            from timeoutmgr.pipeline.writers.copy_writer import CopyWriter

            copy = CopyWriter._copy
            written = 0

            def copy_until_killed(put: CopyWriter, cursor: Any, rows: pa.Table) -> int:
                nonlocal written
                found = copy(put, cursor, rows)
                written += 1
                if written == chunk:
                    try:
                        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
                    except FileExistsError:
                        return found  # it has died before
                    os.kill(os.getpid(), signal.SIGKILL)
                return found

            CopyWriter._copy = copy_until_killed  # type: ignore[assignment,method-assign]  # this process is a worker's
            try:
                return super().write(iterator)
            finally:
                CopyWriter._copy = copy  # type: ignore[method-assign]  # it may do other tasks

    class DyingSink(TimeoutsDataSource):
        @classmethod
        def name(cls) -> str:
            return "timeouts_dying"

        def writer(self, schema: StructType, overwrite: bool) -> TimeoutsWriter:
            return DyingWriter(self._named, self._options())

    return DyingSink


def test_a_task_that_is_killed_amid_a_chunk_is_tried_again_and_every_row_is_stored_once(
    spark: SparkSession, postgres: Store, tmp_path: Path
) -> None:
    rows = [row(number) for number in range(ROWS)]
    frame = spark.createDataFrame(pa.Table.from_batches([batch(rows)])).coalesce(1)
    spark.dataSource.register(dying(3, tmp_path / "died"))

    # With "error" the second attempt has to know the rows of the first for its own.
    writer = frame.write.format("timeouts_dying").mode("append").option("store", postgres.name)
    writer.options(run_id="r", on_conflict="error", chunk_rows=str(CHUNK)).save()

    assert (tmp_path / "died").exists()
    stored = read(postgres, "pending")
    assert sorted(one["id"] for one in stored) == sorted(one["id"] for one in rows)
    assert [count(postgres, one) for one in ("keys", "history")] == [ROWS, ROWS]
