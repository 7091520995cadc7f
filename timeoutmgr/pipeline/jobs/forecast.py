"""``forecast``: what is due when, counted in the stores; where it is hot, and what that needs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from timeoutmgr.contracts import Clock
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.instants import Micros, duration_micros, from_micros
from timeoutmgr.pipeline.counting import count_load
from timeoutmgr.pipeline.jobs.running import Progress, each_store, silent
from timeoutmgr.pipeline.transforms.load import (
    Bucket,
    Drain,
    Peak,
    by_destination,
    by_time,
    drain,
    peaks,
    together,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastOptions:
    """What to look at: the next *horizon* of the stores, in buckets of *bucket*.

    *capacity* is how many messages a second can be sent, if that is known. What is overdue
    already counts as due now.
    """

    stores: tuple[str, ...]
    bucket: timedelta = timedelta(minutes=1)
    horizon: timedelta = timedelta(days=7)
    capacity: float | None = None
    peaks: int = 10

    def __post_init__(self) -> None:
        """Check every value."""
        if not self.stores:
            raise ConfigurationError("no store is given; name at least one")
        if self.horizon < self.bucket:
            raise ConfigurationError(
                f"the horizon is at least one bucket ({self.bucket}), got {self.horizon}"
            )
        if self.capacity is not None and self.capacity <= 0:
            raise ConfigurationError(f"capacity must be positive, got {self.capacity}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastReport:
    """The load ahead of *at*; *buckets* has it for each time, endpoint and destination."""

    at: Micros
    options: ForecastOptions
    messages: int
    bytes: int
    overdue: int
    totals: dict[Micros, int]
    destinations: dict[str, int]
    peaks: Sequence[Peak]
    drain: Drain | None
    buckets: Sequence[Bucket]

    def lines(self) -> Iterator[Sequence[object]]:
        """Yield the buckets in the order of time, as lines of a table, its head first."""
        yield ["begin", "endpoint", "destination", "messages", "bytes"]
        for one in sorted(self.buckets, key=lambda one: (one.begin, one.endpoint, one.destination)):
            begin = from_micros(one.begin).isoformat()
            yield [begin, one.endpoint, one.destination, one.messages, one.bytes]

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "at": from_micros(self.at).isoformat(),
            "horizon_seconds": self.options.horizon.total_seconds(),
            "bucket_seconds": self.options.bucket.total_seconds(),
            "messages": self.messages,
            "bytes": self.bytes,
            "overdue": self.overdue,
            "destinations": self.destinations,
            "peaks": [
                {
                    "begin": from_micros(one.begin).isoformat(),
                    "messages": one.messages,
                    "needs_per_second": round(one.per_second, 3),
                    "most_for": one.most,
                    "share": round(one.share, 3),
                }
                for one in self.peaks
            ],
            "drain": None if self.drain is None else _drained(self.drain),
        }


def forecast(
    options: ForecastOptions, *, clock: Clock, progress: Progress = silent
) -> ForecastReport:
    """Return the load ahead; it needs no Spark, since the stores count."""
    found: list[Bucket] = []
    at = 0
    for store in each_store(options.stores):
        progress(f"counting in {store.name or 'the store'}")
        store.require_tables()
        at = store.database.now(clock)
        until = at + duration_micros(options.horizon)
        found += count_load(store, options.bucket, until)
    return report(found, at, options)


def report(found: Sequence[Bucket], at: Micros, options: ForecastOptions) -> ForecastReport:
    """Return what *found* says of the time after *at*."""
    width = duration_micros(options.bucket)
    now = at - at % width
    ahead = [bucket if bucket.begin >= now else _moved(bucket, now) for bucket in found]
    totals = by_time(ahead)
    return ForecastReport(
        at=at,
        options=options,
        messages=sum(totals.values()),
        bytes=sum(bucket.bytes for bucket in ahead),
        overdue=sum(bucket.messages for bucket in found if bucket.begin < now),
        totals=totals,
        destinations=by_destination(ahead),
        peaks=peaks(ahead, options.bucket, options.peaks),
        drain=None if options.capacity is None else drain(totals, options.bucket, options.capacity),
        buckets=together(ahead),
    )


def _moved(bucket: Bucket, now: Micros) -> Bucket:
    return Bucket(
        endpoint=bucket.endpoint,
        destination=bucket.destination,
        begin=now,
        messages=bucket.messages,
        bytes=bucket.bytes,
    )


def _drained(drained: Drain) -> dict[str, Any]:
    return {
        "capacity_per_second": drained.capacity,
        "needed_per_second": round(drained.needed, 3),
        "longest_wait_seconds": round(drained.latest.total_seconds(), 3),
        "worst_at": None if drained.at is None else from_micros(drained.at).isoformat(),
        "backlog": drained.backlog,
    }
