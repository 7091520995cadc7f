"""Reads a history table in Spark: each task reads some of the data files with Arrow."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from timeoutmgr.pipeline.lake.places import present_table
from timeoutmgr.pipeline.lake.table import DataFiles, Where
from timeoutmgr.pipeline.stores import keep_modules


@dataclass(frozen=True)
class TableReader(DataSourceReader):
    """Reads *columns* of the events in *where* from the table at *place*, in *tasks* tasks.

    All tasks read the same *version*, by default the newest version when the read is planned.
    """

    place: str
    version: int | None
    columns: pa.Schema
    where: Where
    tasks: int

    def partitions(self) -> list[InputPartition]:
        """Return the parts of the files that can have such events."""
        files = present_table(self.place, self.version).files(self.where)
        return [*map(InputPartition, files.parts(self.tasks))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of *partition*."""
        files: DataFiles = partition.value
        keep_modules()
        for batch in files.read(self.columns.names, self.where):
            yield batch.cast(self.columns)
