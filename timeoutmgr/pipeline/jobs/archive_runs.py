"""The runs of a store that archive into a folder: whose an id is, and what they left undone."""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeVar

from sqlalchemy import Connection, delete, select
from sqlalchemy.sql.elements import literal_column

from timeoutmgr.errors import ConfigurationError
from timeoutmgr.instants import Micros
from timeoutmgr.pipeline.errors import RunInTheWay
from timeoutmgr.pipeline.identity import identity, those_of
from timeoutmgr.pipeline.jobs.archived import ROW, Archive, ArchivedRow, Claim
from timeoutmgr.pipeline.jobs.running import Progress
from timeoutmgr.pipeline.jobs.stream_runs import StreamMark, StreamRuns
from timeoutmgr.pipeline.ledger import Ledger, Run, RunState
from timeoutmgr.pipeline.stores import Store

KIND: Final = "archive"
_BOUND_AT_ONCE: Final = 10_000
"""PostgreSQL takes 65,535 values in a statement, SQLite may take 32,766."""

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Removed:
    """How many *rows* were removed from a store, and how many were *held* for streams."""

    rows: int = 0
    held: int = 0

    def __add__(self, other: "Removed") -> "Removed":
        """Return both together."""
        return Removed(self.rows + other.rows, self.held + other.held)


