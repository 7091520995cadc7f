"""An archive of history: Parquet files by endpoint and day, and manifests that say which count.

::

    manifests/RUN.json       what the run RUN wrote; it counts from the moment that this is there
    manifests/RUN.purged     ... and what it archived is not in the store any more
    data/run=RUN/endpoint=sales/event_date=2030-01-31/part-….parquet
"""

import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq

from timeoutmgr.instants import Micros
from timeoutmgr.pipeline.stores import Store
from timeoutmgr.pipeline.views import HISTORY, ddl, projected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ROWS_AT_ONCE: Final = 100_000
_SYNCS_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What one run archived, of which store; *checksum* is of all its rows."""

    run_id: str
    store: str
    cutoff: Micros
    rows: int
    checksum: str
    files: tuple[str, ...]


class Archive:
    """An archive in *folder*, which every worker of Spark can read and write."""

    def __init__(self, folder: Path) -> None:
        self.folder: Final = folder
        self._manifests: Final = folder / "manifests"

    def data_of(self, run_id: str) -> Path:
        """Return the folder that the run writes into."""
        return self.folder / "data" / f"run={run_id}"

    def files_of(self, run_id: str) -> tuple[str, ...]:
        """Return the files that the run has written, in a fixed order."""
        found = self.data_of(run_id).rglob("part-*.parquet")
        return tuple(sorted(str(path.relative_to(self.folder)) for path in found))

    def publish(self, manifest: Manifest) -> None:
        """Make what the run wrote count, at once and durably.

        Rows are removed from the store because of it, so all of it is synced first: files, the
        folders that name them, and the manifest last.
        """
        self._manifests.mkdir(parents=True, exist_ok=True)
        files = [self.folder / name for name in manifest.files]
        folders = {folder for file in files for folder in file.parents}
        ours = {folder for folder in folders if folder.is_relative_to(self.folder)}
        # Each waits for the disk, which takes many at once.
        with ThreadPoolExecutor(_SYNCS_AT_ONCE) as threads:
            for paths in (files, [*ours, self.folder]):
                list(threads.map(_sync, paths))
        target = self._manifests / f"{manifest.run_id}.json"
        written = target.with_suffix(".writing")
        with written.open("w") as file:
            json.dump(asdict(manifest), file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        written.replace(target)
        _sync(self._manifests)

    def is_published(self, run_id: str) -> bool:
        """Return whether what the run wrote counts."""
        return (self._manifests / f"{run_id}.json").exists()

    def mark_purged(self, run_id: str) -> None:
        """Note that what the run archived is not in the store any more."""
        (self._manifests / f"{run_id}.purged").touch()

    def purged(self) -> frozenset[str]:
        """Return the runs whose rows are not in the store any more.

        Ask before a snapshot is taken: of a run that ends after it, the snapshot still has rows.
        """
        return frozenset(path.stem for path in self._manifests.glob("*.purged"))

    def manifests(self) -> list[Manifest]:
        """Return what counts, the oldest run first."""
        return [_loaded(path) for path in sorted(self._manifests.glob("*.json"))]

    def manifest(self, run_id: str) -> Manifest:
        """Return the manifest of a run that is published."""
        return _loaded(self._manifests / f"{run_id}.json")

    def sequences(self, run_id: str) -> Iterator[int]:
        """Yield the sequence of each row that the run archived, always in the same order."""
        for name in self.manifest(run_id).files:
            with pq.ParquetFile(self.folder / name) as file:
                for batch in file.iter_batches(_ROWS_AT_ONCE, columns=["sequence"]):
                    yield from batch["sequence"].to_pylist()

    def read(self, spark: "SparkSession", columns: Sequence[str] | None = None) -> "DataFrame":
        """Return *columns* of all history that counts."""
        files = [name for one in self.manifests() for name in one.files]
        return self.rows_in(spark, files).select(*projected("history", columns).names)

    def and_not_in_it(
        self, spark: "SparkSession", store: Store, rows: "DataFrame", purged: frozenset[str]
    ) -> "DataFrame":
        """Return those of *rows*, history of *store* with sequences, that are not archived.

        Of the *purged* runs there can be none.
        """
        files = [
            name
            for one in self.manifests()
            if one.store == identity(store) and one.run_id not in purged
            for name in one.files
        ]
        if not files:
            return rows
        return rows.join(self.rows_in(spark, files).select("sequence"), "sequence", "left_anti")

    def rows_in(self, spark: "SparkSession", files: Sequence[str]) -> "DataFrame":
        """Return the history that *files* hold, whether it counts or not."""
        if not files:
            return spark.createDataFrame([], ddl(HISTORY))
        reader = spark.read.schema(ddl(HISTORY)).option("basePath", str(self.folder / "data"))
        return reader.parquet(*(str(self.folder / name) for name in files)).select(*HISTORY.names)


def identity(store: Store) -> str:
    """Return by what the rows of *store* are told from those of others."""
    return f"{store.database.describe()} {store.tables.history.fullname}"


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _loaded(path: Path) -> Manifest:
    found = json.loads(path.read_text())
    return Manifest(**(found | {"files": tuple(found["files"])}))
