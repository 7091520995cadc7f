"""``archive``: write a store's history into a history table, then remove old events.

The job needs no Spark. A run that dies leaves nothing to repair: commits are atomic, and a run
removes only events that it has read back from the table.
"""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Connection,
    any_,
    delete,
    func,
    literal,
    select,
)
from sqlalchemy.sql.elements import literal_column

from timeoutmgr.contracts import Clock
from timeoutmgr.message.instants import Micros, duration_micros, from_micros
from timeoutmgr.pipeline.errors import CommitConflict, RunConflict
from timeoutmgr.pipeline.jobs.run_context import Progress, new_run_id, silent
from timeoutmgr.pipeline.jobs.stream import StreamPosition, StreamRuns, writer_lock
from timeoutmgr.pipeline.lake.message_snapshots import pending_table, write_pending
from timeoutmgr.pipeline.lake.places import open_table
from timeoutmgr.pipeline.lake.table import ROW
from timeoutmgr.pipeline.lake.writer import (
    SequenceWriter,
    TransactionWriter,
    held_of,
    proved,
    slices,
)
from timeoutmgr.pipeline.ledger import JobLedger, JobRunState, exclusive_lock
from timeoutmgr.pipeline.options import ArchiveOptions
from timeoutmgr.pipeline.readers.transactions import (
    between,
    index_transactions,
    oldest_transaction,
    require_same,
)
from timeoutmgr.pipeline.stores import Store, identity, open_store
from timeoutmgr.pipeline.writers.store_writer import pages

