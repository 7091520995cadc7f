"""An export file as a source: its rows are put in the order of their due times first.

A file is in whatever order it was written, and may be larger than memory. So it is spooled into a
scratch SQLite file, which is made again from the same file when a run is resumed.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from timeoutmgr.contracts import Clock, Key
from timeoutmgr.instants import EARLIEST, Micros
from timeoutmgr.migration.cutting import in_ranges
from timeoutmgr.migration.foreign.files import digest, read_rows
from timeoutmgr.migration.foreign.rows import (
    Layout,
    due_of,
    read_headers,
    time_of,
    translated,
)
from timeoutmgr.migration.foreign.surveying import survey_rows
from timeoutmgr.migration.ports import Also
from timeoutmgr.migration.runs import Batch, Item, Problem, Range, Survey
from timeoutmgr.migration.window import Window
from timeoutmgr.validation import Limits, check_due


class ExportFile:
    """See :class:`timeoutmgr.migration.Source`; nothing is hidden, since nobody delivers a file."""

    hides_with_the_ledger: Final = False

    def __init__(
        self,
        path: Path,
        layout: Layout,
        endpoint: str,
        clock: Clock,
        *,
        renames: Mapping[str, str] | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._path = path
        self._layout = layout
        self._endpoint = endpoint
        self._clock = clock
        self._renames = dict(renames or {})
        self._limits = limits or Limits()
        self._twice = 0
        self._scratch = tempfile.TemporaryDirectory(prefix="timeoutmgr-migrate-")

    def describe(self) -> str:
        """Return the file's name and digest: a run goes on with the very same content."""
        return f"{self._path.name} {self._layout.name} sha256:{self._digest}"

    def now(self) -> Micros:
        """Return the host's time."""
        return self._clock.now()

    def survey(self, window: Window) -> Survey:
        """Return what is in the file, each row translated."""
        first, end = self._bounds(window)
        everything = self._one("SELECT count(*) FROM spooled")
        taken = self._one("SELECT count(*) FROM spooled WHERE due >= ? AND due < ?", first, end)
        rows = self._select("WHERE due >= ? AND due < ? ORDER BY due, id", first, end)
        found = survey_rows(
            rows,
            self._layout,
            self._endpoint,
            self._renames,
            self._limits,
            left=everything - taken,
        )
        if not self._twice:
            return found
        twice = Problem(
            self._path.name, f"{self._twice} ids are there twice", "export the table once"
        )
        return replace(found, problems=(*found.problems, twice))

    def ranges(self, window: Window, size: int) -> Iterator[Range]:
        """Yield ranges of at most *size* rows, nearest due first."""
        rows = self._spool.execute(
            'SELECT due, id, coalesce(length("State"), 0) FROM spooled '
            "WHERE due >= ? AND due < ? ORDER BY due, id",
            self._bounds(window),
        )
        yield from in_ranges(((Key(due, id_), many) for due, id_, many in rows), size)

    def is_where_it_arrives(self, run_id: str) -> bool:
        """Return false: this is no store of ours."""
        return False

    def prepare(self, run_id: str) -> None:
        """Do nothing."""

    def hide(self, run_id: str, batch: Batch, window: Window, also: Also) -> None:
        """Count the batch; a file lies still."""
        also(None, self._one(f"SELECT count(*) FROM spooled {_RANGE}", *_bounds_of(batch)))

    def read(self, run_id: str, batch: Batch) -> Sequence[Item]:
        """Return the rows of the batch."""
        rows = self._select(f"{_RANGE} ORDER BY due, id", *_bounds_of(batch))
        return [
            Item(timeout=translated(row, self._layout, self._endpoint, self._renames, self._limits))
            for row in rows
        ]

    def remove(self, run_id: str, batch: Batch, items: Sequence[Item], also: Also) -> None:
        """Leave the file as it is."""
        also(None, len(items))

    def restore(
        self, run_id: str, batch: Batch, items: Sequence[Item], there: Collection[str], also: Also
    ) -> None:
        """Leave the file as it is."""
        also(None, len(items) - len(there))

    def hidden(self, run_id: str) -> int:
        """Return 0."""
        return 0

    def close(self) -> None:
        """Remove the scratch file."""
        if "_spool" in self.__dict__:
            self._spool.close()
        self._scratch.cleanup()

    @cached_property
    def _digest(self) -> str:
        return digest(self._path)

    @cached_property
    def _spool(self) -> sqlite3.Connection:
        spool = sqlite3.connect(Path(self._scratch.name, "spool.db"))
        # A scratch file that nobody needs after a crash.
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
        return spool

    def _values(self, row: Mapping[str, Any]) -> list[Any]:
        others = [_plain(row[name]) for name in self._layout.columns if name != "Id"]
        return [_due(row), str(row["Id"]), *others]

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
    """Return when *row* is due; the beginning of time where it does not say: a survey tells why."""
    try:
        return check_due(due_of(time_of(row["Time"]), read_headers(row["Headers"])))
    except ValueError:
        return EARLIEST


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
