"""What holds a stream back: the oldest transaction of the whole server, in any of its databases."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sqlalchemy import text

from timeoutmgr.pipeline.stores import Store

_ASK_EVERY: Final = 10.0
"""Seconds between two looks at the server's list of sessions."""
_PATIENCE: Final = 30.0
"""Seconds for which a transaction is open before a stream tells of it."""
_TELL_EVERY: Final = 60.0

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
    """Return what holds streams of *store* back now: of no transactions where nothing does."""
    with store.database.read() as connection:
        return Lag(**connection.execute(_LAG).one()._mapping)


class LagTeller:
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
        self._next_look = monotonic()
        self._next_tale = monotonic()
        self._seen = (0, monotonic())

    def look(self) -> None:
        """Ask, if it is time, and tell."""
        now = self._monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _ASK_EVERY
        lag = self._ask()
        if lag.xid != self._seen[0]:
            self._seen = (lag.xid, now)
        open_for = max(lag.seconds or 0.0, now - self._seen[1])
        if lag.transactions and open_for >= _PATIENCE and now >= self._next_tale:
            self._next_tale = now + _TELL_EVERY
            self._progress(lag.described())
