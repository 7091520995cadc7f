"""``compact``: small files of a history table together, while others read and write it.

The table's own log is the ledger: a run that dies has committed the compaction, or nothing.
"""

from collections import Counter
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import PurePosixPath
from typing import Any

from timeoutmgr.contracts import Clock
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import from_micros
from timeoutmgr.pipeline.jobs.run_context import Progress, silent
from timeoutmgr.pipeline.lake.places import present_table
from timeoutmgr.pipeline.lake.table import BUCKETED, HistoryTable, Where
from timeoutmgr.pipeline.lake.writer import tried
from timeoutmgr.pipeline.lake_options import CompactOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactReport:
    """How many data files the table had *before* and has *after*.

    *scattered* files of past days shared a partition with other files; *compacted* of them were
    put together. A writer that commits meanwhile adds to *after*.
    """

    place: str
    before: int
    scattered: int
    compacted: int
    after: int

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def compact(options: CompactOptions, *, clock: Clock, progress: Progress = silent) -> CompactReport:
    """Put the files of each partition of a past day together; with *dry_run* only count them.

    Readers of older versions keep their files for a week. Raises CommitConflict if other writers
    commit again and again meanwhile: nothing was changed then.
    """
    table = present_table(options.lake)
    today = from_micros(clock.now()).date()
    before, scattered = len(table.files().paths), len(_scattered(table, today))
    progress(f"{before} files, {scattered} of them to be put together")
    done = 0 if options.dry_run else tried(table, lambda: table.compact(today))
    table.refresh()
    return CompactReport(
        place=table.place,
        before=before,
        scattered=scattered,
        compacted=done,
        after=len(table.files().paths),
    )


def _scattered(table: HistoryTable, today: date) -> list[str]:
    """Return the files that share a partition of a day before *today*: a folder each."""
    folders = {path: str(PurePosixPath(path).parent) for path in table.files(Where()).paths}
    many = Counter(folders.values())
    return [
        path
        for path, folder in folders.items()
        if _day_of(table, folder) < today and many[folder] > 1
    ]


def _day_of(table: HistoryTable, folder: str) -> date:
    parts = dict(part.partition("=")[::2] for part in PurePosixPath(folder).parts)
    if not parts.keys() >= {*BUCKETED}:
        raise ConfigurationError(
            f"{table.place} has files outside of the partitions {', '.join(BUCKETED)}, such as in "
            f"{folder}; compact it with the engine that created or repartitioned it"
        )
    return date.fromisoformat(parts["event_date"])
