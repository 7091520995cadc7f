"""``erase``: erase a person's timeouts from a store and a lake, with a certificate.

Until a run ends, the ledger keeps the ids that it found. If the run dies, the next run erases them
in every place, even if the rows by which they were found no longer exist.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from itertools import chain
from typing import Any, Final, Protocol

import pyarrow as pa

from timeoutmgr.contracts import Clock
from timeoutmgr.database import Database
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import Micros, from_micros
from timeoutmgr.pipeline.jobs.run_context import Progress, new_run_id, silent
from timeoutmgr.pipeline.jobs.stream import writer_lock
from timeoutmgr.pipeline.lake.message_snapshots import (
    PENDING_WRITTEN,
    lake_tables,
    require_store,
    stores_in,
)
from timeoutmgr.pipeline.lake.table import WRITTEN, Doomed, HistoryTable, Where
from timeoutmgr.pipeline.lake.writer import tried
from timeoutmgr.pipeline.lake_options import EraseOptions
from timeoutmgr.pipeline.ledger import JobLedger, JobRunState, exclusive_lock
from timeoutmgr.pipeline.stores import Store, identity, open_store
from timeoutmgr.pipeline.writers.erasure import ERASED, Erasure, Key, PersonSelection

KIND: Final = "erase"
_KEYS: Final = "keys"
_IN_LAKE: Final = (("lake history", WRITTEN, ERASED), ("lake pending", PENDING_WRITTEN, None))
"""For each table of a lake: its name in the certificate, its columns, the event that stays."""
_ALWAYS: Final = (
    "backups and replicas of the store and of the lake",
    "history tables that --lake does not name, and the pending messages beside them",
    "messages in queues and levels of the broker, in delayed message stores or in work, journals "
    "and dead-letter queues of applications",
    "timeouts that ended before: history has neither saga ids nor headers; name them by --ids or "
    "--destinations",
    "rows of the audit, of cleared sagas and of timeoutmgr_runs, which name saga ids and labels",
    "message ids in logs and traces of programs",
)
_COPIES: Final = (
    "error copies, the journal, dead letters and awaiting copies: give --copies, or see "
    "`timeoutmgr errors delete`, `timeoutmgr deadletters delete` and `timeoutmgr journal delete`"
)
_OTHER_STORES: Final = (
    "rows in the lake of other stores, and of this store under another name: see --of"
)
_OTHER_COPIES: Final = (
    "error copies in other error queues, and all copies of other nodes: run it with their settings"
)
_DEAD_ROWS: Final = "row versions that a database has not cleaned yet, and its write-ahead logs"
_UNCOMMITTED: Final = (
    "files of Delta and Iceberg whose commit was cut off or overtaken: vacuum them in full, with "
    "your engine, while nothing writes"
)
_SNAPSHOTS: Final = (
    "older snapshots of the Iceberg tables: expire them, and remove their files, with your engine"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Result of an erasure, with digests only: *ids* and *selection* are SHA-256 in hex.

    *removed* counts rows by table, *left* timeouts and copies that were found again at the end.
    Rows that *interrupted_runs* of the same selection removed are not included, unless only the
    delivery of their certificates failed.
    """

    run_id: str
    at: Micros
    dry_run: bool
    selection: str
    timeouts: int
    ids: str
    removed: Mapping[str, int]
    left: int
    not_reached: tuple[str, ...] = field(default=())
    interrupted_runs: int = 0

    @property
    def has_found(self) -> bool:
        """Whether anything was found."""
        return bool(self.timeouts) or any(self.removed.values())

    def document(self) -> dict[str, Any]:
        """Return the certificate for JSON."""
        return asdict(self) | {"at": from_micros(self.at).isoformat()}


class Copies(Protocol):
    """A person's copies outside the tables of timeouts."""

    @property
    def databases(self) -> Sequence[Database]:
        """The databases that may contain copies."""
        ...

    def count(self, keys: set[Key], *, delete: bool = False) -> dict[str, int]:
        """Count the copies by place, including copies of *keys*; with *delete*, delete them."""
        ...


