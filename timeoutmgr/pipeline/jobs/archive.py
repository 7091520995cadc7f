"""``archive``: old history to Parquet files, proved to be there, and then out of the store.

A crash before the manifest leaves files that do not count, which the next run sweeps. A crash after
the manifest leaves rows in both places, which the next run removes from the store first.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Observation
from pyspark.sql import functions as f

from timeoutmgr.contracts import Clock
from timeoutmgr.message.instants import Micros, duration_micros, from_micros
from timeoutmgr.pipeline.errors import ArchiveMismatch, RunConflict
from timeoutmgr.pipeline.jobs.archive_runs import KIND, ArchiveRuns, RemovedRows
from timeoutmgr.pipeline.jobs.archived import Archive, Manifest, manifests_of
from timeoutmgr.pipeline.jobs.run_context import Progress, new_run_id, silent, worker_errors
from timeoutmgr.pipeline.ledger import JobLedger, exclusive_lock
from timeoutmgr.pipeline.options import ArchiveOptions
from timeoutmgr.pipeline.registration import register_source
from timeoutmgr.pipeline.snapshots import snapshot
from timeoutmgr.pipeline.spark.session import in_utc
from timeoutmgr.pipeline.stores import Store, identity, open_store
from timeoutmgr.pipeline.views import HISTORY, Selection
from timeoutmgr.pipeline.writers.archive_files import FORMAT, UNFINISHED, ArchiveFiles

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_BITS: Final = 21
_BYTES_AT_ONCE: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
_ANY_NUMBER: Final = str(2**31 - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveReport:
    """The rows archived now, and the rows *removed* from the store, by this run or for *resumed*.

    *held* rows are archived and stay in the store, because a stream has not read them yet.

    *resumed* are runs that died at the removal, or had kept their rows. *swept* are runs that died
    before their files counted.
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
    """Finish the work of earlier runs, then archive.

    Raises ArchiveMismatch if the files differ from the rows that were read; then nothing is
    removed. Raises RunConflict while another process archives the same store, whose run would look
    dead; and, before any work, if the run id belongs to another store in that folder.
    """
    store = open_store(options.store)
    store.require_tables()
    with exclusive_lock(store, f"archive {identity(store)}"):
        return _archive(spark, store, options, clock, progress)


def _archive(
    spark: "SparkSession",
    store: Store,
    options: ArchiveOptions,
    clock: Clock,
    progress: Progress,
) -> ArchiveReport:
    target = Archive(options.to)
    runs = ArchiveRuns(store, target, JobLedger(store, clock))
    run_id = options.run_id or new_run_id(KIND)
    runs.require_own(run_id)
    in_utc(spark)
    progress("looking for runs that were not finished")
    swept = runs.sweep(but=run_id)
    target.create()
    removed, resumed = RemovedRows(), []
    for run in runs.left_in_store(_cutoff(store, options, clock) if options.purge else None):
        removed += runs.remove(run, progress)
        resumed.append(run.run_id)
    if runs.has_ended(run_id):
        raise RunConflict(
            f"run {run_id!r} has archived into {target.folder} already; give another run id to "
            "archive what is old by now"
        )
    run = runs.begin(run_id, batch=options.batch, purge=options.purge)
    with worker_errors():
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
    shutil.rmtree(folder, ignore_errors=True)  # of a dead run of that id, which never counted
    # If rows are copied for the snapshot, copy only rows that are old enough by now.
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
        raise ArchiveMismatch(
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


def write_files(spark: "SparkSession", rows: "DataFrame", folder: Path) -> None:
    """Write *rows*, see ``ArchiveFiles``; then all files in *folder* count.

    A task that outlives the write, since Spark took it for dead, can still leave files there, under
    names that no reader reads.
    """
    register_source(spark, ArchiveFiles)
    before = spark.conf.get(_BYTES_AT_ONCE)
    # Spark would add up the bytes of a batch anew for each row. These rows are short, and a batch
    # has no more than some thousands of them.
    spark.conf.set(_BYTES_AT_ONCE, _ANY_NUMBER)
    try:
        rows.write.format(FORMAT).mode("append").save(str(folder))
    finally:
        spark.conf.set(_BYTES_AT_ONCE, str(before))
    for path in folder.rglob(f"{UNFINISHED}*.parquet"):
        path.unlink()


def _by_day(rows: "DataFrame") -> "DataFrame":
    """Return *rows* with the rows of an endpoint and day in sequence, in the same task."""
    dated = rows.withColumn("event_date", f.to_date("at"))
    # By one number, which is sorted by its digits. Where two have the same there are more files.
    return dated.repartition("endpoint", "event_date").sortWithinPartitions(
        f.xxhash64("endpoint", "event_date")
    )


@dataclass(frozen=True, slots=True)
class _Sums:
    """How many rows, and the sum of a digest of each: in any order, and a row twice counts."""

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
