"""An archive of history: Parquet files by endpoint and day, and manifests that say which count.

::

    manifests/RUN.claim      which store's the run RUN is; there before it writes
    manifests/RUN.json       what it wrote; it counts from the moment that this is there
    manifests/RUN.purged     ... and what it archived is not in the store any more
    data/run=RUN/endpoint=sales/event_date=2030-01-31/part-….parquet
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from timeoutmgr.errors import ConfigurationError
from timeoutmgr.instants import Micros
from timeoutmgr.pipeline.errors import RunInTheWay
from timeoutmgr.pipeline.identity import those_of
from timeoutmgr.pipeline.stores import Store
from timeoutmgr.pipeline.views import HISTORY, INSTANT, ddl, projected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROW: Final = ("sequence", "id", "at")
"""What tells one row of history from another.

SQLite gives a sequence again once retention has removed its row, to the same timeout as well.
"""

ArchivedRow: TypeAlias = tuple[int, str, Micros]
"""A row, by ROW."""

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


_FIELDS: Final = {field.name for field in fields(Manifest)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Whose a run id is in an archive: *store*'s, whose ledger says that the run began at *begun*.

    Two stores can have one name: that of the same file, or port, of two machines.
    """

    store: str
    begun: Micros


class Archive:
    """An archive in *folder*, which every worker of Spark can read and write.

    Whoever reads it gets a ConfigurationError where there is none, or a manifest is none.
    """

    def __init__(self, folder: Path) -> None:
        self.folder: Final = folder
        self._manifests: Final = folder / "manifests"

    @property
    def is_there(self) -> bool:
        """Whether anything was ever archived there: where a disk is not mounted, nothing was."""
        return self._manifests.is_dir()

    def create(self) -> None:
        """Make the folders of an archive; twice is fine."""
        self._manifests.mkdir(parents=True, exist_ok=True)

    def claim(self, run_id: str, claim: Claim) -> None:
        """Take the run id, durably and for good; twice is fine.

        Raises RunInTheWay where it is another's: of many that ask at once it is one's.
        """
        self.create()
        try:
            with self._claim(run_id).open("x") as file:
                json.dump(asdict(claim), file)
                file.flush()
                os.fsync(file.fileno())
        except FileExistsError:
            found = self.claimed(run_id)
            if found is None or found.begun != claim.begun:
                raise self.taken(run_id, found.store if found else "another") from None
        _sync(self._manifests)

    def claimed(self, run_id: str) -> Claim | None:
        """Return whose the run id is; None where nobody took it, or before there were claims."""
        try:
            return Claim(**json.loads(self._claim(run_id).read_text()))
        except FileNotFoundError:
            return None
        except (TypeError, ValueError):  # being written, or killed at it; then the id stays taken
            return Claim(store="another store", begun=-1)

    def taken(self, run_id: str, store: str) -> RunInTheWay:
        """Return the error that says so."""
        return RunInTheWay(
            f"the run id {run_id!r} is taken in the archive {self.folder}, by a run of {store} "
            "that the ledger of this store does not know; nothing of this run was written or "
            f"removed. Give a run id that no other store gives there, such as {run_id}-NAME"
        )

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
        self.create()
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
        """Return whether what a run of that id wrote counts, whichever store's it was."""
        return (self._manifests / f"{run_id}.json").exists()

    def mark_purged(self, run_id: str) -> None:
        """Note that what the run archived is not in the store any more."""
        (self._manifests / f"{run_id}.purged").touch()

    def purged(self) -> frozenset[str]:
        """Return the runs whose rows are not in the store any more.

        Ask before a snapshot is taken: of a run that ends after it, the snapshot still has rows.
        """
        self._require()
        return frozenset(path.stem for path in self._manifests.glob("*.purged"))

    def manifests(self) -> list[Manifest]:
        """Return what counts, the oldest run first."""
        self._require()
        return [_loaded(path) for path in sorted(self._manifests.glob("*.json"))]

    def manifest(self, run_id: str) -> Manifest:
        """Return the manifest of a run that is published."""
        return _loaded(self._manifests / f"{run_id}.json")

    def rows(self, run_id: str) -> Iterator[ArchivedRow]:
        """Yield each row that the run archived, always in the same order."""
        for name in self.manifest(run_id).files:
            with pq.ParquetFile(self.folder / name) as file:
                for batch in file.iter_batches(_ROWS_AT_ONCE, columns=[*ROW]):
                    # Of an archive that Spark wrote, its times may be in nanoseconds.
                    at = pc.cast(pc.cast(batch["at"], INSTANT), pa.int64())
                    sequence, id_ = batch["sequence"].to_pylist(), batch["id"].to_pylist()
                    yield from zip(sequence, id_, at.to_pylist(), strict=True)

    def read(
        self,
        spark: "SparkSession",
        manifests: Iterable[Manifest],
        columns: Sequence[str] | None = None,
    ) -> "DataFrame":
        """Return *columns* of the history that *manifests* tell of."""
        files = [name for one in manifests for name in one.files]
        return self.rows_in(spark, files).select(*projected("history", columns).names)

    def and_not_in_it(
        self, spark: "SparkSession", rows: "DataFrame", manifests: Iterable[Manifest]
    ) -> "DataFrame":
        """Return those of *rows*, history of one store, that *manifests* of it do not tell of.

        They have sequences and times, and are told by their ids as well where they have them.
        """
        files = [name for one in manifests for name in one.files]
        if not files:
            return rows
        told_by: list[str] = [name for name in ROW if name != "id" or name in rows.columns]
        return rows.join(self.rows_in(spark, files).select(*told_by), told_by, "left_anti")

    def rows_in(self, spark: "SparkSession", files: Sequence[str]) -> "DataFrame":
        """Return the history that *files* hold, whether it counts or not."""
        if not files:
            return spark.createDataFrame([], ddl(HISTORY))
        reader = spark.read.schema(ddl(HISTORY)).option("basePath", str(self.folder / "data"))
        return reader.parquet(*(str(self.folder / name) for name in files)).select(*HISTORY.names)

    def _claim(self, run_id: str) -> Path:
        return self._manifests / f"{run_id}.claim"

    def _require(self) -> None:
        if not self.is_there:
            missing = self._manifests if self.folder.is_dir() else self.folder
            raise ConfigurationError(
                f"there is no archive in {self.folder}: the folder {missing} is missing; mount its "
                "disk, or give the folder that `timeoutmgr pipeline archive --to` wrote into"
            )


def manifests_of(store: Store, manifests: Sequence[Manifest]) -> tuple[Manifest, ...]:
    """Return those of *manifests* that are of *store*: others may archive into the same folder."""
    ours = those_of(store, {one.store for one in manifests}) if manifests else frozenset()
    return tuple(one for one in manifests if one.store in ours)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _loaded(path: Path) -> Manifest:
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise _no_manifest(path, f"not JSON ({error})") from error
    if not isinstance(found, dict):
        raise _no_manifest(path, f"a {type(found).__name__}")
    if {*found} != _FIELDS:
        raise _no_manifest(path, ", ".join(sorted(found)))
    return Manifest(**(found | {"files": tuple(found["files"])}))


def _no_manifest(path: Path, got: str) -> ConfigurationError:
    return ConfigurationError(
        f"{path} is no manifest that this version of timeoutmgr reads: expected "
        f"{', '.join(sorted(_FIELDS))}, got {got}; use the version that wrote it, or restore it"
    )
