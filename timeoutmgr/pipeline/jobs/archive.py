"""``archive``: old history to Parquet files, proved to be there, and then out of the store.

A crash before the manifest leaves files that nobody counts, which the next run sweeps; one after it
leaves rows in both places, which the next run removes from the store first.
"""

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Observation
from pyspark.sql import functions as f

from timeoutmgr.contracts import Clock
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.instants import Micros, duration_micros, from_micros
from timeoutmgr.pipeline.errors import ArchiveDiffers, RunInTheWay
from timeoutmgr.pipeline.folders import folder_option
from timeoutmgr.pipeline.identity import identity
from timeoutmgr.pipeline.jobs.archive_runs import KIND, ArchiveRuns, Removed
from timeoutmgr.pipeline.jobs.archived import Archive, Manifest, manifests_of
from timeoutmgr.pipeline.jobs.running import Progress, new_run_id, silent, told_by_workers
from timeoutmgr.pipeline.ledger import Ledger, alone
from timeoutmgr.pipeline.session import in_utc
from timeoutmgr.pipeline.snapshots import snapshot
from timeoutmgr.pipeline.stores import Store, open_store
from timeoutmgr.pipeline.views import HISTORY, Selection
from timeoutmgr.pipeline.writing import write_files

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_BITS: Final = 21
_RUN_ID: Final = re.compile(r"[^/\0]{1,200}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOptions:
    """What to archive: history older than *older_than*, into the folder *to*.

    *purge* removes from the store what is archived, *batch* rows in a transaction; also what
    earlier runs archived there and left in the store, if all of it is that old.
    """

    store: str
    to: Path
    older_than: timedelta
    purge: bool = True
    batch: int = 5_000
    run_id: str | None = None

    def __post_init__(self) -> None:
        """Check every value."""
        folder_option("to", self.to)
        if self.older_than < timedelta(minutes=1):
            raise ConfigurationError(
                f"older_than is at least a minute, so that nothing is archived that is still being "
                f"written; got {self.older_than}"
            )
        if not 1 <= self.batch <= 100_000:
            raise ConfigurationError(f"batch is 1 to 100000 rows, got {self.batch}")
        if self.run_id is not None and not _RUN_ID.fullmatch(self.run_id):
            raise ConfigurationError(
                "run_id becomes the name of files: 1 to 200 characters without a slash, got "
                f"{self.run_id[:80]!r}; give another"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveReport:
    """What was archived now, and what was *removed* from the store, by this run or for *resumed*.

    *held* rows are archived and stay in the store, because a stream has not read them yet.

    *resumed* are runs that died at it, or had kept it. *swept* are runs that had died before what
    they wrote counted.
    """

    run_id: str
    cutoff: Micros
    rows: int
    files: int
    removed: int
    held: int
    resumed: tuple[str, ...]
    swept: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "run_id": self.run_id,
            "cutoff": from_micros(self.cutoff).isoformat(),
            "rows": self.rows,
            "files": self.files,
            "removed": self.removed,
            "held": self.held,
            "resumed": [*self.resumed],
            "swept": [*self.swept],
        }


def archive(
    spark: "SparkSession",
    options: ArchiveOptions,
    *,
    clock: Clock,
    progress: Progress = silent,
) -> ArchiveReport:
    """Archive, after what earlier runs left undone is done.

    Raises ArchiveDiffers where the files do not hold what was read; nothing is removed then.
    Raises RunInTheWay while another archives the same store: it would be taken for dead. And
    where the run id is another store's in that folder, before anything is done.
    """
    store = open_store(options.store)
    store.require_tables()
    with alone(store, f"archive {identity(store)}"):
        return _archive(spark, store, options, clock, progress)


def _archive(
    spark: "SparkSession",
    store: Store,
    options: ArchiveOptions,
    clock: Clock,
    progress: Progress,
) -> ArchiveReport:
    target = Archive(options.to)
    runs = ArchiveRuns(store, target, Ledger(store, clock))
    run_id = options.run_id or new_run_id(KIND)
    runs.require_own(run_id)
    in_utc(spark)
    progress("looking for runs that were not finished")
    swept = runs.sweep(but=run_id)
    target.create()
    removed, resumed = Removed(), []
    for run in runs.left_in_store(_cutoff(store, options, clock) if options.purge else None):
        removed += runs.remove(run, progress)
        resumed.append(run.run_id)
    if runs.has_ended(run_id):
        raise RunInTheWay(
            f"run {run_id!r} has archived into {target.folder} already; give another run id to "
            "archive what is old by now"
        )
    run = runs.begin(run_id, batch=options.batch, purge=options.purge)
    with told_by_workers():
        manifest = _write(spark, store, target, options, run_id, clock, progress)
    progress("publishing")
    target.publish(manifest)
    progress("published")
    runs.published(run)
    if options.purge:
        removed += runs.remove(run, progress)
    report = ArchiveReport(
        run_id=run_id,
        cutoff=manifest.cutoff,
        rows=manifest.rows,
        files=len(manifest.files),
        removed=removed.rows,
        held=removed.held,
        resumed=tuple(resumed),
        swept=tuple(swept),
    )
    runs.ledger.note(run_id, report.document())
    return report


def _cutoff(store: Store, options: ArchiveOptions, clock: Clock) -> Micros:
    return store.database.now(clock) - duration_micros(options.older_than)


def _write(
    spark: "SparkSession",
    store: Store,
    target: Archive,
    options: ArchiveOptions,
    run_id: str,
    clock: Clock,
    progress: Progress,
) -> Manifest:
    folder = target.data_of(run_id)
    shutil.rmtree(folder, ignore_errors=True)  # of a run of that id that died, and never counted
    # Where rows are copied for the snapshot, only those that are old enough by now.
    which = Selection(at_before=_cutoff(store, options, clock))
    purged = target.purged()
    with snapshot(store, views=("history",), which=which, clock=clock) as moment:
        progress("writing")
        old = moment.read(spark, "history", columns=HISTORY.names, which=which)
        ours = manifests_of(store, target.manifests())
        in_both = [one for one in ours if one.run_id not in purged]
        rows = target.and_not_in_it(spark, old, in_both)
        seen = Observation()
        write_files(spark, _by_day(rows.observe(seen, *_columns())), folder)
        read = _Sums.of(seen.get)
    progress("verifying")
    files = target.files_of(run_id)
    written = _written(spark, target, files)
    if read != written:
        raise ArchiveDiffers(
            f"{folder} holds {written}, and {read} were read from the store; nothing was removed, "
            "run it again"
        )
    return Manifest(
        run_id=run_id,
        store=identity(store),
        cutoff=which.at_before or 0,
        rows=read.rows,
        checksum=str(read.sum),
        files=files,
    )


def _by_day(rows: "DataFrame") -> "DataFrame":
    """Return *rows* so that those of an endpoint and day come one after the other, in one task."""
    dated = rows.withColumn("event_date", f.to_date("at"))
    # By one number, which is sorted by its digits. Where two have the same there are more files.
    return dated.repartition("endpoint", "event_date").sortWithinPartitions(
        f.xxhash64("endpoint", "event_date")
    )


@dataclass(frozen=True, slots=True)
class _Sums:
    """How many rows, and the sum of a digest of each: in no order, and one that is twice counts."""

    rows: int
    sum: int

    @classmethod
    def of(cls, found: Mapping[str, int]) -> "_Sums":
        """Return the sums that :func:`_columns` found."""
        return cls(found["rows"], sum(found[f"part{n}"] << (_BITS * n) for n in range(3)))

    def __str__(self) -> str:
        """Return both, for people."""
        return f"{self.rows} rows with the checksum {self.sum}"


def _columns() -> "Sequence[Column]":
    # In three parts of some bits each, whose sums fit in 64: Spark's only longer type is a decimal.
    digest, mask = f.xxhash64(*HISTORY.names), (1 << _BITS) - 1
    low = digest.bitwiseAND(mask)
    middle = f.shiftright(digest, _BITS).bitwiseAND(mask)
    parts = (low, middle, f.shiftright(digest, 2 * _BITS))
    sums = (f.coalesce(f.sum(part), f.lit(0)).alias(f"part{n}") for n, part in enumerate(parts))
    return (f.count(f.lit(1)).alias("rows"), *sums)


def _written(spark: "SparkSession", target: Archive, files: Sequence[str]) -> _Sums:
    found = target.rows_in(spark, files).agg(*_columns()).first()
    assert found is not None, "an aggregate of everything is one row"
    return _Sums.of(found.asDict())
