"""``stream``: history to Parquet as it happens, each event once, from where it was left."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from timeoutmgr.errors import ConfigurationError
from timeoutmgr.pipeline.folders import folder_option
from timeoutmgr.pipeline.following import horizon, index_transactions
from timeoutmgr.pipeline.frames import FORMAT
from timeoutmgr.pipeline.jobs.batches import require_pair
from timeoutmgr.pipeline.jobs.running import Progress, silent, told_by_workers
from timeoutmgr.pipeline.jobs.stream_runs import StreamRuns
from timeoutmgr.pipeline.lagging import LagTeller, lag_of
from timeoutmgr.pipeline.ledger import Ledger
from timeoutmgr.pipeline.session import in_utc
from timeoutmgr.pipeline.stores import open_store
from timeoutmgr.pipeline.views import HISTORY, ddl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_EVERY: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Whose history goes where.

    *checkpoint* is a folder of this stream's own, which remembers how far it is; with *once* it
    ends when all is read that is there now, else it looks again every *every*. *any_timeline* goes
    on where another server took over that has every transaction of the old one.
    """

    store: str
    to: Path
    checkpoint: Path
    every: timedelta = timedelta(seconds=10)
    once: bool = False
    batch_events: int = 500_000
    any_timeline: bool = False

    def __post_init__(self) -> None:
        """Check every value."""
        if self.every <= timedelta(0):
            raise ConfigurationError(f"every must be positive, got {self.every}")
        if self.batch_events < 1:
            raise ConfigurationError(f"batch_events must be positive, got {self.batch_events}")
        folder_option("to", self.to)
        folder_option("checkpoint", self.checkpoint)
        if self.to.resolve() == self.checkpoint.resolve():
            raise ConfigurationError("the checkpoint needs a folder of its own")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReport:
    """How many events were written in how many micro-batches, and what is still to come.

    *behind* is how many transactions could not be read yet in the end, because the oldest of them
    was open: *held_by* says which.
    """

    events: int
    batches: int
    behind: int = 0
    held_by: str | None = None

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def give_up(options: StreamOptions) -> bool:
    """Have archive wait for the stream no longer; return whether there was such a stream.

    It needs no Spark. Begun again, the stream goes on without what archive has removed since.
    """
    store = open_store(options.store)
    store.require_tables()
    return StreamRuns(Ledger(store)).abort(options.to.absolute(), options.checkpoint.absolute())


def stream(
    spark: "SparkSession",
    options: StreamOptions,
    *,
    stopped: Callable[[], bool] = lambda: False,
    progress: Progress = silent,
) -> StreamReport:
    """Follow the history until *stopped* says so, or once.

    A batch that was cut off is read and written again, and counts once: the folder's own log says
    which files count, and Spark reads by it.

    The ledger of the store keeps how far the stream has read, and archive removes nothing beyond.

    Raises RunInTheWay where folder and checkpoint are not of one stream.
    """
    in_utc(spark)
    # A server of Spark Connect has another working directory than this process.
    to, checkpoint = options.to.absolute(), options.checkpoint.absolute()
    store = open_store(options.store)
    horizon(store)
    require_pair(spark, to, checkpoint)
    progress("looking for the index on transactions")
    if not index_transactions(store, stopped=stopped, progress=progress):
        return StreamReport(events=0, batches=0)
    runs = StreamRuns(Ledger(store))
    run_id = runs.begin(to, checkpoint, progress)
    source = spark.readStream.format(FORMAT).schema(ddl(HISTORY))
    rows = source.options(
        store=options.store,
        batch_events=str(options.batch_events),
        any_timeline=str(options.any_timeline).lower(),
    ).load()
    writer = rows.writeStream.format("parquet").option("compression", "zstd")
    writer = writer.option("checkpointLocation", str(checkpoint))
    if options.once:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{options.every.total_seconds():g} seconds")
    so_far = _SoFar(lambda xid: runs.reached(run_id, xid), progress)
    with told_by_workers():
        query = writer.start(str(to))
        try:
            runs.recognise(run_id, str(query.id))
            running = True
            lags = LagTeller(lambda: lag_of(store), time.monotonic, progress)
            while running:
                ended = query.awaitTermination(_LOOK_EVERY)
                so_far.look(query.recentProgress)
                lags.look()
                running = not ended and not stopped()
        finally:
            query.stop()
    lag = lag_of(store)
    return StreamReport(
        events=so_far.events,
        batches=so_far.batches,
        behind=lag.transactions,
        held_by=lag.described() if lag.transactions else None,
    )


class _SoFar:
    """What a query has written, told and noted once for each micro-batch that has ended."""

    def __init__(self, reached: Callable[[int], None], progress: Progress) -> None:
        self.events = self.batches = 0
        self._last, self._xid = -1, 0
        self._reached, self._progress = reached, progress

    def look(self, recent: Sequence[Mapping[str, Any]]) -> None:
        """Look at what Spark tells of its most *recent* micro-batches."""
        for one in recent:
            rows = one["numInputRows"]
            if one["batchId"] > self._last and rows:
                self._last = one["batchId"]
                self.events, self.batches = self.events + rows, self.batches + 1
                self._progress(f"batch {self._last}: {rows} events")
        # A micro-batch is told of once it is in the folder: this is no promise, it is done.
        xid = max((_end_of(one) for one in recent), default=0)
        if xid > self._xid:
            self._xid = xid
            self._reached(xid)


# Versions of pyspark differ in how they spell an offset: as JSON, or as Python does.
_XID: Final = re.compile(r"xid\W+(\d+)")


def _end_of(one: Mapping[str, Any]) -> int:
    """Return the transaction before which a micro-batch ends; 0 where nothing was read yet."""
    ends = (_XID.search(str(source["endOffset"])) for source in one["sources"])
    return max((int(end[1]) for end in ends if end is not None), default=0)
