"""``stream``: write history into a history table as it happens, each event once.

The job needs neither Spark nor a checkpoint: the table itself records how far it has read.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass
from hashlib import sha256
from threading import Event
from typing import Any, Final

from sqlalchemy import Connection, text

from timeoutmgr.pipeline.errors import RunConflict
from timeoutmgr.pipeline.jobs.run_context import Progress, silent
from timeoutmgr.pipeline.lake.places import open_table
from timeoutmgr.pipeline.lake.writer import TransactionWriter
from timeoutmgr.pipeline.ledger import JobLedger, JobRunState, exclusive_lock
from timeoutmgr.pipeline.options import StreamOptions, history_place
from timeoutmgr.pipeline.readers.transactions import index_transactions, oldest_transaction
from timeoutmgr.pipeline.stores import Store, identity, open_store

# --- positions of streams in the store's ledger: archive removes no event that follows --------
# A stream has one row of ``runs`` for its table, from before its first read until it is given up,
# even while no process runs it. The row's report holds the low-water position: every event of a
# transaction before ``xid`` is in the stream's table.

KIND: Final = "stream"
_NOTHING: Final[Mapping[str, Any]] = {"xid": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPosition:
    """The position of a stream into the table *to*: it has read all transactions before *xid*."""

    to: str
    xid: int

    def described(self) -> str:
        """Return a description of the stream, and how to give it up."""
        return (
            f"the stream into {self.to}, which is at transaction {self.xid} (a stream that nobody "
            f"goes on with: `timeoutmgr pipeline stream --to {self.to} --abort`),"
        )


class StreamRuns:
    """The streams of the store that has *ledger*."""

    def __init__(self, ledger: JobLedger) -> None:
        self._ledger = ledger

    def begin(self, to: str, progress: Progress = silent) -> str:
        """Return the run id of the stream; from now on, archive keeps unread events."""
        run_id = _run_id(to)
        run = self._ledger.begin(run_id, KIND, {"to": to})
        if run.state is JobRunState.ABORTED:
            self._ledger.move(run_id, JobRunState.RUNNING, _NOTHING)
            progress(
                "this stream was given up: events that archive has removed since then are not in "
                f"{to}, unless archive wrote there"
            )
        return run_id

    def reached(self, run_id: str, xid: int) -> None:
        """Record that the stream's table has all events of transactions before *xid*."""
        self._ledger.note(run_id, {"xid": xid})

    def abort(self, to: str) -> bool:
        """Give up a stream, so that archive no longer waits for it; return whether it was known."""
        run = self._ledger.find(_run_id(to))
        if run is None or run.state.is_over:
            return False
        self._ledger.move(run.run_id, JobRunState.ABORTED)
        return True

    def low_water(self, connection: Connection, but: str = "") -> StreamPosition | None:
        """Return the position of the stream that is furthest behind; None if there are no streams.

        Ignore the stream into the table *but*.
        """
        positions = [
            StreamPosition(to=run.parameters["to"], xid=(run.report or _NOTHING)["xid"])
            for run in self._ledger.runs_within(connection, KIND, JobRunState.RUNNING)
            if run.parameters["to"] != but
        ]
        return min(positions, key=lambda position: position.xid, default=None)


def _run_id(to: str) -> str:
    return f"{KIND}-{sha256(to.encode()).hexdigest()[:16]}"


def writer_lock(store: Store, place: str) -> AbstractContextManager[None]:
    """Exclude other processes from writing the history of *store* into the table at *place*.

    Raises RunConflict while another process writes. A process that lost the lock unnoticed still
    cannot write an event twice: its commit conflicts with the other process' commit.
    """
    return exclusive_lock(store, f"history of {identity(store)} into {place}")


_ASK_EVERY: Final = 10.0
"""Seconds between two queries of the server's list of sessions."""
_PATIENCE: Final = 30.0
"""Seconds that a transaction must be open before a stream reports it."""
_REPORT_EVERY: Final = 60.0

