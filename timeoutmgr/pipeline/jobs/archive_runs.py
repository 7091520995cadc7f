"""The runs of a store that archive into a folder: the owner of a run id, and unfinished work."""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeVar

from sqlalchemy import Connection, delete, select
from sqlalchemy.sql.elements import literal_column

from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import Micros
from timeoutmgr.pipeline.errors import RunConflict
from timeoutmgr.pipeline.jobs.archived import ROW, Archive, ArchivedRow, ArchiveOwner
from timeoutmgr.pipeline.jobs.run_context import Progress
from timeoutmgr.pipeline.jobs.stream_runs import StreamPosition, StreamRuns
from timeoutmgr.pipeline.ledger import JobLedger, JobRun, JobRunState
from timeoutmgr.pipeline.stores import Store, identity, names_of_store

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
