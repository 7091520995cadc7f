"""An export file as a source: its rows are first sorted by due time.

The rows of a file are in the order of writing, and may exceed memory. So they are spooled into a
scratch SQLite file; a resumed run makes that again from the same file.
"""

from __future__ import annotations

import csv
import hashlib
import importlib
import sqlite3
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from timeoutmgr.contracts import Clock, Key
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import EARLIEST, Micros
from timeoutmgr.message.validation import Limits, check_due
from timeoutmgr.migration.foreign.rows import (
    ForeignColumns,
    RowTranslator,
    due_of,
    read_headers,
    survey_rows,
    time_of,
)
from timeoutmgr.migration.ports import LedgerWrite, Source
from timeoutmgr.migration.runs import Batch, Item, KeyRange, Problem, Survey, Window, in_ranges
from timeoutmgr.resilience.after_fork import cached_property


class ExportFile(Source):
    """See :class:`timeoutmgr.migration.Source`; hides nothing, since no poller reads a file."""

    def __init__(
        self,
        path: Path,
        layout: ForeignColumns,
        endpoint: str,
        clock: Clock,
        *,
        renames: Mapping[str, str] | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._path = path
        self._layout = layout
        self._clock = clock
        self._translator = RowTranslator(layout, endpoint, dict(renames or {}), limits or Limits())
        self._twice = 0
        self._scratch = tempfile.TemporaryDirectory(prefix="timeoutmgr-migrate-")

    def describe(self) -> str:
        """Return the file's name and digest: a run continues only with the same content."""
        return f"{self._path.name} {self._layout.name} sha256:{self._digest}"

    def now(self) -> Micros:
        """Return the host's time."""
        return self._clock.now()

    def survey(self, window: Window) -> Survey:
        """Return the survey of the file, each row translated."""
        first, end = self._bounds(window)
        everything = self._one("SELECT count(*) FROM spooled")
        collected = self._one("SELECT count(*) FROM spooled WHERE due >= ? AND due < ?", first, end)
        rows = self._select("WHERE due >= ? AND due < ? ORDER BY due, id", first, end)
        found = survey_rows(rows, self._translator, left=everything - collected)
        if not self._twice:
            return found
        twice = Problem(
            self._path.name, f"{self._twice} ids are there twice", "export the table once"
        )
        return replace(found, problems=(*found.problems, twice))

    def ranges(self, window: Window, size: int) -> Iterator[KeyRange]:
        """Yield ranges of at most *size* rows, nearest due first."""
        rows = self._spool.execute(
            'SELECT due, id, coalesce(length("State"), 0) FROM spooled '
            "WHERE due >= ? AND due < ? ORDER BY due, id",
            self._bounds(window),
        )
        yield from in_ranges(((Key(due, id_), many) for due, id_, many in rows), size)

    def hide(self, run_id: str, batch: Batch, window: Window, write: LedgerWrite) -> None:
        """Count the batch; a file does not change."""
        write(None, self._one(f"SELECT count(*) FROM spooled {_RANGE}", *_bounds_of(batch)))

    def read(self, run_id: str, batch: Batch) -> Sequence[Item]:
        """Return the rows of the batch."""
        rows = self._select(f"{_RANGE} ORDER BY due, id", *_bounds_of(batch))
        return [Item(timeout=self._translator.timeout(row)) for row in rows]

    def remove(self, run_id: str, batch: Batch, items: Sequence[Item], write: LedgerWrite) -> None:
        """Leave the file as it is."""
        write(None, len(items))

    def restore(
        self,
        run_id: str,
        batch: Batch,
        items: Sequence[Item],
        there: Collection[str],
        write: LedgerWrite,
    ) -> None:
        """Leave the file as it is."""
        write(None, len(items) - len(there))

    def close(self) -> None:
        """Remove the scratch file."""
        if "_spool" in self.__dict__:
            self._spool.close()
        self._scratch.cleanup()

    @cached_property
    def _digest(self) -> str:
        """The SHA-256 of the file: a run can be resumed only with the same file."""
        try:
            with self._path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise ConfigurationError(f"{self._path} cannot be read: {error.strerror}") from error

    @cached_property
    def _spool(self) -> sqlite3.Connection:
        spool = sqlite3.connect(Path(self._scratch.name, "spool.db"))
        try:
            self._fill(spool)
        except BaseException:
            spool.close()
            raise
        return spool

    def _fill(self, spool: sqlite3.Connection) -> None:
        # A scratch file, useless after a crash.
        spool.execute("PRAGMA synchronous = OFF")
        spool.execute("PRAGMA journal_mode = OFF")
        names = ", ".join(f'"{name}"' for name in self._layout.columns if name != "Id")
        spool.execute(f"CREATE TABLE spooled (due INTEGER, id TEXT UNIQUE, {names})")
        spool.execute("CREATE INDEX by_due ON spooled (due, id)")
        marks = ", ".join("?" * (len(self._layout.columns) + 1))
        statement = f"INSERT OR IGNORE INTO spooled VALUES ({marks})"
        with spool:
            for row in read_rows(self._path, self._layout):
                added = spool.execute(statement, self._values(row)).rowcount
                self._twice += 1 - added

    def _values(self, row: Mapping[str, Any]) -> list[Any]:
        others = [row[name] for name in self._layout.columns if name != "Id"]
        plain = [one.isoformat() if isinstance(one, datetime) else one for one in others]
        return [_due(row), str(row["Id"]), *plain]

    def _select(self, rest: str, *given: Any) -> Iterator[Mapping[str, Any]]:
        others = [name for name in self._layout.columns if name != "Id"]
        columns = ", ".join(f'"{name}"' for name in others)
        rows = self._spool.execute(f"SELECT id, {columns} FROM spooled {rest}", given)
        for values in rows:
            yield dict(zip(("Id", *others), values, strict=True))

    def _one(self, statement: str, *given: Any) -> int:
        return int(self._spool.execute(statement, given).fetchone()[0])

    def _bounds(self, window: Window) -> tuple[Micros, Micros]:
        return window.first(self.now()), window.end


_RANGE: Final = "WHERE due >= ? AND due <= ? AND (due > ? OR id >= ?) AND (due < ? OR id <= ?)"


def _bounds_of(batch: Batch) -> tuple[Any, ...]:
    first, last = batch.range.first, batch.range.last
    return first.due, last.due, first.due, first.id, last.due, last.id


def _due(row: Mapping[str, Any]) -> Micros:
    """Return when *row* is due; if unreadable, the earliest instant: the survey has the reason."""
    try:
        return check_due(due_of(time_of(row["Time"]), read_headers(row["Headers"])))
    except (ValueError, RecursionError):
        return EARLIEST


def read_rows(path: Path, layout: ForeignColumns) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of *path* with the product's column names; raise ConfigurationError."""
    rows = _from_parquet(path) if path.suffix.lower() == ".parquet" else _from_csv(path)
    names: dict[str, str] | None = None
    for row in _readable(rows, path):
        if names is None:
            names = _column_names(row, path, layout)
        yield {name: row[theirs] for name, theirs in names.items()}


def _readable(rows: Iterator[Mapping[str, Any]], path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield *rows*; name the file in the errors of their reader."""
    number = 0
    try:
        for row in rows:
            number += 1
            yield row
    except (csv.Error, ValueError, OSError) as error:  # pyarrow's are ValueErrors or OSErrors
        raise ConfigurationError(
            f"{path} cannot be read behind row {number}: {error}; export it anew, CSV in UTF-8 "
            "with a header line, or Parquet"
        ) from error


def _column_names(row: Mapping[str, Any], path: Path, layout: ForeignColumns) -> dict[str, str]:
    there = {name.lower(): name for name in row}
    missing = [name for name in layout.columns if name.lower() not in there]
    if missing:
        raise ConfigurationError(
            f"{path} lacks the columns {', '.join(missing)}; it has {', '.join(row)}. Export them "
            "with a header line"
        )
    return {name: there[name.lower()] for name in layout.columns}


def _from_csv(path: Path) -> Iterator[Mapping[str, Any]]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # bodies may exceed the default of 128 kB
    with path.open(newline="", encoding="utf-8-sig") as file:
        for row in csv.DictReader(file, strict=True):
            if None in row:
                raise csv.Error("a row has more cells than the header line")
            yield row


def _from_parquet(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")  # may be missing, and has no types
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{path} is Parquet, and pyarrow is not installed; pip install 'timeoutmgr[parquet]', "
            "or export CSV"
        ) from error
    with parquet.ParquetFile(path) as file:
        for block in file.iter_batches(batch_size=1_000):
            yield from block.to_pylist()
