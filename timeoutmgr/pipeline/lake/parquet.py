"""A history table of plain Parquet files in a folder, with numbered manifests.

::

    manifests/000000000012.json   version 12: the files that it adds and removes, and its marks
    manifests/000000000100.state  all files and marks of version 100, where readers begin
    data/event_date=2030-01-31/bucket=3/….parquet

A complete manifest is linked to the name of its version, in which only one writer can succeed.
``compact`` removes manifests before the newest state that is a week old.
"""

import json
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import date
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Clock
from timeoutmgr.database.places import sync_path
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.pipeline.errors import CommitConflict
from timeoutmgr.pipeline.lake.table import (
    ANYTHING,
    BUCKETED,
    WRITTEN,
    DataFiles,
    Doomed,
    Marks,
    Where,
    other_columns,
    partition_of,
    raises_unavailable,
    require_alone,
    scattered,
    stored_columns,
)

_LAYOUT: Final = ds.partitioning(
    pa.schema([WRITTEN.field(name) for name in BUCKETED]), flavor="hive"
)
_SYNCS_AT_ONCE: Final = 16
_ANY_NUMBER: Final = 1_000_000
"""Maximum partitions of one batch: pending timeouts can be due on any day of decades."""
_OPEN_AT_ONCE: Final = 800
"""Files that are written at the same time: a process may often open only 1,024. With more
partitions, some get several files, which ``compact`` merges."""
_STATE_EVERY: Final = 100
"""Versions between two states: a reader reads fewer manifests than this number."""
_KEPT: Final = 7 * 86_400
"""Seconds for which files of older versions stay for their readers."""


