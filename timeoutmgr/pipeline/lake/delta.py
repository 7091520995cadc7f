"""A history table in Delta, by delta-rs: the marks are Delta's application transactions.

Two commits that begin at one version and name the same transaction conflict, so only one of two
writers of a store can commit. Commits of other stores, and compactions, do not conflict.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import (
    CommitFailedError,
    DeltaError,
    SchemaMismatchError,
    TableNotFoundError,
)
from deltalake.fs.fs_handler import DeltaStorageHandler
from pyarrow.fs import PyFileSystem

from timeoutmgr.pipeline.errors import CommitConflict
from timeoutmgr.pipeline.lake.table import (
    ANYTHING,
    BUCKETED,
    NO_FILES,
    WRITTEN,
    DataFiles,
    Doomed,
    Marks,
    Where,
    deleted_rows,
    other_columns,
    raises_unavailable,
    require_alone,
    stored_columns,
)
from timeoutmgr.pipeline.options import DELTA

_MARKS: Final = ("batch", "xid", "system", "timeline")
_RETENTION: Final = {
    "delta.logRetentionDuration": "interval 30 days",
    "delta.deletedFileRetentionDuration": "interval 7 days",
}
"""Properties for how long Delta keeps older versions, with Delta's defaults."""
_AT_ONCE: Final = "interval 0 microseconds"
"""Value while versions are removed; its unusual spelling lets a later run recognize it."""
_WEEK: Final = 7 * 24
_FORGOTTEN: Final = "Invalid table version"
_PACKED: Final = WriterProperties(compression="ZSTD")
_NAMED_AT_ONCE: Final = 5_000
"""Maximum values in a condition; with 25,000 the stack of a delta-rs thread overflows."""


@raises_unavailable(DeltaError)
class DeltaHistory:
    """The table at ``delta:URI``; credentials come from the environment, as delta-rs reads it."""

    def __init__(
        self, place: str, version: int | None = None, written: pa.Schema = WRITTEN
    ) -> None:
        self.place = place
        self._written: Final = written
        self._uri: Final = place.removeprefix(DELTA)
        require_alone(self._uri, "_delta_log")
        self._table: DeltaTable | None = None
        self._load(version)

    @property
    def version(self) -> int | None:
        """The version of Delta's log."""
        return None if self._table is None else self._table.version()

    def refresh(self) -> None:
        """Switch to the newest version."""
        self._load(None)

    def _load(self, version: int | None) -> None:
        try:
            self._table = DeltaTable(self._uri, version=version)
        except TableNotFoundError:
            self._table = None
        except (DeltaError, OverflowError):
            if version is None:
                raise
            self._load(None)  # if it can be read, it lacks the version: see ``present_table``

    def marks(self, store: str) -> Marks:
        """Return the marks of *store*."""
        if self._table is None:
            return {}
        found = {name: self._table.transaction_version(_app(store, name)) for name in _MARKS}
        return {name: value for name, value in found.items() if value is not None}

    def files(self, where: Where = ANYTHING) -> DataFiles:
        """Return the files of the partitions that can have rows of *where*."""
        if self._table is None:
            return NO_FILES
        if any(marked.num_rows for marked in self._table.deletion_vectors()):
            raise deleted_rows(self.place)
        uris = self._table.file_uris(file_pruning_predicate=where.partitions or None)
        root = self._table.table_uri
        before = len(root.removeprefix("file://"))  # the URI of a local file is its path
        # Read through delta-rs: it uses the same credentials as for writes, for any cloud.
        files = PyFileSystem(DeltaStorageHandler(root))
        paths = tuple(uri[before:] for uri in uris)
        return DataFiles(files, paths, stored_columns(self._written))

    def append(self, store: str, batches: pa.RecordBatchReader, marks: Marks) -> None:
        """Commit *batches* and *marks* in one version."""
        table = self._table or self._created(store)
        marked = [Transaction(_app(store, name), value) for name, value in marks.items()]
        with self._conflicts():
            write_deltalake(
                table,
                batches,
                mode="append",
                writer_properties=_PACKED,
                commit_properties=CommitProperties(app_transactions=marked),
            )

    def remove(self, doomed: Doomed) -> None:
        """Commit versions without the *doomed* rows."""
        if self._table is None:
            return
        for at in range(0, len(doomed.values), _NAMED_AT_ONCE):
            some = replace(doomed, values=doomed.values[at : at + _NAMED_AT_ONCE])
            with self._conflicts():
                self._table.delete(_condition(some), writer_properties=_PACKED)

    def forget_versions(self) -> None:
        """Remove the files and the log of older versions; the log also has bounds of columns.

        If a run is killed in between, a later run resets the retention to Delta's default.
        """
        if self._table is not None:
            with self._conflicts():
                self._forget_versions(self._table)

    def _forget_versions(self, table: DeltaTable) -> None:
        table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        before = table.metadata().configuration
        kept = {name: before[name] for name in _RETENTION if before.get(name, _AT_ONCE) != _AT_ONCE}
        table.alter.set_table_properties(dict.fromkeys(_RETENTION, _AT_ONCE))
        try:
            table.update_incremental()
            table.create_checkpoint()
            table.cleanup_metadata()
        finally:
            table.alter.set_table_properties(_RETENTION | kept)

    def compact(self, before: date) -> int:
        """Merge files, and remove files that no version of the last week uses."""
        if self._table is None:
            return 0
        wanted = [("event_date", "<", str(before))]
        with self._conflicts():
            done = self._table.optimize.compact(partition_filters=wanted, writer_properties=_PACKED)
            is_cut_off = _AT_ONCE in self._table.metadata().configuration.values()
            self._table.vacuum(_WEEK if is_cut_off else None, dry_run=False)
        return int(done["numFilesRemoved"])

    def _created(self, store: str) -> DeltaTable:
        with self._conflicts():
            self._table = DeltaTable.create(
                self._uri, self._written, mode="ignore", partition_by=list(BUCKETED)
            )
        # If another writer created the table and committed, use that version.
        if self.marks(store):
            raise CommitConflict(f"{self.place} was created by another writer meanwhile")
        return self._table

    @contextmanager
    def _conflicts(self) -> Iterator[None]:
        try:
            yield
        except SchemaMismatchError as error:
            raise other_columns(self.place) from error
        except DeltaError as error:
            # An erasure may have removed the log of the versions since.
            if isinstance(error, CommitFailedError) or _FORGOTTEN in str(error):
                raise CommitConflict(f"{self.place}: {error}") from error
            raise


def _condition(doomed: Doomed) -> str:
    """Return the condition as DataFusion spells it."""
    values = ", ".join(_literal(value) for value in doomed.values)
    found = f"{doomed.column} IN ({values})"
    if doomed.kept is not None:
        found += f" AND event <> {_literal(doomed.kept)}"
    return found if doomed.store is None else f"{found} AND store = {_literal(doomed.store)}"


def _literal(value: str | int) -> str:
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


def _app(store: str, name: str) -> str:
    return f"timeoutmgr history {name} of {store}"