@dataclass(frozen=True, slots=True)
class ArchiveRuns:
    """The runs of *store*, which its *ledger* has, that archive into *target*.

    Other stores may archive there too, and give the same run ids: by the date, say.
    """

    store: Store
    target: Archive
    ledger: Ledger

    def require_own(self, run_id: str) -> None:
        """Raise RunInTheWay where the id is another store's; it may be nobody's."""
        owner = self._other_owner(run_id, self.ledger.find(run_id))
        if owner is not None:
            raise self.target.taken(run_id, owner)

    def sweep(self, *, but: str) -> list[str]:
        """Put right what runs left that died while they wrote: to be removed, or never there.

        Return those that were never there; the run *but* is about to be written anew. Raises
        ConfigurationError where one is to be removed from the store and is not in the archive.
        """
        swept = []
        for run in self._runs(RunState.PUBLISHED):
            # One that another store's manifest was taken for, before ids were claimed.
            if self._other_owner(run.run_id, run) is not None:
                self.ledger.move(run.run_id, RunState.ABORTED)
                swept.append(run.run_id)
            elif not self.target.is_published(run.run_id):
                raise ConfigurationError(
                    f"run {run.run_id!r} wrote into the archive {self.target.folder} what is yet "
                    "to be removed from the store, and its manifest is not there; nothing was "
                    "removed. Mount the disk, or restore it; if it is lost, archive into another "
                    "folder"
                )
        # Of a disk that is not mounted nothing can be said.
        for run in self._runs(RunState.RUNNING) if self.target.is_there else []:
            is_own = self._other_owner(run.run_id, run) is None
            if is_own and self.target.is_published(run.run_id):
                self.published(run)
            elif run.run_id != but:
                if is_own:
                    shutil.rmtree(self.target.data_of(run.run_id), ignore_errors=True)
                self.ledger.move(run.run_id, RunState.ABORTED)
                swept.append(run.run_id)
        return swept

    def left_in_store(self, cutoff: Micros | None) -> list[Run]:
        """Return the runs whose rows are in both places, and are to be in the archive alone.

        With *cutoff* also those whose rows were kept, if all of them are from before it.
        """
        found = self._runs(RunState.PUBLISHED)
        if cutoff is None:
            return found
        purged = self.target.purged()
        kept = (
            run
            for run in self._runs(RunState.COMPLETED)
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
        ended = {run.run_id for run in self._runs(RunState.COMPLETED)}
        return run_id in ended or self.target.is_published(run_id)

    def begin(self, run_id: str, *, batch: int, purge: bool) -> Run:
        """Return the run, begun now or before; it has the id to itself from here on.

        Raises RunInTheWay where another store was faster, or it was begun with other terms.
        """
        terms = {"to": self._place, "batch": batch, "purge": purge}
        run = self.ledger.begin(run_id, KIND, terms)
        # Running before it is claimed: what is claimed and not in the ledger nobody would sweep.
        self.ledger.move(run_id, RunState.RUNNING)  # it may have been swept before
        try:
            self.target.claim(run_id, Claim(store=identity(self.store), begun=run.created))
        except RunInTheWay:
            self.ledger.move(run_id, RunState.ABORTED)
            raise
        return run

    def published(self, run: Run) -> None:
        """Note that the run's manifest is there: it is to be removed from the store, or done."""
        left = RunState.PUBLISHED if run.parameters["purge"] else RunState.COMPLETED
        self.ledger.move(run.run_id, left)

    def remove(self, run: Run, progress: Progress) -> Removed:
        """Remove what the run archived from the store: exactly those rows, and each batch once.

        Rows that a stream has not read yet stay, and the run stays published: the next run of the
        job removes them once the stream is past them.
        """
        removed = Removed()
        rows = self.target.rows(run.run_id)
        for no, some in enumerate(_chunks(rows, run.parameters["batch"])):
            progress(f"removing batch {no}")

            def work(
                connection: Connection, no: int = no, some: Sequence[ArchivedRow] = some
            ) -> Removed:
                return self._remove_batch(connection, run, no, some)

            removed += self.store.database.run(work)
        if removed.held:
            progress(self._held(removed.held))
            return removed
        progress("removed")
        self.target.mark_purged(run.run_id)
        self.ledger.move(run.run_id, RunState.COMPLETED)
        return removed

    def _remove_batch(
        self, connection: Connection, run: Run, no: int, rows: Sequence[ArchivedRow]
    ) -> Removed:
        if self.ledger.done(connection, run.run_id, no):
            return Removed()
        mark = StreamRuns(self.ledger).low_water(connection)
        removed = Removed()
        for few in _chunks(rows, _BOUND_AT_ONCE):
            removed += self._delete(connection, few, mark)
        if not removed.held:
            self.ledger.close_batch(connection, run.run_id, no, removed.rows)
        return removed

    def _delete(
        self, connection: Connection, rows: Sequence[ArchivedRow], mark: StreamMark | None
    ) -> Removed:
        """Remove those of *rows* that are there; another row may bear a sequence by now.

        Compared here: databases differ in how they look up rows by many pairs.
        """
        history = self.store.tables.history
        sequences = [row[0] for row in rows]
        wanted = select(*(history.c[name] for name in ROW)).where(history.c.sequence.in_(sequences))
        same = {tuple(row) for row in connection.execute(wanted)} & {*rows}
        if not same:
            return Removed()
        ours = [row[0] for row in same]
        doomed = delete(history).where(history.c.sequence.in_(ours))
        if mark is not None:
            doomed = doomed.where(literal_column(f"xid < CAST('{mark.xid:d}' AS xid8)"))
        gone = connection.execute(doomed).rowcount
        # Without a mark a row that is gone by now was removed by retention, and is not held.
        return Removed(gone, 0 if mark is None else len(ours) - gone)

    def _held(self, rows: int) -> str:
        with self.store.database.read() as connection:
            mark = StreamRuns(self.ledger).low_water(connection)
        behind = "a stream" if mark is None else mark.described()
        return (
            f"{rows} archived rows stay in the store, since {behind} has not read them yet; the "
            "next run of archive removes them after that"
        )

    def _other_owner(self, run_id: str, run: Run | None) -> str | None:
        """Return which other store's the id is in the archive; None where it is *run*'s, or free.

        Its claim says so, of a run from before there were claims its manifest; and of one that
        died before that, whether there is one in the ledger.
        """
        claim = self.target.claimed(run_id)
        if claim is not None:
            return None if run is not None and run.created == claim.begun else claim.store
        if self.target.is_published(run_id):
            named = self.target.manifest(run_id).store
            return None if those_of(self.store, [named]) else named
        is_strange = run is None and self.target.data_of(run_id).exists()
        return "another store" if is_strange else None

    def _runs(self, state: RunState) -> list[Run]:
        every = self.ledger.runs(KIND, state)
        return [run for run in every if run.parameters["to"] == self._place]

    @property
    def _place(self) -> str:
        return str(self.target.folder.resolve())


def _chunks(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    drawn = iter(items)
    while some := list(islice(drawn, size)):
        yield some
