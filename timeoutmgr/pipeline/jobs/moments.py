"""Consistent moments of stores and their history table, in which each event is read once."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from timeoutmgr.contracts import Clock
from timeoutmgr.message.instants import Micros, to_micros
from timeoutmgr.pipeline.frames import EVERYTHING, read_table
from timeoutmgr.pipeline.jobs.run_context import each_store
from timeoutmgr.pipeline.lake.places import present_table
from timeoutmgr.pipeline.lake.table import ANYTHING, ROW, HistoryTable, Where
from timeoutmgr.pipeline.snapshots import SharedSnapshot, Snapshot, snapshot
from timeoutmgr.pipeline.stores import identity
from timeoutmgr.pipeline.views import Selection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment of a store: *fresh* events come from it, *kept* events from the history table.

    Without *is_split* an event may be in both; then the table's event counts.
    """

    snapshot: Snapshot
    fresh: Selection = EVERYTHING
    kept: Where | None = None
    is_split: bool = True


@dataclass(frozen=True, slots=True)
class Moments:
    """Moments of *stores*, and the *table*; without stores, all events of the table.

    Reads return only the rows that *which* selects.
    """

    stores: tuple[Moment, ...]
    table: HistoryTable | None
    which: Selection = EVERYTHING

    def history(self, spark: "SparkSession", columns: Sequence[str]) -> list["DataFrame"]:
        """Return *columns* (which include sequence and at) of all events, each event once."""
        if self.table is not None and not self.stores:
            return [read_table(spark, self.table, columns, self._wanted(ANYTHING))]
        return [frame for one in self.stores for frame in self.events_of(spark, one, columns)]

    def events_of(
        self, spark: "SparkSession", one: Moment, columns: Sequence[str]
    ) -> Iterator["DataFrame"]:
        """Yield *columns* of the events of a single store; see ``history``."""
        fresh = replace(self.which, xid_from=one.fresh.xid_from)
        rows = one.snapshot.read(spark, "history", columns=columns, which=fresh)
        if self.table is None or one.kept is None:
            yield rows
            return
        yield read_table(spark, self.table, columns, self._wanted(one.kept))
        if not one.is_split:
            compared = [name for name in ROW if name in columns]
            held = read_table(spark, self.table, compared, self._wanted(one.kept))
            rows = rows.join(held, compared, "left_anti")
        yield rows

    def _wanted(self, where: Where) -> Where:
        ends = [end for end in (where.end, self.which.at_before) if end is not None]
        return replace(
            where,
            begin=self.which.at_from,
            end=min(ends, default=None),
            endpoint=self.which.endpoint,
            destination=self.which.destination,
        )


def micros_of(at: datetime | None) -> Micros | None:
    """Return *at*, an option of a job, in microseconds."""
    return None if at is None else to_micros(at)


@contextmanager
def moments(
    names: Iterable[str],
    place: str | None,
    *,
    views: Sequence[str],
    columns: Sequence[str],
    which: Selection = EVERYTHING,
    clock: Clock,
) -> Iterator[Moments]:
    """Hold a moment of each store, and of the history table at *place*, until the block ends.

    See :func:`~timeoutmgr.pipeline.snapshots.snapshot` for *views*, *columns* and *which*.
    """
    with ExitStack() as stack:
        # Archive first writes an event into the table, then removes it from the store. So open
        # the table after the snapshots: it then has every event that a snapshot lacks.
        held = [
            stack.enter_context(
                snapshot(store, views=views, columns=columns, which=which, clock=clock)
            )
            for store in each_store(names)
        ]
        table = None if place is None else present_table(place)
        yield Moments(tuple(_moment(one, table) for one in held), table, which)


def _moment(held: Snapshot, table: HistoryTable | None) -> Moment:
    if table is None:
        return Moment(held)
    store = identity(held.store)
    marks = table.marks(store)
    if not marks:
        return Moment(held)
    if isinstance(held, SharedSnapshot):
        now = held.oldest
        if now.is_counted_as(marks):
            # Before this transaction the table has all events, and the snapshot saw all of them.
            border = min(marks["xid"], now.xid)
            kept = Where(store=store, before_xid=border)
            return Moment(held, Selection(xid_from=border), kept)
    return Moment(held, kept=Where(store=store, end=held.now), is_split=False)
