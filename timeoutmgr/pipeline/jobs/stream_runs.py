"""How far each stream has read a store, in the store's ledger: archive removes nothing beyond.

A stream has one row of ``runs`` for its folder and checkpoint, from before it first begins until it
is given up, also while no process follows it. The row's report holds the low-water position: every
event of a transaction before ``xid`` is in the stream's folder.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, text

from timeoutmgr.pipeline.errors import RunConflict
from timeoutmgr.pipeline.jobs.run_context import Progress, silent
from timeoutmgr.pipeline.ledger import JobLedger, JobRun, JobRunState
from timeoutmgr.pipeline.stores import Store

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
