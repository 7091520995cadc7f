"""One moment of each store, and of the archive of their history: every event once."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from timeoutmgr.contracts import Clock
from timeoutmgr.pipeline.jobs.archived import Archive, Manifest, manifests_of
from timeoutmgr.pipeline.jobs.running import Progress, each_store, silent
from timeoutmgr.pipeline.snapshots import Snapshot, snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment of a store; *in_both* tells of archived rows that it may still have."""

    snapshot: Snapshot
    in_both: tuple[Manifest, ...]


@dataclass(frozen=True, slots=True)
class Moments:
    """Moments of *stores*, and what of them is *archived*; without stores, what of all is."""

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
        # An archive run publishes its manifest, then removes the rows, then marks itself purged;
        # it may do any of that while this looks. So the marks are read before the snapshots: what
        # is marked by then is in none of them, while one that is marked later may be. And the
        # manifests after them: what a snapshot lacks was published before it, so is told of. They
        # are read once, since what is published from here on is to count from a snapshot alone.
        purged = archive.purged() if archive is not None else frozenset()
        taken = [
            stack.enter_context(snapshot(store, views=views, columns=columns, clock=clock))
            for store in each_store(names)
        ]
        published = archive.manifests() if archive is not None else []
        ours = [manifests_of(one.store, published) for one in taken]
        told_of = {one.run_id for some in ours for one in some}
        archived = tuple(one for one in published if one.run_id in told_of or not taken)
        if len(archived) < len(published):
            others = len(published) - len(archived)
            progress(f"{others} of {len(published)} archived runs, of other stores, do not count")
        stores = (
            Moment(one, tuple(run for run in some if run.run_id not in purged))
            for one, some in zip(taken, ours, strict=True)
        )
        yield Moments(tuple(stores), archive, archived)
