"""``stream``: history to Parquet as it happens, each event once, from where it was left."""

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, text

from timeoutmgr.pipeline.errors import RunConflict
from timeoutmgr.pipeline.frames import FORMAT, is_inside
from timeoutmgr.pipeline.jobs.run_context import Progress, silent, worker_errors
from timeoutmgr.pipeline.ledger import JobLedger, JobRun, JobRunState
from timeoutmgr.pipeline.options import StreamOptions
from timeoutmgr.pipeline.readers.history_stream import index_transactions, oldest_transaction
from timeoutmgr.pipeline.spark.session import in_utc
from timeoutmgr.pipeline.stores import Store, open_store
from timeoutmgr.pipeline.views import HISTORY, ddl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# --- how far each stream has read, in the store's ledger: archive removes nothing beyond ------
# A stream has one row of ``runs`` for its folder and checkpoint, from before it first begins until
# it is given up, also while no process follows it. The row's report holds the low-water position:
# every event of a transaction before ``xid`` is in the stream's folder.

KIND: Final = "stream"
_NOTHING: Final[Mapping[str, Any]] = {"xid": 0, "query": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPosition:
    """A stream into the folder *to* has read all transactions before *xid*."""

    to: str
    checkpoint: str
    xid: int

    def described(self) -> str:
        """Return which stream it is, and how it is given up."""
        return (
            f"the stream into {self.to}, which is at transaction {self.xid} (a stream that nobody "
            f"goes on with: `timeoutmgr pipeline stream --to {self.to} --checkpoint "
            f"{self.checkpoint} --abort`)"
        )


class StreamRuns:
    """The streams of the store that has *ledger*."""

    def __init__(self, ledger: JobLedger) -> None:
        self._ledger = ledger

    def begin(self, to: Path, checkpoint: Path, progress: Progress = silent) -> str:
        """Return the run id of the stream; from here on archive keeps unread events."""
        run_id = _run_id(to, checkpoint)
        run = self._ledger.begin(run_id, KIND, {"to": str(to), "checkpoint": str(checkpoint)})
        if run.state is JobRunState.ABORTED:
            self._ledger.note(run_id, _NOTHING)
            self._ledger.move(run_id, JobRunState.RUNNING)
            progress(
                "this stream was given up: events that archive has removed since then are not in "
                f"{to}"
            )
        return run_id

    def recognise(self, run_id: str, query: str) -> None:
        """Note by which id Spark knows the stream: its checkpoint has that id for good.

        Raises RunConflict where the position is that of another checkpoint of the same name.
        """
        run = self._ledger.find(run_id)
        assert run is not None, "the stream was begun"
        known = _report(run)
        if known["query"] not in (None, query):
            raise RunConflict(
                f"the ledger has a stream into {run.parameters['to']} with a checkpoint "
                f"{run.parameters['checkpoint']}, and this checkpoint is another: it was begun "
                "anew, or lies on another machine. Name another folder and checkpoint; if the "
                "first stream is over, give it up by the same command with --abort"
            )
        self._ledger.note(run_id, {**known, "query": query})

    def reached(self, run_id: str, xid: int) -> None:
        """Note that the stream's folder has all events of transactions before *xid*."""
        run = self._ledger.find(run_id)
        assert run is not None, "the stream was begun"
        self._ledger.note(run_id, {**_report(run), "xid": xid})

    def abort(self, to: Path, checkpoint: Path) -> bool:
        """Give a stream up: archive waits for it no longer; return whether it was known."""
        run = self._ledger.find(_run_id(to, checkpoint))
        if run is None or run.state.is_over:
            return False
        self._ledger.move(run.run_id, JobRunState.ABORTED)
        return True

    def low_water(self, connection: Connection) -> StreamPosition | None:
        """Return the position of the stream that is furthest behind, or None without streams."""
        positions = [
            StreamPosition(
                to=run.parameters["to"],
                checkpoint=run.parameters["checkpoint"],
                xid=_report(run)["xid"],
            )
            for run in self._ledger.runs_within(connection, KIND, JobRunState.RUNNING)
        ]
        return min(positions, key=lambda position: position.xid, default=None)


def _run_id(to: Path, checkpoint: Path) -> str:
    digest = sha256(f"{to}\0{checkpoint}".encode()).hexdigest()
    return f"{KIND}-{digest[:16]}"


def _report(run: JobRun) -> Mapping[str, Any]:
    return _NOTHING if run.report is None else run.report


_ASK_EVERY: Final = 10.0
"""Seconds between two looks at the server's list of sessions."""
_PATIENCE: Final = 30.0
"""Seconds for which a transaction is open before a stream tells of it."""
_REPORT_EVERY: Final = 60.0

# A session of another role shows its transaction, and not when that began.
_LAG: Final = text(
    "WITH now AS (SELECT pg_snapshot_xmin(pg_current_snapshot()) AS oldest, "
    "pg_snapshot_xmax(pg_current_snapshot()) AS next) "
    "SELECT CAST(CAST(oldest AS text) AS bigint) AS xid, "
    "CAST(CAST(next AS text) AS bigint) - CAST(CAST(oldest AS text) AS bigint) AS transactions, "
    "s.pid, coalesce(s.datname, p.database) AS database, p.gid AS prepared, "
    "CAST(extract(epoch FROM clock_timestamp() - coalesce(s.xact_start, p.prepared)) "
    "AS double precision) AS seconds FROM now "
    "LEFT JOIN pg_stat_activity s ON s.backend_xid = CAST(oldest AS xid) "
    "LEFT JOIN pg_prepared_xacts p ON p.transaction = CAST(oldest AS xid)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """The oldest open transaction *xid*, and how many *transactions* from it on cannot be read yet.

    Process *pid* has had it open in *database* for *seconds*, or it is *prepared* under that name;
    None is not known.
    """

    xid: int
    transactions: int
    pid: int | None = None
    database: str | None = None
    prepared: str | None = None
    seconds: float | None = None

    def described(self) -> str:
        """Return which transaction it is, and how it is ended."""
        if self.prepared is not None:
            holder, remedy = (
                f"prepared as {self.prepared!r}",
                f"ROLLBACK PREPARED '{self.prepared}'",
            )
        else:
            holder, remedy = f"of process {self.pid}", f"SELECT pg_terminate_backend({self.pid})"
        since = "" if self.seconds is None else f", open for {self.seconds:.0f} s"
        return (
            f"transaction {self.xid} {holder} in database {self.database!r}{since}, holds "
            f"{self.transactions} transactions back; wait for it, or end it: {remedy}"
        )


def lag_of(store: Store) -> Lag:
    """Return the transaction that holds streams of *store* back now, if there is such."""
    with store.database.read() as connection:
        return Lag(**connection.execute(_LAG).one()._mapping)


class LagReporter:
    """Tells *progress* of a transaction that holds a stream back for long, at most once a minute.

    *ask* returns the lag, *monotonic* the seconds of a clock.
    """

    def __init__(
        self,
        ask: Callable[[], Lag],
        monotonic: Callable[[], float],
        progress: Callable[[str], None],
    ) -> None:
        self._ask = ask
        self._monotonic = monotonic
        self._progress = progress
        self._next_poll = monotonic()
        self._next_report = monotonic()
        self._seen = (0, monotonic())

    def poll(self) -> None:
        """Ask, if it is time, and tell."""
        now = self._monotonic()
        if now < self._next_poll:
            return
        self._next_poll = now + _ASK_EVERY
        lag = self._ask()
        if lag.xid != self._seen[0]:
            self._seen = (lag.xid, now)
        open_for = max(lag.seconds or 0.0, now - self._seen[1])
        if lag.transactions and open_for >= _PATIENCE and now >= self._next_report:
            self._next_report = now + _REPORT_EVERY
            self._progress(lag.described())


_HELD: Final = "_spark_metadata"
_BEGUN: Final = "offsets"
_ENDED: Final = "commits"
_COMPACT: Final = ".compact"
_NONE: Final = -1


def require_pair(spark: "SparkSession", folder: Path, checkpoint: Path) -> None:
    """Raise RunConflict where *folder* was not written with *checkpoint*, as the numbers tell.

    Spark numbers the micro-batches of a stream by its checkpoint, where it notes a micro-batch
    before it begins (``offsets``) and after it ended (``commits``). The folder has a log of the
    micro-batches that it holds. Spark does not write a micro-batch again whose number is in that
    log, so that both agree after a crash. If folder and checkpoint are of two streams, the same
    number names other events, which Spark drops without a word.

    Spark itself looks, on the file system that the paths have for it. Through Spark Connect it
    shows no such thing: there this process looks for them on its own file system, and where it
    does not see them under the paths that the server has, nothing is refused.
    """
    held, begun, ended = (
        _last(_names(spark, where))
        for where in (folder / _HELD, checkpoint / _BEGUN, checkpoint / _ENDED)
    )
    if held > begun:
        raise RunConflict(
            f"{folder} holds the micro-batches up to number {held}, and the checkpoint "
            f"{checkpoint} {_up_to(begun)}: new events would get numbers that are there already, "
            "and would not be written; go on with the checkpoint that the folder was written "
            "with, or begin with another folder"
        )
    if held < ended:
        raise RunConflict(
            f"the checkpoint {checkpoint} is behind micro-batch number {ended}, and {folder} "
            f"{_up_to(held)}: earlier files are missing, and Spark could not read later "
            "files; go on with the folder that the checkpoint was used with, or begin with "
            "another checkpoint and another folder"
        )


def _up_to(number: int) -> str:
    return "has none" if number == _NONE else f"only has those up to number {number}"


def _last(names: Iterable[str]) -> int:
    """Return the highest number of a micro-batch among *names* of the files of a log."""
    numbers = (name.removesuffix(_COMPACT) for name in names)
    return max((int(number) for number in numbers if number.isdecimal()), default=_NONE)


def _names(spark: "SparkSession", folder: Path) -> list[str]:
    if not is_inside(spark):
        return [one.name for one in folder.iterdir()] if folder.is_dir() else []
    context: Any = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(str(folder))
    files = path.getFileSystem(context._jsc.hadoopConfiguration())
    return [one.getPath().getName() for one in files.listStatus(path)] if files.exists(path) else []


_POLL_EVERY: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReport:
    """How many events were written in how many micro-batches, and the backlog.

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

    It needs no Spark. Begun again, the stream lacks the events that archive has removed since.
    """
    store = open_store(options.store)
    store.require_tables()
    return StreamRuns(JobLedger(store)).abort(options.to.absolute(), options.checkpoint.absolute())


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

    Raises RunConflict where folder and checkpoint are not of one stream.
    """
    in_utc(spark)
    # A server of Spark Connect has another working directory than this process.
    to, checkpoint = options.to.absolute(), options.checkpoint.absolute()
    store = open_store(options.store)
    oldest_transaction(store)
    require_pair(spark, to, checkpoint)
    progress("looking for the index on transactions")
    if not index_transactions(store, stopped=stopped, progress=progress):
        return StreamReport(events=0, batches=0)
    runs = StreamRuns(JobLedger(store))
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
    so_far = _StreamProgress(lambda xid: runs.reached(run_id, xid), progress)
    with worker_errors():
        query = writer.start(str(to))
        try:
            runs.recognise(run_id, str(query.id))
            running = True
            lags = LagReporter(lambda: lag_of(store), time.monotonic, progress)
            while running:
                ended = query.awaitTermination(_POLL_EVERY)
                so_far.update(query.recentProgress)
                lags.poll()
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


class _StreamProgress:
    """Progress of a query: shown and noted once for each micro-batch that has ended."""

    def __init__(self, reached: Callable[[int], None], progress: Progress) -> None:
        self.events = self.batches = 0
        self._last, self._xid = -1, 0
        self._reached, self._progress = reached, progress

    def update(self, recent: Sequence[Mapping[str, Any]]) -> None:
        """Read Spark's progress of its most *recent* micro-batches."""
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
