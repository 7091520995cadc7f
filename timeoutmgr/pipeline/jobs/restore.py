"""``restore``: restore history, used ids and pending timeouts from a lake into a store.

The job first writes history and the tombstones of used ids, then the pending timeouts whose ids are
free: a message that was sent after the snapshot is not stored again. Each step writes only data
that the store lacks: a run that died leaves nothing to repair, and the next run completes it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy.exc import IntegrityError

from timeoutmgr.contracts import Clock
from timeoutmgr.errors import ConfigurationError, StorageUnavailable
from timeoutmgr.message.instants import Micros
from timeoutmgr.pipeline.jobs.run_context import Progress, new_run_id, silent
from timeoutmgr.pipeline.lake.message_snapshots import (
    PENDING_WRITTEN,
    lake_tables,
    newest_snapshot,
    require_store,
    stores_in,
)
from timeoutmgr.pipeline.lake.table import STORED, HistoryTable, Where
from timeoutmgr.pipeline.lake_options import RestoreOptions
from timeoutmgr.pipeline.ledger import JobLedger, JobRunState, exclusive_lock
from timeoutmgr.pipeline.readers.transactions import oldest_transaction
from timeoutmgr.pipeline.stores import Store, identity, open_store
from timeoutmgr.pipeline.views import HISTORY, TO_STORE
from timeoutmgr.pipeline.writers.history_writer import ENDS, HistoryRestore, plain
from timeoutmgr.pipeline.writers.loader import Loader
from timeoutmgr.pipeline.writers.store_writer import pages

KIND: Final = "restore"
_DAY: Final = 86_400_000_000
_HELD: Final = pa.schema([PENDING_WRITTEN.field(name) for name in ("endpoint", "id", "as_of")])

Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreCounts:
    """Total numbers of events, used ids and pending timeouts, and how many were new to the store.

    *ended* timeouts were sent or cancelled after the moment of the snapshot, and not restored.
    """

    run_id: str
    of_store: str
    events: int
    new_events: int
    used_ids: int
    new_used_ids: int
    pending: int
    new_pending: int
    ended: int

    def document(self) -> dict[str, Any]:
        """Return the counts for JSON."""
        return asdict(self)


def restore(options: RestoreOptions, *, clock: Clock, progress: Progress = silent) -> RestoreCounts:
    """Write into the store all data of the lake that it lacks.

    Stop the endpoints of the archived store first, otherwise both stores send the messages. Raises
    RunConflict while another process restores into the same store.
    """
    store = open_store(options.store)
    store.require_tables()
    ledger, run_id = JobLedger(store, clock), new_run_id(KIND)
    job = _Restore(store, options, progress, run_id)
    if options.dry_run:
        return job.run()
    with exclusive_lock(store, f"restore {identity(store)}"):
        with ledger.at_work(run_id, KIND, {"lake": options.lake, "of": job.name}):
            report = job.run()
        ledger.move(run_id, JobRunState.COMPLETED, report.document())
        return report


class _Restore:
    def __init__(
        self, store: Store, options: RestoreOptions, progress: Progress, run_id: str
    ) -> None:
        self._store, self._options, self._progress = store, options, progress
        self._run_id = run_id
        tables = self._table, self._pending = lake_tables(options.lake)
        self.name = _archived_store(tables, options.of_store, identity(store))
        self._writer = HistoryRestore(store)

    def run(self) -> RestoreCounts:
        """Restore all data; with *dry_run*, only count it."""
        events, new_events = self._restore_history() if self._options.history else (0, 0)
        held = self._held()
        ends = self._ends(held)
        new_used = self._close(ends)
        used = {(row["endpoint"], row["id"]) for row in ends}
        new_pending = self._load([key for key in held if key not in used])
        return RestoreCounts(
            run_id=self._run_id,
            of_store=self.name,
            events=events,
            new_events=new_events,
            used_ids=len(ends),
            new_used_ids=new_used,
            pending=len(held),
            new_pending=new_pending,
            ended=len(held.keys() & used),
        )

    def _restore_history(self) -> tuple[int, int]:
        if not self._options.dry_run:
            self._writer.reserve(self._last_sequence())
        count = new = 0
        for rows in self._events(self._restored_columns()):
            count += len(rows)
            new += self._written(rows, self._writer.missing, self._writer.put)
            self._progress(f"events {count}")
        return count, new

    def _restored_columns(self) -> pa.Schema:
        """Return the columns of events, with their transactions if this store's server has them.

        With new transactions the next ``archive`` would write the events into the table again, and
        a reader of both would see them twice.
        """
        is_home = self._store.is_postgresql and self.name == identity(self._store)
        if is_home and oldest_transaction(self._store).is_counted_as(self._table.marks(self.name)):
            return pa.schema([*HISTORY, STORED.field("xid")])
        return HISTORY

    def _written(
        self, rows: Any, missing: Callable[..., Any], write: Callable[..., int], tries: int = 5
    ) -> int:
        """Return how many of *rows* were missing; *write* them, unless this is a dry run."""
        if self._options.dry_run:
            with self._store.database.read() as connection:
                return len(missing(connection, rows))
        try:
            return self._store.database.run(lambda connection: write(connection, rows))
        except StorageUnavailable as error:
            if tries == 1 or not isinstance(error.__cause__, IntegrityError):
                raise
        # An endpoint may store such a row after the search for it: search again.
        return self._written(rows, missing, write, tries - 1)

    def _last_sequence(self) -> int:
        where = Where(store=self.name)
        found = self._table.files(where).read(["sequence"], where)
        return max((pc.max(batch["sequence"]).as_py() for batch in found), default=1)

    def _events(self, columns: pa.Schema) -> Iterator[list[dict[str, Any]]]:
        """Yield the archived events of the store in batches."""
        where = Where(store=self.name)
        for batch in self._table.files(where).read(columns.names, where):
            for start in range(0, batch.num_rows, self._options.batch):
                yield plain(batch.slice(start, self._options.batch).cast(columns))

    def _held(self) -> dict[Key, Micros]:
        """Return the timeouts of the snapshot, each with the moment of the snapshot."""
        return {
            (row["endpoint"], row["id"]): row["as_of"]
            for batch in newest_snapshot(self._pending, self.name, _HELD)
            for row in plain(batch)
        }

    def _ends(self, held: dict[Key, Micros]) -> list[dict[str, Any]]:
        """Return the last event of each used-up id, in the order of ids."""
        names = ("sequence", "id", "event", "at", "due", "endpoint")
        last: dict[Key, dict[str, Any]] = {}
        for rows in self._events(pa.schema([HISTORY.field(name) for name in names])):
            for row in rows:
                key = (row["endpoint"], row["id"])
                known = last.get(key)
                if known is None or (known["at"], known["sequence"]) < (row["at"], row["sequence"]):
                    last[key] = row
        return [
            row
            for key, row in sorted(last.items())
            if row["event"] in ENDS and not _is_open_again(row, held.get(key))
        ]

    def _close(self, ends: list[dict[str, Any]]) -> int:
        new = count = 0
        for some in pages(ends, self._options.batch):
            new += self._written(some, self._writer.unused, self._writer.close)
            count += len(some)
            self._progress(f"used ids {count}")
        return new

    def _load(self, left: Sequence[Key]) -> int:
        self._progress("pending messages")
        if self._options.dry_run:
            rows = [{"endpoint": endpoint, "id": id_} for endpoint, id_ in left]
            with self._store.database.read() as connection:
                return len(self._writer.unused(connection, rows))
        loader = Loader(self._store, run_id=self._run_id)
        pending = newest_snapshot(self._pending, self.name, TO_STORE)
        return loader.load(pending, self._options.batch)


def _is_open_again(end: dict[str, Any], as_of: Micros | None) -> bool:
    """Return whether a timeout of the snapshot at *as_of* is open in spite of its *end*.

    A migrated timeout may come back. Any other end counts, since an event takes its time before its
    commit, unless it was long before the snapshot: then the id was free, and used again.
    """
    if as_of is None:
        return False
    margin = 0 if end["event"] == "migrated" else _DAY
    return bool(end["at"] < as_of - margin)


def _archived_store(tables: Sequence[HistoryTable], given: str | None, own: str) -> str:
    """Return *given*, or *own* if the lake has that store, or the only store of the lake."""
    if given is not None:
        return require_store(given, *tables)
    found = stores_in(*tables)
    if own in found or not found:
        return own
    if len(found) > 1:
        raise ConfigurationError(
            f"the lake has the stores {', '.join(sorted(found))}; name one with --of"
        )
    return found.pop()
