"""An archive of history: Parquet files by endpoint and day, and manifests that say which count.

::

    manifests/RUN.claim      the store of the run RUN; written before its data
    manifests/RUN.json       the files of the run; they count from the moment that it is there
    manifests/RUN.purged     ... and the archived rows are not in the store any more
    data/run=RUN/endpoint=sales/event_date=2030-01-31/part-….parquet
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from timeoutmgr.contracts import Clock
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import Micros
from timeoutmgr.pipeline.errors import RunConflict
from timeoutmgr.pipeline.jobs.run_context import Progress, each_store, silent
from timeoutmgr.pipeline.snapshots import Snapshot, snapshot
from timeoutmgr.pipeline.stores import Store, names_of_store
from timeoutmgr.pipeline.views import HISTORY, INSTANT, ddl, projected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROW: Final = ("sequence", "id", "at")
"""The columns that identify a row of history.

SQLite gives a sequence again once retention has removed its row, to the same timeout as well.
"""

ArchivedRow: TypeAlias = tuple[int, str, Micros]
"""A row, by ROW."""

_ROWS_AT_ONCE: Final = 100_000
_SYNCS_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The files of one run, and their store; *checksum* is of all its rows."""

    run_id: str
    store: str
    cutoff: Micros
    rows: int
    checksum: str
    files: tuple[str, ...]


_FIELDS: Final = {field.name for field in fields(Manifest)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOwner:
    """The owner of a run id in an archive: *store*, in whose ledger the run began at *begun*.

    Two stores can have one name: the same file, or port, on two machines.
    """

    store: str
    begun: Micros


class Archive:
    """An archive in *folder*, which every worker of Spark can read and write.

    Reads raise ConfigurationError without an archive there, or for a manifest that is not valid.
    """

    def __init__(self, folder: Path) -> None:
        self.folder: Final = folder
        self._manifests: Final = folder / "manifests"

    @property
    def is_there(self) -> bool:
        """Whether the folder holds an archive; on a disk that is not mounted it does not."""
        return self._manifests.is_dir()

    def create(self) -> None:
        """Make the folders of an archive; twice is fine."""
        self._manifests.mkdir(parents=True, exist_ok=True)

    def claim(self, run_id: str, claim: ArchiveOwner) -> None:
        """Take the run id, durably and for good; twice is fine.

        Raises RunConflict if another run has the id: of several at once, a single run gets it.
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
                raise self.id_conflict(run_id, found.store if found else "another") from None
        _sync(self._manifests)

    def claimed(self, run_id: str) -> ArchiveOwner | None:
        """Return the owner of the run id; None if it is free, or older than claims."""
        try:
            return ArchiveOwner(**json.loads(self._claim(run_id).read_text()))
        except FileNotFoundError:
            return None
        except (
            TypeError,
            ValueError,
        ):  # being written, or the writer was killed; then the id stays taken
            return ArchiveOwner(store="another store", begun=-1)

    def id_conflict(self, run_id: str, store: str) -> RunConflict:
        """Return the error for a run id of another store."""
        return RunConflict(
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
        """Make the files of the run count, at once and durably.

        The manifest allows the removal of rows from the store, so all is synced before: the files,
        the folders that name them, and the manifest last.
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
        """Return whether the files of a run of that id count, of any store."""
        return (self._manifests / f"{run_id}.json").exists()

    def note_purged(self, run_id: str) -> None:
        """Note that the archived rows of the run are not in the store any more."""
        (self._manifests / f"{run_id}.purged").touch()

    def purged(self) -> frozenset[str]:
        """Return the runs whose rows are not in the store any more.

        Ask before a snapshot is taken: of a run that ends after it, the snapshot still has rows.
        """
        self._require()
        return frozenset(path.stem for path in self._manifests.glob("*.purged"))

    def manifests(self) -> list[Manifest]:
        """Return the manifests of all published runs, the oldest run first."""
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
        """Return *columns* of the history in the files of *manifests*."""
        files = [name for one in manifests for name in one.files]
        return self.rows_in(spark, files).select(*projected("history", columns).names)

    def and_not_in_it(
        self, spark: "SparkSession", rows: "DataFrame", manifests: Iterable[Manifest]
    ) -> "DataFrame":
        """Return *rows*, history of a store, without the rows in the files of its *manifests*.

        The rows have sequences and times, and are compared by their ids as well if they have ids.
        """
        files = [name for one in manifests for name in one.files]
        if not files:
            return rows
        compared: list[str] = [name for name in ROW if name != "id" or name in rows.columns]
        return rows.join(self.rows_in(spark, files).select(*compared), compared, "left_anti")

    def rows_in(self, spark: "SparkSession", files: Sequence[str]) -> "DataFrame":
        """Return the history in *files*, whether they count or not."""
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
    """Return the *manifests* of *store*: other stores may archive into the same folder."""
    ours = names_of_store(store, {one.store for one in manifests}) if manifests else frozenset()
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


# --- one moment of each store, and of the archive of their history: every event once ----------


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment of a store; *in_both* are manifests of rows that it may still have."""

    snapshot: Snapshot
    in_both: tuple[Manifest, ...]


@dataclass(frozen=True, slots=True)
class Moments:
    """Moments of *stores*, and their *archived* runs; without stores, all archived runs."""

    stores: tuple[Moment, ...]
    archive: Archive | None
    archived: tuple[Manifest, ...]

    def history(self, spark: "SparkSession", columns: Sequence[str]) -> list["DataFrame"]:
        """Return *columns*, sequence and at among them, of all events, each of them once."""
        found = []
        for one in self.stores:
            rows = one.snapshot.read(spark, "history", columns=columns)
            if self.archive is not None:
                rows = self.archive.and_not_in_it(spark, rows, one.in_both)
            found.append(rows)
        if self.archive is not None:
            found.append(self.archive.read(spark, self.archived, columns))
        return found


@contextmanager
def moments(
    names: Iterable[str],
    folder: Path | None,
    *,
    views: Sequence[str],
    columns: Sequence[str],
    clock: Clock,
    progress: Progress = silent,
) -> Iterator[Moments]:
    """Hold a moment of each store until the end of the block, beside the archive in *folder*.

    See :func:`~timeoutmgr.pipeline.snapshots.snapshot` for *views* and *columns*.
    """
    archive = Archive(folder) if folder is not None else None
    with ExitStack() as stack:
        # An archive run publishes its manifest, removes the rows, then notes that it is purged, at
        # any time during this function. So read the purged runs before the snapshots: their rows
        # are in no snapshot, while the rows of a run that is purged later may be. And read the
        # manifests after the snapshots: a run whose rows a snapshot lacks was published before it.
        # Read them once: a run that is published later has to count from a snapshot alone.
        purged = archive.purged() if archive is not None else frozenset()
        snapshots = [
            stack.enter_context(snapshot(store, views=views, columns=columns, clock=clock))
            for store in each_store(names)
        ]
        published = archive.manifests() if archive is not None else []
        ours = [manifests_of(one.store, published) for one in snapshots]
        archived_ids = {one.run_id for some in ours for one in some}
        archived = tuple(one for one in published if one.run_id in archived_ids or not snapshots)
        if len(archived) < len(published):
            others = len(published) - len(archived)
            progress(f"{others} of {len(published)} archived runs, of other stores, do not count")
        stores = (
            Moment(one, tuple(run for run in some if run.run_id not in purged))
            for one, some in zip(snapshots, ours, strict=True)
        )
        yield Moments(tuple(stores), archive, archived)