def erase(
    options: EraseOptions,
    *,
    clock: Clock,
    progress: Progress = silent,
    copies: Copies | None = None,
    deliver: Callable[[Certificate], None] = lambda _certificate: None,
) -> Certificate:
    """Remove the timeouts that *options* select; with *dry_run* only count them.

    Then remove *copies*, except with *dry_run*: a timeout that failed meanwhile is now a copy. The
    run is complete once *deliver* has returned; otherwise the next run delivers the certificate.

    Raises RunConflict while another process erases in the same store, archives it, or streams it
    without a commit so far, and CommitConflict while other writers keep committing to the lake:
    run the job again.
    """
    store = open_store(options.store)
    store.require_tables()
    ledger, run_id = JobLedger(store, clock), new_run_id(KIND)
    job = _Erase(store, options, progress, run_id, store.database.now(clock), copies)
    if options.dry_run:
        certificate = job.certificate(job.find(), {}, left=None)
        deliver(certificate)
        return certificate
    name = identity(store)
    # Exclude archive: it would still write rows into the lake that it read before.
    with (
        exclusive_lock(store, f"erase {name}"),
        exclusive_lock(store, f"archive {name}"),
        job.no_first_commit(),
    ):
        with ledger.at_work(run_id, KIND, {"selection": job.digest}):
            interrupted = _interrupted(ledger, job.digest)
            before = {
                (endpoint, id_) for one in interrupted.values() for endpoint, id_ in one[_KEYS]
            }
            keys = job.find(before) | before
            noted = {_KEYS: sorted(map(list, keys))}
            ledger.note(run_id, noted)
            certificate = job.run(keys)
            ledger.note(run_id, certificate.document() | noted)
            certificate = _including(certificate, interrupted.values())
            deliver(certificate)
        ledger.move(run_id, JobRunState.COMPLETED, certificate.document())
        for one in interrupted:
            ledger.note(one, {})
        return certificate


class _Erase:
    def __init__(
        self,
        store: Store,
        options: EraseOptions,
        progress: Progress,
        run_id: str,
        now: Micros,
        copies: Copies | None,
    ) -> None:
        self._options, self._progress, self._copies = options, progress, copies
        self._run_id, self._now = run_id, now
        self._store = store
        self._subject = PersonSelection(
            saga_ids=frozenset(options.saga_ids),
            destinations=frozenset(options.destinations),
            ids=frozenset(options.ids),
            headers=options.headers,
        )
        self.digest = _digest([json.dumps(options.selection(), sort_keys=True)])
        self._erasure, self._is_overwritten = Erasure(store), False
        place = options.lake
        self._tables = () if place is None else lake_tables(place)
        self._name = _own_name_in(self._tables, options.of_store, identity(store))

    def no_first_commit(self) -> AbstractContextManager[None]:
        """Prevent a stream's first commit to the lake, with which our commits do not conflict."""
        history = next(iter(self._tables), None)
        if history is None or history.marks(self._name):
            return nullcontext()
        return writer_lock(self._store, history.place)

    def run(self, keys: set[Key]) -> Certificate:
        """Erase *keys* in the store, then their copies, then in the lake; then search again.

        A stream may go on meanwhile: after the first step it reads none of these rows, and rows
        that it read before, it cannot commit any more (``_overtake``).
        """
        copies = self._copies
        self._progress("erasing in the store")
        removed = self._erasure.erase(sorted(keys), self._now, self._run_id)
        removed |= {} if copies is None else copies.count(keys, delete=True)
        self._is_overwritten = self._erasure.overwrite(() if copies is None else copies.databases)
        removed |= self._erase_in_lake({id_ for _endpoint, id_ in keys})
        left = len(self.find(keys)) + (0 if copies is None else sum(copies.count(keys).values()))
        return self.certificate(keys, removed, left=left)

    def find(self, known: Iterable[Key] = ()) -> set[Key]:
        """Return the person's timeouts in the store, and this store's in the lake.

        Include the delayed retries of the timeouts *known*.
        """
        self._progress("looking for timeouts")
        rows = chain(self._erasure.rows(self._subject), *map(self._in_table, self._tables))
        return self._subject.among(rows, known)

    def certificate(
        self, keys: set[Key], removed: Mapping[str, int], *, left: int | None
    ) -> Certificate:
        """Return the certificate of *keys*; *left* is None if nothing was to be removed."""
        return Certificate(
            run_id=self._run_id,
            at=self._now,
            dry_run=self._options.dry_run,
            selection=self.digest,
            timeouts=len(keys),
            ids=_digest(sorted(id_ for _endpoint, id_ in keys)),
            removed=removed,
            left=len(keys) if left is None else left,
            not_reached=self._not_reached(),
        )

    def _in_table(self, table: HistoryTable) -> Iterator[Mapping[str, Any]]:
        files = table.files()
        known = ("endpoint", "id", "event", "destination", "saga_id", "message_id", "headers")
        columns = [name for name in known if name in files.schema.names]
        for batch in files.read(columns, Where(store=self._name)):
            yield from (row for row in batch.to_pylist() if row.get("event") != ERASED)

    def _erase_in_lake(self, ids: set[str]) -> dict[str, int]:
        removed = {}
        for table, (name, columns, kept) in zip(self._tables, _IN_LAKE, strict=False):
            self._progress(f"erasing in {table.place}")
            removed[name] = 0
            if ids:
                self._overtake(table, columns)
                doomed = Doomed("id", tuple(sorted(ids)), store=self._name, kept=kept)
                removed[name] = _removed(table, doomed)
            # Do this always: a run that died in between has left its files.
            tried(table, table.forget_versions)
        return removed

    def _overtake(self, table: HistoryTable, columns: pa.Schema) -> None:
        """Make an empty commit: a writer that has read the person's rows must then read again."""

        def commit() -> None:
            batch = table.marks(self._name).get("batch")
            if batch is not None:
                nothing = pa.RecordBatchReader.from_batches(columns, [])
                table.append(self._name, nothing, {"batch": batch})

        tried(table, commit)

    def _not_reached(self) -> tuple[str, ...]:
        places = [table.place.partition(":")[0] for table in self._tables]
        return (
            *_ALWAYS,
            _COPIES if self._copies is None else _OTHER_COPIES,
            *((_OTHER_STORES,) if self._tables else ()),
            *(() if self._is_overwritten else (_DEAD_ROWS,)),
            *((_UNCOMMITTED,) if {"delta", "iceberg"} & {*places} else ()),
            *((_SNAPSHOTS,) if "iceberg" in places else ()),
        )


