"""``stream``: history to Parquet as it happens, each event once, from where it was left."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from timeoutmgr.errors import ConfigurationError
from timeoutmgr.pipeline.folders import folder_option
from timeoutmgr.pipeline.following import horizon, index_transactions
from timeoutmgr.pipeline.frames import FORMAT
from timeoutmgr.pipeline.jobs.batches import require_pair
from timeoutmgr.pipeline.jobs.running import Progress, silent, told_by_workers
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
    """How many events were written in how many micro-batches."""

    events: int
    batches: int

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {"events": self.events, "batches": self.batches}


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
    events = batches = 0
    last = -1
    with told_by_workers():
        query = writer.start(str(to))
        try:
            running = True
            while running:
                ended = query.awaitTermination(_LOOK_EVERY)
                for one in query.recentProgress:
                    if one["batchId"] > last and one["numInputRows"]:
                        last = one["batchId"]
                        events, batches = events + one["numInputRows"], batches + 1
                        progress(f"batch {last}: {one['numInputRows']} events")
                running = not ended and not stopped()
        finally:
            query.stop()
    return StreamReport(events=events, batches=batches)
