"""``archive``: old history to Parquet files, proved to be there, and then out of the store.

A crash before the manifest leaves files that do not count, which the next run sweeps. A crash after
the manifest leaves rows in both places, which the next run removes from the store first.
"""

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyspark.sql import Observation
from pyspark.sql import functions as f
from sqlalchemy import Connection, delete, select
from sqlalchemy.sql.elements import literal_column

from timeoutmgr.contracts import Clock
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import Micros, duration_micros, from_micros
from timeoutmgr.pipeline.errors import ArchiveMismatch, RunConflict
from timeoutmgr.pipeline.jobs.archived import (
    ROW,
    Archive,
    ArchivedRow,
    ArchiveOwner,
    Manifest,
    manifests_of,
)
from timeoutmgr.pipeline.jobs.run_context import Progress, new_run_id, silent, worker_errors
from timeoutmgr.pipeline.jobs.stream import StreamPosition, StreamRuns
from timeoutmgr.pipeline.ledger import JobLedger, JobRun, JobRunState, exclusive_lock
from timeoutmgr.pipeline.options import ArchiveOptions
from timeoutmgr.pipeline.registration import register_source
from timeoutmgr.pipeline.snapshots import snapshot
from timeoutmgr.pipeline.spark.session import in_utc
from timeoutmgr.pipeline.stores import Store, identity, names_of_store, open_store
from timeoutmgr.pipeline.views import HISTORY, Selection
from timeoutmgr.pipeline.writers.archive_files import FORMAT, UNFINISHED, ArchiveFiles

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# --- the runs of a store that archive into a folder: the owner of a run id, and unfinished work ---

KIND: Final = "archive"
_BOUND_AT_ONCE: Final = 10_000
"""PostgreSQL takes 65,535 values in a statement, SQLite may take 32,766."""

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class RemovedRows:
    """How many *rows* were removed from a store, and how many were *held* for streams."""

    rows: int = 0
    held: int = 0

    def __add__(self, other: "RemovedRows") -> "RemovedRows":
        """Return both together."""
        return RemovedRows(self.rows + other.rows, self.held + other.held)