@raises_unavailable(pa.ArrowInvalid)
class ParquetHistory:
    """The table in *folder*; all readers and writers must use the same path."""

    def __init__(
        self,
        place: str,
        version: int | None = None,
        clock: Clock | None = None,
        written: pa.Schema = WRITTEN,
    ) -> None:
        require_alone(place, "manifests")
        self.place = place
        self._clock: Final = clock or SystemClock()
        self._written: Final = written
        self._folder: Final = Path(place)
        self._manifests: Final = self._folder / "manifests"
        self._files: set[str] = set()
        self._marks: dict[str, Marks] = {}
        self._version = -1
        self._last = version
        self.refresh()
        self._require_columns()

    def _require_columns(self) -> None:
        """Raise ConfigurationError if a file lacks a column: a rewrite would lose its own."""
        with suppress(FileNotFoundError, pa.ArrowInvalid):  # an erasure removes old files
            for name in islice(self._files, 1):
                known = pq.read_schema(self._folder / name).names
                if not {*stored_columns(self._written).names} <= {*known}:
                    raise other_columns(self.place)

    @property
    def version(self) -> int | None:
        """The number of the newest manifest that was read."""
        return None if self._version < 0 else self._version

    def refresh(self) -> None:
        """Read the manifests that follow the known version."""
        if self._version < 0 or (self._version != self._last and self._is_forgotten()):
            self._begin()
        for _manifest in self._newer():
            pass

    def _newer(self) -> Iterator[dict[str, Any]]:
        """Yield each manifest that follows the known version, and advance the known version."""
        while self._version != self._last and (path := self._manifest(self._version + 1)).exists():
            found = _loaded(path)
            self._files = (self._files - {*found["removed"]}) | {*found["added"]}
            self._marks |= found["marks"]
            self._version += 1
            yield found

    def _begin(self) -> None:
        """Begin with the newest state up to the wanted version."""
        last = self._last
        found = [int(path.stem) for path in self._states()]
        known = max((one for one in found if last is None or one <= last), default=None)
        if known is not None:
            state = _loaded(self._state(known))
            self._files, self._marks, self._version = {*state["added"]}, state["marks"], known
        elif last is None and self._manifests.is_dir() and not self._manifest(0).exists():
            self._require_ours()

    def _require_ours(self) -> None:
        strange = next(self._manifests.glob("*.json"), None)
        if strange is not None:
            raise ConfigurationError(
                f"{strange} is not a manifest of a history table, or the first manifest of the "
                "table is missing; name another folder, or restore it"
            )

    def marks(self, store: str) -> Marks:
        """Return the marks of *store*."""
        return self._marks.get(store, {})

    def files(self, where: Where = ANYTHING) -> DataFiles:
        """Return the files in the folders of *where*."""
        found = sorted(str(self._folder / name) for name in self._files if _may_have(name, where))
        return DataFiles(LocalFileSystem(), tuple(found), stored_columns(self._written))

    def append(self, store: str, batches: pa.RecordBatchReader, marks: Marks) -> None:
        """Write the files of *batches*, then the manifest that adds them to the table.

        If other stores commit meanwhile, retry with the written files: otherwise small commits of
        others could prevent a large commit forever.
        """
        all_marks: dict[str, Marks] = {store: {**self.marks(store), **marks}}
        added = self._write(batches)
        while not self._commit(added, (), all_marks):
            added = self._carried_over(store, added)

    def compact(self, before: date) -> int:
        """Rewrite partitions of several files; old files stay for their readers for a week."""
        week_ago = self._clock.now() / 1_000_000 - _KEPT
        self._remove_dead(before=week_ago)
        self._remove_manifests(before=week_ago)
        old = sorted(chain(*scattered(self.place, self._files, before).values()))
        if old:
            self._replace(old)
        return len(old)

    def remove(self, doomed: Doomed) -> None:
        """Rewrite the files that have *doomed* rows, without these rows."""
        wanted = doomed.expression()
        with self._conflict_if_missing():
            old = [name for name in self._files if self._rows([name]).count_rows(filter=wanted)]
        if old:
            self._replace(old, ~wanted)

    def _replace(self, old: Sequence[str], kept: ds.Expression | None = None) -> None:
        """Commit the *kept* rows of the files *old* in new files."""
        with self._conflict_if_missing():
            for name in old:
                _touch(self._folder / name)  # the week for its readers begins now
            rows = self._rows(old).to_batches(filter=kept)
            batches = pa.RecordBatchReader.from_batches(self._written, rows)
            written = self._write(batches)
        if not self._commit(written, old, {}):
            raise self._conflict(written)

    @contextmanager
    def _conflict_if_missing(self) -> Iterator[None]:
        """Raise CommitConflict if a file is missing: an erasure removed its versions."""
        try:
            yield
        except FileNotFoundError as error:
            raise CommitConflict(
                f"another process has removed files of {self.place} meanwhile: {error}"
            ) from error

    def _rows(self, names: Sequence[str]) -> ds.Dataset:
        return ds.dataset(
            [str(self._folder / name) for name in names],
            schema=self._written,
            format="parquet",
            partitioning=_LAYOUT,
            partition_base_dir=str(self._folder / "data"),
        )

    def forget_versions(self) -> None:
        """Remove unused files at once; of events, manifests contain only days and buckets.

        Files newer than the newest version stay: a writer may be about to commit them.
        """
        if self._version >= 0:
            self._remove_dead(before=self._manifest(self._version).stat().st_mtime)

    def _remove_dead(self, before: float) -> None:
        found = (self._folder / "data").rglob("*.parquet")
        for path in chain(found, self._manifests.glob("*.writing")):
            is_dead = str(path.relative_to(self._folder)) not in self._files
            with suppress(FileNotFoundError):  # another process removes dead files too
                if is_dead and path.stat().st_mtime < before:
                    path.unlink()

    def _remove_manifests(self, before: float) -> None:
        """Remove manifests and states that precede the newest state of *before*.

        Remove the oldest first: if a manifest is missing, then all earlier manifests are, too.
        """
        old = [path for path in self._states() if path.stat().st_mtime < before]
        if not old:
            return
        sync_path(self._manifests)
        earlier = [*self._manifests.glob("*.json"), *old]
        for path in sorted(path for path in earlier if path.stem < old[-1].stem):
            path.unlink(missing_ok=True)

    def _is_forgotten(self) -> bool:
        """Whether the known version is so old that its manifest was removed."""
        return self._version >= 0 and not self._manifest(self._version).exists()

    def _write(self, batches: pa.RecordBatchReader) -> list[str]:
        written, token = list[str](), secrets.token_hex(16)
        try:
            ds.write_dataset(
                batches,
                self._folder / "data",
                format="parquet",
                partitioning=_LAYOUT,
                basename_template=f"{token}-{{i}}.parquet",
                existing_data_behavior="overwrite_or_ignore",
                max_partitions=_ANY_NUMBER,
                max_open_files=_OPEN_AT_ONCE,
                file_options=ds.ParquetFileFormat().make_write_options(compression="zstd"),
                file_visitor=lambda one: written.append(one.path),
            )
        except Exception:
            # They fill a full disk, and may contain rows that an erasure has removed elsewhere.
            for lost in (self._folder / "data").rglob(f"{token}-*"):
                lost.unlink(missing_ok=True)
            raise
        return sorted(str(Path(path).relative_to(self._folder)) for path in written)

    def _commit(
        self, added: Sequence[str], removed: Sequence[str], marks: dict[str, Marks]
    ) -> bool:
        """Sync the files and their folders, then link the manifest, and sync its folder.

        Rows may be removed from a store once they are in a manifest, hence the syncs. Return False
        if another process has committed that version. Raises CommitConflict if a file is missing.
        """
        self._manifests.mkdir(parents=True, exist_ok=True)
        document = {"added": [*added], "removed": [*removed], "marks": marks}
        try:
            self._sync_all([self._folder / name for name in added])
            self._link(document, self._manifest(self._version + 1))
        except FileExistsError:
            return False
        # After its commit, an erasure removes earlier files that are not committed yet.
        except FileNotFoundError as error:
            raise self._conflict(added) from error
        sync_path(self._manifests)
        self.refresh()
        if self._version and self._version % _STATE_EVERY == 0:
            self._write_state()
        return True

    def _conflict(self, added: Iterable[str]) -> CommitConflict:
        """Remove the files *added*, which no version will have; return the error."""
        for name in added:
            (self._folder / name).unlink(missing_ok=True)
        return CommitConflict(f"{self.place} has a version {self._version + 1} meanwhile")

    def _carried_over(self, store: str, added: Sequence[str]) -> list[str]:
        """Return new names of the files *added*, for a commit that follows the newest version.

        Files get a new name and a new time, since an erasure and ``compact`` remove uncommitted
        files older than the newest version. Raises CommitConflict if a version since then removed
        rows or is of *store*: rows of the files may have been removed, or written already.
        """
        if self._is_forgotten():
            raise self._conflict(added)
        newer = [*self._newer()]
        if any(store in one["marks"] or one["removed"] for one in newer):
            raise self._conflict(added)
        token = secrets.token_hex(16)
        moved = [
            str(Path(name).with_name(f"{token}-{index}.parquet"))
            for index, name in enumerate(added)
        ]
        try:
            for name, other in zip(added, moved, strict=True):
                os.utime(self._folder / name)
                (self._folder / name).rename(self._folder / other)
        except FileNotFoundError as error:
            raise self._conflict([*added, *moved]) from error
        return moved

    def _sync_all(self, files: Sequence[Path]) -> None:
        folders = {folder for file in files for folder in file.parents}
        ours = {one for one in folders if one.is_relative_to(self._folder)} | {self._folder}
        with ThreadPoolExecutor(_SYNCS_AT_ONCE) as threads:
            for paths in (files, [*ours]):
                list(threads.map(sync_path, paths))

    def _link(self, document: dict[str, Any], target: Path) -> None:
        """Link the manifest *document* to *target*; raise FileExistsError if that exists."""
        written = target.with_name(f"{secrets.token_hex(8)}.writing")
        try:
            _dump(document, written)
            try:
                os.link(written, target)  # no rename: it would replace another writer's
            except FileExistsError:
                if written.stat().st_nlink == 1:  # 2: NFS made the link, and lost the answer
                    raise
            if self._is_forgotten():  # this process slept for a week: the version was removed
                target.unlink()
                raise FileExistsError(target)
        finally:
            written.unlink(missing_ok=True)

    def _write_state(self) -> None:
        """Write and sync the list of all files and marks of this version, where readers begin."""
        target = self._state(self._version)
        written = target.with_name(f"{secrets.token_hex(8)}.writing")
        document = {"added": sorted(self._files), "removed": [], "marks": self._marks}
        _dump(document, written)
        written.replace(target)

    def _states(self) -> list[Path]:
        return sorted(self._manifests.glob("*.state"))

    def _state(self, version: int) -> Path:
        return self._manifests / f"{version:012d}.state"

    def _manifest(self, version: int) -> Path:
        return self._manifests / f"{version:012d}.json"


def _may_have(name: str, where: Where) -> bool:
    day, bucket = partition_of(name)
    first, last = where.days
    return (
        (first is None or day >= first)
        and (last is None or day <= last)
        and where.bucket in (None, bucket)
    )


def _touch(path: Path) -> None:
    """Set the time of *path* to now: files written from now on are newer."""
    os.utime(path)  # Path.touch would create a missing file
    at = path.stat().st_mtime_ns - 1_000_000_000
    os.utime(path, ns=(at, at))


def _dump(document: dict[str, Any], path: Path) -> None:
    """Write *document* into a new file, and sync it."""
    with path.open("x") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())


def _loaded(path: Path) -> dict[str, Any]:
    with suppress(ValueError):
        found = json.loads(path.read_text())
        if {*found} == {"added", "removed", "marks"}:
            return dict(found)
    raise ConfigurationError(
        f"{path} is not a manifest of a history table that this version of timeoutmgr reads; use "
        "the version that wrote it, or restore it"
    )
