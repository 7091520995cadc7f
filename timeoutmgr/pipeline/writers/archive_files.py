"""The data source ``timeouts_archive`` of Spark: history into Parquet files, by Arrow's own writer.

It takes a fraction of the time of Spark's writer, which goes through every row and column for
itself. It proves nothing: ``archive`` reads the files with Spark, and compares their rows with the
rows that were read from the store.
"""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from timeoutmgr.pipeline.views import HISTORY

FORMAT: Final = "timeouts_archive"
FOLDERS: Final = ("endpoint", "event_date")
"""The columns that are not in a file, but in the names of the folders above it."""

_IN_FILE: Final = pa.schema([field for field in HISTORY if field.name not in FOLDERS])
# Other columns differ in every row, and Arrow throws their dictionary away half-way.
_REPEATED: Final = ("event", "destination", "attempt", "node", "run_id")
_GROUP_ROWS: Final = 100_000
UNFINISHED: Final = "_"
# As Spark writes them, so that it reads them back.
_ESCAPED: Final = frozenset("\"#%'*/:=?\\\x7f{[]^") | {chr(code) for code in range(1, 32)}
_NOTHING: Final = "__HIVE_DEFAULT_PARTITION__"


class ArchiveFiles(DataSource):
    """Writes rows, which have HISTORY's columns and FOLDERS', into files below the option *path*.

    Rows of the same endpoint and day in sequence become one file.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> "ArchiveFilesWriter":
        """Return a writer of rows of *schema*; files that are in the folder already stay there."""
        return ArchiveFilesWriter(Path(self.options["path"]))


@dataclass(frozen=True, slots=True)
class WrittenFiles(WriterCommitMessage):
    """The *files* of a task, under names that no reader reads."""

    files: tuple[str, ...]


class ArchiveFilesWriter(DataSourceArrowWriter):
    """Writes files under names that no reader reads; ``commit`` renames the files that count.

    A task that dies, or the second of two equal tasks, leaves files unknown to ``commit``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task."""
        with Files(self._folder) as files:
            for batch in iterator:
                files.add(batch)
        return WrittenFiles(tuple(str(path) for path in files.written))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Rename the files that count."""
        for message in messages:
            if isinstance(message, WrittenFiles):
                for path in map(Path, message.files):
                    path.rename(path.with_name(path.name.removeprefix(UNFINISHED)))

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
        path = folder / f"{UNFINISHED}part-{secrets.token_hex(16)}.parquet"
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
