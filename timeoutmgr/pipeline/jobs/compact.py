"""``compact``: merge small files of a history table while others read and write it.

The table's own log is the ledger: a run that dies has committed the whole compaction or nothing.
"""

from dataclasses import asdict, dataclass
from typing import Any

from timeoutmgr.contracts import Clock
from timeoutmgr.message.instants import from_micros
from timeoutmgr.pipeline.jobs.run_context import Progress, silent
from timeoutmgr.pipeline.lake.message_snapshots import columns_at
from timeoutmgr.pipeline.lake.places import present_table
from timeoutmgr.pipeline.lake.table import scattered
from timeoutmgr.pipeline.lake.writer import tried
from timeoutmgr.pipeline.lake_options import CompactOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactReport:
    """The number of data files *before* and *after*.

    *scattered* files of past days shared a partition with other files; *compacted* of them were
    merged. *after* includes files that another writer commits meanwhile.
    """

    place: str
    before: int
    scattered: int
    compacted: int
    after: int

    def document(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return asdict(self)


def compact(options: CompactOptions, *, clock: Clock, progress: Progress = silent) -> CompactReport:
    """Merge the files in each partition of past days; with *dry_run*, only count them.

    Files of older versions stay for their readers for a week. Raises CommitConflict, with nothing
    changed, if other writers commit again and again meanwhile.
    """
    table = present_table(options.lake, written=columns_at(options.lake))
    today = from_micros(clock.now()).date()
    paths = table.files().paths
    before, many = len(paths), sum(map(len, scattered(table.place, paths, today).values()))
    progress(f"{before} files, {many} of them to be merged")
    done = 0 if options.dry_run else tried(table, lambda: table.compact(today))
    table.refresh()
    return CompactReport(
        place=table.place,
        before=before,
        scattered=many,
        compacted=done,
        after=len(table.files().paths),
    )
