"""The store's part of a dispatch alone: claim, lock, close; its time and its log."""

import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Outcome, OutcomeKind, TimeoutStore

from .messages import micros

OWNER = "benchmark"


@dataclass(frozen=True, slots=True)
class ChunkTimes:
    """One chunk: microseconds and bytes of log for each row."""

    claim_us: float
    all_us: float
    claim_wal: float
    all_wal: float


def run_chunk(
    store: TimeoutStore, chunk: int, written: Callable[[], int] = lambda: 0
) -> ChunkTimes:
    """Claim, lock and close *chunk* timeouts; *written* returns the end of the log."""
    at, log = time.perf_counter(), written()
    asked = time.perf_counter() - at
    claimed = store.claim(SystemClock().now(), chunk, OWNER)
    claim_at, claim_log = time.perf_counter(), written()
    assert len(claimed.keys) == chunk, f"{len(claimed.keys)} were due"
    with store.lock_for_dispatch(claimed.token, claimed.keys) as locked:
        assert len(locked.timeouts) == chunk
        now = micros()
        locked.close([Outcome(key=k, kind=OutcomeKind.DISPATCHED, at=now) for k in claimed.keys])
    end, end_log = time.perf_counter(), written()
    return ChunkTimes(
        (claim_at - at - asked) / chunk * 1e6,
        (end - at - 2 * asked) / chunk * 1e6,
        (claim_log - log) / chunk,
        (end_log - log) / chunk,
    )


def poll_nothing(store: TimeoutStore, chunk: int) -> float:
    """Return the seconds of a claim that finds no due timeout."""
    at = time.perf_counter()
    claimed = store.claim(SystemClock().now(), chunk, OWNER)
    assert not claimed.keys
    return time.perf_counter() - at


def of(runs: list[ChunkTimes], figure: str) -> float:
    """Return the median of a figure of *runs*."""
    return median(getattr(run, figure) for run in runs)


def log_position(connection: Any) -> Callable[[], int]:
    """Return a function for the bytes of log that a PostgreSQL server has written."""
    query = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint"
    return lambda: connection.execute(query).fetchone()[0]


@contextmanager
def old_snapshot(connection: Any):
    """Keep a snapshot open, like a long report or a dump."""
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT txid_current_snapshot()")
        yield