def _own_name_in(tables: Sequence[HistoryTable], given: str | None, own: str) -> str:
    """Return *given*, otherwise *own*; raise ConfigurationError if *tables* have only other names.

    A store can move to another name. If the tables lack its own name, that may be *given*.
    """
    if given is not None:
        return given if given == own or not tables else require_store(given, *tables)
    found = stores_in(*tables)
    if own in found or not found:
        return own
    raise ConfigurationError(
        f"the lake has the stores {', '.join(sorted(found))}, but not {own!r}; give --of with the "
        "name of this store before it moved, or with its present name if it has no rows in the lake"
    )


def _interrupted(ledger: JobLedger, digest: str) -> dict[str, Mapping[str, Any]]:
    """Return the reports, with timeouts, of interrupted runs with the same selection."""
    dead = ledger.runs(KIND, JobRunState.ABORTED)
    noted = {run.run_id: run.report or {} for run in dead if run.parameters["selection"] == digest}
    return {run_id: one for run_id, one in noted.items() if one.get(_KEYS)}


def _including(certificate: Certificate, interrupted: Collection[Mapping[str, Any]]) -> Certificate:
    """Return *certificate* plus the counts of *interrupted* runs that could not deliver theirs."""
    removed = Counter(certificate.removed)
    for one in interrupted:
        removed.update(one.get("removed", {}))
    return replace(certificate, removed=dict(removed), interrupted_runs=len(interrupted))


def _removed(table: HistoryTable, doomed: Doomed) -> int:
    """Remove *doomed* rows from *table*; return their number."""
    table.refresh()
    rows = table.files().matching(["id"], doomed.expression())
    count = sum(int(batch.num_rows) for batch in rows)
    if count:
        tried(table, lambda: table.remove(doomed))
        table.refresh()
    return count


def _digest(texts: Iterable[str]) -> str:
    return sha256("\n".join(texts).encode()).hexdigest()