KIND: Final = "archive"
_BOUND_AT_ONCE: Final = 10_000
"""Values in a statement; SQLite allows 32,766."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveReport:
    """The events written into the table, and the old events *removed* from the store.

    *held* old events stay in the store: a stream has not read them yet, or the table lacks them.
    *compacted* small files of the tables were merged. *pending* counts complete pending messages.
    """

    run_id: str
    cutoff: Micros
    written: int
    removed: int
    held: int
    compacted: int
    pending: int | None = None

    def document(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return asdict(self) | {"cutoff": from_micros(self.cutoff).isoformat()}


def archive(options: ArchiveOptions, *, clock: Clock, progress: Progress = silent) -> ArchiveReport:
    """Bring the table up to date, then remove old events from the store.

    While a stream writes into the same table, this job only removes events. On PostgreSQL the table
    gets all events, on other databases the old events.

    Raises ArchiveMismatch if an event differs in the table, and RunConflict while another process
    archives the same store.
    """
    store = open_store(options.store)
    store.require_tables()
    ledger = JobLedger(store, clock)
    with exclusive_lock(store, f"archive {identity(store)}"):
        run_id = new_run_id(KIND)
        with ledger.at_work(run_id, KIND, {"to": options.to, "purge": options.purge}):
            report = _Archive(store, options, clock, progress, ledger).run(run_id)
        ledger.move(run_id, JobRunState.COMPLETED, report.document())
        return report


class _Archive:
    def __init__(
        self,
        store: Store,
        options: ArchiveOptions,
        clock: Clock,
        progress: Progress,
        ledger: JobLedger,
    ) -> None:
        self._store, self._options, self._progress = store, options, progress
        self._streams = StreamRuns(ledger)
        self._name = identity(store)
        self._table = open_table(options.to)
        self._tables = [self._table]
        now = store.database.now(clock)
        self._now = now
        self._cutoff = now - duration_micros(options.older_than)
        self._today = from_micros(now).date()

    def run(self, run_id: str) -> ArchiveReport:
        """Write, remove and compact."""
        written, pending, is_writer = 0, None, True
        with ExitStack() as stack:
            try:
                stack.enter_context(writer_lock(self._store, self._table.place))
            except RunConflict:
                is_writer = False
                self._progress("another process writes the table: nothing is written by this one")
            if self._options.with_pending:
                # Before the history: a message sent in between is in both, and counts as sent.
                pending = self._write_pending(is_writer=is_writer)
            written = self._write() if is_writer else 0
            removed, held = self._purge() if self._options.purge else (0, 0)
            compacted = self._compact()
        return ArchiveReport(
            run_id=run_id,
            cutoff=self._cutoff,
            written=written,
            removed=removed,
            held=held,
            compacted=compacted,
            pending=pending,
        )

    def _write_pending(self, *, is_writer: bool) -> int:
        if not is_writer and not self._store.is_postgresql:
            raise RunConflict(
                "another process writes the history table, which would lack what was sent since; "
                "archive pending messages once it has ended"
            )
        table = pending_table(self._options.to)
        self._tables.append(table)
        if self._store.is_postgresql:
            # Check before the older snapshot is removed: it may be the last data of another server.
            now, any_timeline = oldest_transaction(self._store), self._options.any_timeline
            for one in (self._table, table):
                require_same(one.marks(self._name), now, any_timeline=any_timeline)
        self._progress("writing pending messages")
        return write_pending(self._store, table, self._now)

    def _write(self) -> int:
        writer, written = self._writer(), 0
        self._progress("writing")
        while (count := writer.step()) is not None:
            written += count
            self._progress(f"written {written}")
        return written

    def _writer(self) -> TransactionWriter | SequenceWriter:
        most = self._options.batch_events
        if not self._store.is_postgresql:
            # A restore must know every id that was used until now.
            cutoff = self._now + 1 if self._options.with_pending else self._cutoff
            return SequenceWriter(store=self._store, table=self._table, most=most, cutoff=cutoff)
        index_transactions(self._store, progress=self._progress)
        return TransactionWriter(
            store=self._store,
            table=self._table,
            most=most,
            any_timeline=self._options.any_timeline,
            last=oldest_transaction(self._store).xid,
        )

    def _purge(self) -> tuple[int, int]:
        """Remove old events that the table has; return how many were removed, how many stay."""
        self._table.refresh()
        self._progress("removing")
        removed = stay = 0
        for rows in slices(self._store, self._cutoff):
            safe = proved(rows, held_of(self._table, self._name, rows))
            deleted = sum(self._remove(some) for some in pages(safe, self._options.batch))
            removed, stay = removed + deleted, stay + rows.num_rows - deleted
            self._progress(f"removed {removed}")
        if stay:
            self._progress(self._held(stay))
        return removed, stay

    def _remove(self, rows: Sequence[tuple[int, str, Micros]]) -> int:
        def work(connection: Connection) -> int:
            position = self._low_water(connection)
            return sum(
                self._delete(connection, few, position) for few in pages(rows, _BOUND_AT_ONCE)
            )

        return self._store.database.run(work)

    def _delete(
        self,
        connection: Connection,
        rows: Sequence[tuple[int, str, Micros]],
        position: StreamPosition | None,
    ) -> int:
        """Remove those of *rows* that still exist; another row may have their sequence by now.

        Compare in Python: databases differ in how they look up rows by many pairs.
        """
        history = self._store.tables.history
        wanted = select(*(history.c[name] for name in ROW)).where(self._among(rows))
        same = {tuple(row) for row in connection.execute(wanted)} & {*rows}
        doomed = delete(history).where(self._among(same))
        if position is not None:
            doomed = doomed.where(literal_column(f"xid < CAST('{position.xid:d}' AS xid8)"))
        return connection.execute(doomed).rowcount if same else 0

    def _among(self, rows: Iterable[tuple[int, str, Micros]]) -> ColumnElement[bool]:
        sequence, numbers = self._store.tables.history.c.sequence, [row[0] for row in rows]
        if self._store.is_postgresql:  # one array: a statement with thousands of values is slow
            return sequence == any_(literal(numbers, ARRAY(BigInteger)))
        return sequence.in_(numbers)

    def _low_water(self, connection: Connection) -> StreamPosition | None:
        # A stream into this table does not miss events that the table is proved to have.
        return self._streams.low_water(connection, but=self._table.place)

    def _held(self, rows: int) -> str:
        with self._store.database.read() as connection:
            position = self._low_water(connection)
            lost = self._written_before(connection) if position is None else 0
        if lost:
            return (
                f"{rows} old events stay in the store: {self._table.place} has lost {lost} of "
                "them; bring back the version that had them, or archive to another place"
            )
        behind = "the history table has not got them yet"
        if position is not None:
            behind = f"{position.described()} has not read them yet"
        return f"{rows} old events stay in the store, since {behind}; the next run removes them"

    def _written_before(self, connection: Connection) -> int:
        """Return how many old events of the store precede the table's mark: the table lost them.

        Called after the events that the table has were removed. Without transactions there is no
        such mark, and a writer adds the events that the table lacks.
        """
        xid = self._table.marks(self._name).get("xid")
        if xid is None:
            return 0
        history = self._store.tables.history
        old = select(func.count()).select_from(history).where(history.c.at < self._cutoff)
        return int(connection.execute(old.where(*between(0, xid))).scalar_one())

    def _compact(self) -> int:
        """Merge small files of past days, unless another writer commits meanwhile."""
        replaced = 0
        for table in self._tables:
            with suppress(CommitConflict):
                table.refresh()
                replaced += table.compact(self._today)
        return replaced
