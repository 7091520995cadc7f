"""Reading a history table in Spark: each task reads some of its data files, by Arrow."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from timeoutmgr.pipeline.lake.places import present_table
from timeoutmgr.pipeline.lake.table import DataFiles, Where
from timeoutmgr.pipeline.stores import keep_modules


class FilesPart(InputPartition):
    """The data files that a task reads."""

    def __init__(self, files: DataFiles) -> None:
        super().__init__(files)
        self.files = files


class TableReader(DataSourceReader):
    """Reads *columns* of the events that *where* wants, of the table at *place*, by *tasks*.

    All tasks read the same *version*; without it, the newest when the read is planned.
    """

    def __init__(
        self, place: str, version: int | None, columns: pa.Schema, where: Where, tasks: int
    ) -> None:
        self._place = place
        self._version = version
        self._columns = columns
        self._where = where
        self._tasks = tasks

    def partitions(self) -> list[InputPartition]:
        """Return the parts of the files that can have such events."""
        files = present_table(self._place, self._version).files(self._where)
        return [FilesPart(part) for part in files.parts(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of *partition*."""
        assert isinstance(partition, FilesPart)
        keep_modules()
        for batch in partition.files.read(self._columns.names, self._where):
            yield batch.cast(self._columns)