@dataclass(frozen=True, slots=True)
class ArchiveRuns:
    """The runs of *store*, which its *ledger* has, that archive into *target*.

    Other stores may archive there too, and give the same run ids: by the date, say.
    """

    store: Store
    target: Archive
    ledger: JobLedger

    def require_own(self, run_id: str) -> None:
        """Raise RunConflict if the id belongs to another store; it may be free."""
        owner = self._other_owner(run_id, self.ledger.find(run_id))
        if owner is not None:
            raise self.target.id_conflict(run_id, owner)

    def sweep(self, *, but: str) -> list[str]:
        """Settle runs that died while they wrote: published, or aborted with their files removed.

        Return the aborted runs; the run *but* is about to be written anew. Raises
        ConfigurationError if the rows of a run are to be removed from the store, and the run is
        not in the archive.
        """
        swept = []
        for run in self._runs(JobRunState.PUBLISHED):
            # Before ids were claimed, the manifest of another store was taken for the manifest of
            # such a run.
            if self._other_owner(run.run_id, run) is not None:
                self.ledger.move(run.run_id, JobRunState.ABORTED)
                swept.append(run.run_id)
            elif not self.target.is_published(run.run_id):
                raise ConfigurationError(
                    f"run {run.run_id!r} wrote into the archive {self.target.folder} rows that "
                    "the store still has, and its manifest is missing; nothing was "
                    "removed. Mount the disk, or restore it; if it is lost, archive into another "
                    "folder"
                )
        # Of a disk that is not mounted nothing can be said.
        for run in self._runs(JobRunState.RUNNING) if self.target.is_there else []:
            is_own = self._other_owner(run.run_id, run) is None
            if is_own and self.target.is_published(run.run_id):
                self.published(run)
            elif run.run_id != but:
                if is_own:
                    shutil.rmtree(self.target.data_of(run.run_id), ignore_errors=True)
                self.ledger.move(run.run_id, JobRunState.ABORTED)
                swept.append(run.run_id)
        return swept

    def left_in_store(self, cutoff: Micros | None) -> list[JobRun]:
        """Return the runs whose rows are in both places, and are to be in the archive alone.

        With *cutoff* also the runs whose rows were kept, if all rows are from before it.
        """
        found = self._runs(JobRunState.PUBLISHED)
        if cutoff is None:
            return found
        purged = self.target.purged()
        kept = (
            run
            for run in self._runs(JobRunState.COMPLETED)
            if not run.parameters["purge"] and run.run_id not in purged
        )
        return found + [
            run
            for run in kept
            if self.target.is_published(run.run_id)
            and self._other_owner(run.run_id, run) is None
            and self.target.manifest(run.run_id).cutoff <= cutoff
        ]

    def has_ended(self, run_id: str) -> bool:
        """Return whether a run of that id, which is no other store's, is not to be written anew.

        Its batches are done in the ledger, even where its archive was thrown away.
        """
        ended = {run.run_id for run in self._runs(JobRunState.COMPLETED)}
        return run_id in ended or self.target.is_published(run_id)

    def begin(self, run_id: str, *, batch: int, purge: bool) -> JobRun:
        """Return the run, begun now or before; it has the id to itself from here on.

        Raises RunConflict where another store was faster, or it was begun with other terms.
        """
        terms = {"to": self._place, "batch": batch, "purge": purge}
        run = self.ledger.begin(run_id, KIND, terms)
        # Running before it is claimed: no run would sweep an id that is claimed and unknown here.
        self.ledger.move(run_id, JobRunState.RUNNING)  # it may have been swept before
        try:
            self.target.claim(run_id, ArchiveOwner(store=identity(self.store), begun=run.created))
        except RunConflict:
            self.ledger.move(run_id, JobRunState.ABORTED)
            raise
        return run

    def published(self, run: JobRun) -> None:
        """Note that the run's manifest is there: it is to be removed from the store, or done."""
        left = JobRunState.PUBLISHED if run.parameters["purge"] else JobRunState.COMPLETED
        self.ledger.move(run.run_id, left)

    def remove(self, run: JobRun, progress: Progress) -> RemovedRows:
        """Remove the archived rows of the run from the store: no other rows, and each batch once.

        Rows that a stream has not read yet stay, and the run stays published: the next run of the
        job removes them once the stream is past them.
        """
        removed = RemovedRows()
        rows = self.target.rows(run.run_id)
        for no, some in enumerate(_chunks(rows, run.parameters["batch"])):
            progress(f"removing batch {no}")

            def work(
                connection: Connection, no: int = no, some: Sequence[ArchivedRow] = some
            ) -> RemovedRows:
                return self._remove_batch(connection, run, no, some)

            removed += self.store.database.run(work)
        if removed.held:
            progress(self._held(removed.held))
            return removed
        progress("removed")
        self.target.note_purged(run.run_id)
        self.ledger.move(run.run_id, JobRunState.COMPLETED)
        return removed

    def _remove_batch(
        self, connection: Connection, run: JobRun, no: int, rows: Sequence[ArchivedRow]
    ) -> RemovedRows:
        if self.ledger.done(connection, run.run_id, no):
            return RemovedRows()
        position = StreamRuns(self.ledger).low_water(connection)
        removed = RemovedRows()
        for few in _chunks(rows, _BOUND_AT_ONCE):
            removed += self._delete(connection, few, position)
        if not removed.held:
            self.ledger.close_batch(connection, run.run_id, no, removed.rows)
        return removed

    def _delete(
        self, connection: Connection, rows: Sequence[ArchivedRow], position: StreamPosition | None
    ) -> RemovedRows:
        """Remove the present ones among *rows*; another row may bear a sequence by now.

        Compared here: databases differ in how they look up rows by many pairs.
        """
        history = self.store.tables.history
        sequences = [row[0] for row in rows]
        wanted = select(*(history.c[name] for name in ROW)).where(history.c.sequence.in_(sequences))
        same = {tuple(row) for row in connection.execute(wanted)} & {*rows}
        if not same:
            return RemovedRows()
        ours = [row[0] for row in same]
        doomed = delete(history).where(history.c.sequence.in_(ours))
        if position is not None:
            doomed = doomed.where(literal_column(f"xid < CAST('{position.xid:d}' AS xid8)"))
        removed = connection.execute(doomed).rowcount
        # Without a position a row that is removed by now was removed by retention, and is not held.
        return RemovedRows(removed, 0 if position is None else len(ours) - removed)

    def _held(self, rows: int) -> str:
        with self.store.database.read() as connection:
            position = StreamRuns(self.ledger).low_water(connection)
        behind = "a stream" if position is None else position.described()
        return (
            f"{rows} archived rows stay in the store, since {behind} has not read them yet; the "
            "next run of archive removes them after that"
        )

    def _other_owner(self, run_id: str, run: JobRun | None) -> str | None:
        """Return the other store that owns the id; None if *run* owns the id, or it is free.

        The claim of the id names its owner. A run from before there were claims is known by its
        manifest, or, if it died before that, by the ledger.
        """
        claim = self.target.claimed(run_id)
        if claim is not None:
            return None if run is not None and run.created == claim.begun else claim.store
        if self.target.is_published(run_id):
            named = self.target.manifest(run_id).store
            return None if names_of_store(self.store, [named]) else named
        is_strange = run is None and self.target.data_of(run_id).exists()
        return "another store" if is_strange else None

    def _runs(self, state: JobRunState) -> list[JobRun]:
        every = self.ledger.runs(KIND, state)
        return [run for run in every if run.parameters["to"] == self._place]

    @property
    def _place(self) -> str:
        return str(self.target.folder.resolve())


def _chunks(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    drawn = iter(items)
    while some := list(islice(drawn, size)):
        yield some


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
