"""One moment of each store, and of the archive of their history: every event once."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from timeoutmgr.contracts import Clock
from timeoutmgr.pipeline.jobs.archived import Archive, Manifest, manifests_of
from timeoutmgr.pipeline.jobs.run_context import Progress, each_store, silent
from timeoutmgr.pipeline.snapshots import Snapshot, snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment of a store; *in_both* are manifests of rows that it may still have."""

    snapshot: Snapshot
    in_both: tuple[Manifest, ...]


@dataclass(frozen=True, slots=True)
class Moments:
    """Moments of *stores*, and their *archived* runs; without stores, all archived runs."""

    stores: tuple[Moment, ...]
    archive: Archive | None
    archived: tuple[Manifest, ...]

    def history(self, spark: "SparkSession", columns: Sequence[str]) -> list["DataFrame"]:
        """Return *columns*, sequence and at among them, of all events, each of them once."""
        found = []
        for one in self.stores:
            rows = one.snapshot.read(spark, "history", columns=columns)
            if self.archive is not None:
                rows = self.archive.and_not_in_it(spark, rows, one.in_both)
            found.append(rows)
        if self.archive is not None:
            found.append(self.archive.read(spark, self.archived, columns))
        return found


@contextmanager
def moments(
    names: Iterable[str],
    folder: Path | None,
    *,
    views: Sequence[str],
    columns: Sequence[str],
    clock: Clock,
    progress: Progress = silent,
) -> Iterator[Moments]:
    """Hold a moment of each store until the end of the block, beside the archive in *folder*.

    See :func:`~timeoutmgr.pipeline.snapshots.snapshot` for *views* and *columns*.
    """
    archive = Archive(folder) if folder is not None else None
    with ExitStack() as stack:
        # An archive run publishes its manifest, removes the rows, then notes that it is purged, at
        # any time during this function. So read the purged runs before the snapshots: their rows
        # are in no snapshot, while the rows of a run that is purged later may be. And read the
        # manifests after the snapshots: a run whose rows a snapshot lacks was published before it.
        # Read them once: a run that is published later has to count from a snapshot alone.
        purged = archive.purged() if archive is not None else frozenset()
        snapshots = [
            stack.enter_context(snapshot(store, views=views, columns=columns, clock=clock))
            for store in each_store(names)
        ]
        published = archive.manifests() if archive is not None else []
        ours = [manifests_of(one.store, published) for one in snapshots]
        archived_ids = {one.run_id for some in ours for one in some}
        archived = tuple(one for one in published if one.run_id in archived_ids or not snapshots)
        if len(archived) < len(published):
            others = len(published) - len(archived)
            progress(f"{others} of {len(published)} archived runs, of other stores, do not count")
        stores = (
            Moment(one, tuple(run for run in some if run.run_id not in purged))
            for one, some in zip(snapshots, ours, strict=True)
        )
        yield Moments(tuple(stores), archive, archived)