# A session of another role shows its transaction, but not when the transaction began.
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
    """The oldest open transaction *xid*, and how many *transactions* it keeps from being read.

    Process *pid* has had it open in *database* for *seconds*, or it is *prepared* under that name;
    None means unknown.
    """

    xid: int
    transactions: int
    pid: int | None = None
    database: str | None = None
    prepared: str | None = None
    seconds: float | None = None

    def described(self) -> str:
        """Return a description of the transaction, and how to end it."""
        holder, remedy = f"of process {self.pid}", f"SELECT pg_terminate_backend({self.pid})"
        if self.prepared is not None:
            holder, remedy = (
                f"prepared as {self.prepared!r}",
                f"ROLLBACK PREPARED '{self.prepared}'",
            )
        elif self.pid is None:
            return (
                f"transaction {self.xid} held {self.transactions} transactions back, and has ended"
            )
        since = "" if self.seconds is None else f", open for {self.seconds:.0f} s"
        return (
            f"transaction {self.xid} {holder} in database {self.database!r}{since}, holds "
            f"{self.transactions} transactions back; wait for it, or end it: {remedy}"
        )


def lag_of(store: Store) -> Lag:
    """Return the transaction that now holds back streams of *store*, or None."""
    with store.database.read() as connection:
        return Lag(**connection.execute(_LAG).one()._mapping)


class LagReporter:
    """Reports to *progress*, at most once a minute, a transaction that holds back a stream.

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
        """Query and report, if the next query is due."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReport:
    """The number of written events and commits, and the backlog.

    *behind* is the number of transactions that could not be read yet at the end, because the oldest
    of them was open; *held_by* describes that transaction.
    """

    events: int
    batches: int
    behind: int = 0
    held_by: str | None = None

    def document(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return asdict(self)


def give_up(options: StreamOptions) -> bool:
    """Give up the stream, so that archive no longer waits for it; return whether it existed.

    Raises RunConflict while the stream runs: it would go on, and miss events that archive removes.
    """
    store = open_store(options.store)
    store.require_tables()
    place = history_place("to", options.to)  # not opened: its disk may be lost
    with ExitStack() as stack:
        try:
            stack.enter_context(writer_lock(store, place))
        except RunConflict as error:
            raise RunConflict(
                f"a stream or an archive writes into {place} at this moment; stop it first, and "
                "then give the stream up"
            ) from error
        return StreamRuns(JobLedger(store)).abort(place)


def stream(
    options: StreamOptions, *, stop: Event | None = None, progress: Progress = silent
) -> StreamReport:
    """Follow the history until *stop* is set; with ``once``, only to its present end.

    An interrupted commit is written again, and counts once. The store's ledger records how far the
    stream has read; archive removes no events beyond.

    Raises RunConflict while another process writes this store's history into the table, and if the
    table is of another server or a later time.
    """
    stop = stop or Event()
    store = open_store(options.store)
    store.require_tables()
    now = oldest_transaction(store)
    last = now.xid if options.once else None
    table = open_table(options.to)
    with writer_lock(store, table.place):
        progress("looking for the index on transactions")
        if not index_transactions(store, stopped=stop.is_set, progress=progress):
            return StreamReport(events=0, batches=0)
        runs = StreamRuns(JobLedger(store))
        run_id = runs.begin(table.place, progress)
        writer = TransactionWriter(
            store=store,
            table=table,
            most=options.batch_events,
            any_timeline=options.any_timeline,
            last=last,
            reached=lambda xid: runs.reached(run_id, xid),
        )
        events, batches = _followed(writer, options, stop, progress)
    lag = lag_of(store)
    return StreamReport(
        events=events,
        batches=batches,
        behind=lag.transactions,
        held_by=lag.described() if lag.transactions else None,
    )


def _followed(
    writer: TransactionWriter, options: StreamOptions, stop: Event, progress: Progress
) -> tuple[int, int]:
    lags = LagReporter(lambda: lag_of(writer.store), time.monotonic, progress)
    events = batches = 0
    while not stop.is_set():
        count = writer.step()
        if count is not None:
            events, batches = events + count, batches + 1
            progress(f"batch {batches}: {count} events")
        elif options.once:
            break
        else:
            lags.poll()
        # Wait: otherwise each of a few events would be a commit with its own files.
        if not options.once and not writer.has_more:
            stop.wait(options.every.total_seconds())
    return events, batches
