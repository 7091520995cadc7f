"""The data source ``timeouts_archive`` of Spark: history into Parquet files, by Arrow's own writer.

It takes a fraction of the time of Spark's, which goes through every row and column for itself. It
proves nothing: ``archive`` reads the files with Spark, and compares what they hold with what was
read of the store.
"""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from timeoutmgr.pipeline.views import HISTORY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT: Final = "timeouts_archive"
FOLDERS: Final = ("endpoint", "event_date")
"""The columns that are not in a file, but in the names of the folders above it."""

_IN_FILE: Final = pa.schema([field for field in HISTORY if field.name not in FOLDERS])
# The others are different in every row, and a dictionary of them is thrown away half-way.
_REPEATED: Final = ("event", "destination", "attempt", "node", "run_id")
_GROUP_ROWS: Final = 100_000
_UNFINISHED: Final = "_"
# As Spark writes them, so that it reads them back.
_ESCAPED: Final = frozenset("\"#%'*/:=?\\\x7f{[]^") | {chr(code) for code in range(1, 32)}
_NOTHING: Final = "__HIVE_DEFAULT_PARTITION__"
_BYTES_AT_ONCE: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
_ANY_NUMBER: Final = str(2**31 - 1)


def write_files(spark: "SparkSession", rows: "DataFrame", folder: Path) -> None:
    """Write *rows*, see :class:`ArchiveFiles`; then *folder* holds files that count, and no others.

    A task that outlives the write, as one that was thought dead may, can still leave others there,
    under names that nobody reads.
    """
    spark.dataSource.register(ArchiveFiles)
    before = spark.conf.get(_BYTES_AT_ONCE)
    # Spark would add up the bytes of a batch anew for each row. These rows are short, and a batch
    # has no more than some thousands of them.
    spark.conf.set(_BYTES_AT_ONCE, _ANY_NUMBER)
    try:
        rows.write.format(FORMAT).mode("append").save(str(folder))
    finally:
        spark.conf.set(_BYTES_AT_ONCE, str(before))
    for path in folder.rglob(f"{_UNFINISHED}*.parquet"):
        path.unlink()


class ArchiveFiles(DataSource):
    """Writes rows, which have HISTORY's columns and FOLDERS', into files below the option *path*.

    Rows of one endpoint and day that come one after the other are one file.
    """

    @classmethod
    def name(cls) -> str:
        """Return what ``format`` calls it."""
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> "ArchiveFilesWriter":
        """Return what writes rows of *schema*; what is in the folder already stays there."""
        return ArchiveFilesWriter(Path(self.options["path"]))


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """The *files* that one task wrote, under names that nobody reads."""

    files: tuple[str, ...]


class ArchiveFilesWriter(DataSourceArrowWriter):
    """Writes files under names that nobody reads, until ``commit`` gives those that count others.

    A task that dies, or one of two that do the same, leaves files that ``commit`` does not know of.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task."""
        with Files(self._folder) as files:
            for batch in iterator:
                files.add(batch)
        return Written(tuple(str(path) for path in files.written))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Give the files that count the names under which they do."""
        for message in messages:
            if isinstance(message, Written):
                for path in map(Path, message.files):
                    path.rename(path.with_name(path.name.removeprefix(_UNFINISHED)))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: tasks may still write, and none of it counts."""


class Files:
    """Writes one file after the other: a new one whenever the endpoint or the day is another."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open = ExitStack()
        self._key: tuple[str | None, date] | None = None
        self._held: list[pa.RecordBatch] = []
        self._rows = 0
        self._writer: pq.ParquetWriter | None = None
        self.written: list[Path] = []

    def __enter__(self) -> "Files":
        """Begin."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_of_it: object) -> None:
        """Finish the last file; where something was raised it is left as it is."""
        with self._open:
            if kind is None:
                self._finish()

    def add(self, batch: pa.RecordBatch) -> None:
        """Write the rows of *batch*."""
        for start, end in runs(batch):
            key = tuple(batch[name][start].as_py() for name in FOLDERS)
            if key != self._key:
                self._finish()
                self._begin(*key)
            self._held.append(batch.slice(start, end - start).select(_IN_FILE.names))
            self._rows += end - start
            if self._rows >= _GROUP_ROWS:
                self._flush()

    def _begin(self, endpoint: str | None, day: date) -> None:
        folder = self._folder / f"endpoint={escaped(endpoint)}" / f"event_date={day.isoformat()}"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{_UNFINISHED}part-{secrets.token_hex(16)}.parquet"
        made = pq.ParquetWriter(path, _IN_FILE, compression="zstd", use_dictionary=list(_REPEATED))
        self._key, self._writer = (endpoint, day), self._open.enter_context(made)
        self.written.append(path)

    def _flush(self) -> None:
        if self._writer is not None and self._held:
            self._writer.write_table(pa.Table.from_batches(self._held).cast(_IN_FILE))
        self._held, self._rows = [], 0

    def _finish(self) -> None:
        self._flush()
        self._open.close()
        self._writer = None


def runs(batch: pa.RecordBatch) -> Iterator[tuple[int, int]]:
    """Yield where each run of rows of one endpoint and day begins and ends."""
    if not batch.num_rows:
        return
    changes: Sequence[int] = []
    for name in FOLDERS:
        column = batch[name]
        differs = pc.fill_null(pc.not_equal(column[1:], column[:-1]), True)
        changes = [*changes, *(at + 1 for at in pc.indices_nonzero(differs).to_pylist())]
    starts = [0, *sorted({*changes})]
    yield from zip(starts, [*starts[1:], batch.num_rows], strict=True)


def escaped(value: str | None) -> str:
    """Return *value* as the name of a folder has it."""
    if not value:
        return _NOTHING
    return "".join(f"%{ord(one):02X}" if one in _ESCAPED else one for one in value)
