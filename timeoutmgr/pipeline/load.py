"""Load: the number of messages due in each bucket of time, and the rate that senders need.

The stores' databases count, and no row leaves them. The counts are few, so the rest is plain Python
without Arrow.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from heapq import nlargest
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Select, Table, cast, func, literal_column, select

from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import Micros, duration_micros, seconds
from timeoutmgr.pipeline.stores import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Messages due for *destination* within the width of a bucket from *begin* on.

    The current bucket is split in two: its overdue messages, and the rest.
    """

    endpoint: str
    destination: str
    begin: Micros
    messages: int
    bytes: int
    is_overdue: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """A bucket over all destinations, and the destination with most of its messages."""

    begin: Micros
    messages: int
    per_second: float
    most: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogForecast:
    """The backlog of a sender with a *capacity* of messages a second.

    The worst backlog has *backlog* messages, at *at*; its last message is late by *latest*.
    *needed* is the rate at which no message waits longer than a bucket.
    """

    capacity: float
    needed: float
    latest: timedelta
    at: Micros | None
    backlog: int


def together(buckets: Iterable[Bucket]) -> list[Bucket]:
    """Merge buckets with the same begin, endpoint and destination, as several stores can have."""
    sums: dict[tuple[Micros, str, str], list[int]] = defaultdict(lambda: [0, 0])
    for one in buckets:
        found = sums[one.begin, one.endpoint, one.destination]
        found[0] += one.messages
        found[1] += one.bytes
    return [
        Bucket(begin=begin, endpoint=of, destination=to, messages=messages, bytes=bytes_)
        for (begin, of, to), (messages, bytes_) in sums.items()
    ]


def by_time(buckets: Iterable[Bucket]) -> dict[Micros, int]:
    """Return how many messages are due in each bucket, in order of time."""
    found: dict[Micros, int] = defaultdict(int)
    for bucket in buckets:
        found[bucket.begin] += bucket.messages
    return dict(sorted(found.items()))


def by_destination(buckets: Iterable[Bucket]) -> dict[str, int]:
    """Return how many messages are due for each destination, largest number first."""
    found: dict[str, int] = defaultdict(int)
    for bucket in buckets:
        found[bucket.destination] += bucket.messages
    return dict(sorted(found.items(), key=lambda one: (-one[1], one[0])))


def peaks(buckets: Sequence[Bucket], width: timedelta, most: int) -> list[Peak]:
    """Return the *most* busiest buckets, the busiest first."""
    totals = by_time(buckets)
    busiest = nlargest(most, totals, key=lambda begin: (totals[begin], -begin))
    of_peaks: dict[Micros, dict[str, int]] = {begin: defaultdict(int) for begin in busiest}
    for bucket in buckets:
        if bucket.begin in of_peaks:
            of_peaks[bucket.begin][bucket.destination] += bucket.messages
    return [_peak(begin, totals[begin], of_peaks[begin], width) for begin in busiest]


def _peak(begin: Micros, total: int, parts: Mapping[str, int], width: timedelta) -> Peak:
    most = max(sorted(parts), key=lambda destination: parts[destination])
    return Peak(
        begin=begin,
        messages=total,
        per_second=total / width.total_seconds(),
        most=most,
        share=parts[most] / total,
    )


def drain(totals: Mapping[Micros, int], width: timedelta, capacity: float) -> BacklogForecast:
    """Return the backlog of a sender of *capacity* messages a second with the load *totals*.

    All messages of a bucket count as due at its begin: the worst case. Raises ConfigurationError if
    the backlog would end after the year 9999.
    """
    backlog, before = 0.0, None
    worst, worst_at = 0.0, None
    for begin, messages in sorted(totals.items()):
        if before is not None:
            backlog = max(0.0, backlog - capacity * (begin - before) / 1_000_000)
        backlog, before = backlog + messages, begin
        if backlog > worst:
            worst, worst_at = backlog, begin
    try:
        latest = seconds(worst / capacity)
    except ValueError as error:
        raise ConfigurationError(
            f"the worst backlog lasts too long: {error}; give a capacity above {capacity:g}"
        ) from None
    return BacklogForecast(
        capacity=capacity,
        needed=max(totals.values(), default=0) / width.total_seconds(),
        latest=latest,
        at=worst_at,
        backlog=round(worst),
    )


def coarser(totals: Mapping[Micros, int], width: timedelta, most: int) -> dict[Micros, int]:
    """Return *totals* for a chart: in at most *most* buckets, each a multiple of *width*."""
    if not totals:
        return {}
    step = duration_micros(width)
    first, last = min(totals), max(totals)
    factor = max(1, -(-((last - first) // step + 1) // most))
    found: dict[Micros, int] = {
        first + step * factor * at: 0
        for at in range(min(most, (last - first) // (step * factor) + 1))
    }
    for begin, messages in totals.items():
        found[first + (begin - first) // (step * factor) * step * factor] += messages
    return found


def checked_bucket(bucket: timedelta) -> timedelta:
    """Return *bucket* if it is whole seconds; otherwise raise ConfigurationError."""
    if bucket < timedelta(seconds=1) or bucket % timedelta(seconds=1):
        raise ConfigurationError(f"a bucket is whole seconds, at least one, got {bucket}")
    return bucket


def load_of(
    table: Table, bucket: timedelta
) -> tuple[Select[Any], Mapping[str, ColumnElement[Any]]]:
    """Return the statement that groups the timeouts in *table*, and its columns by name."""
    width = literal_column(str(duration_micros(bucket)), BigInteger)
    begin = (table.c.due - table.c.due % width).label("bucket")
    group = [table.c.endpoint, table.c.destination, begin]
    columns: dict[str, ColumnElement[Any]] = {
        **{each.name: each for each in group},
        "messages": func.count().label("messages"),
        # A sum of BIGINT values is NUMERIC on PostgreSQL, and DECIMAL on MySQL.
        "bytes": cast(func.sum(func.length(table.c.body)), BigInteger).label("bytes"),
    }
    return select(*columns.values()).group_by(*group), columns


def count_load(
    store: Store, bucket: timedelta, at: Micros, until: Micros, equal: Mapping[str, str | None]
) -> list[Bucket]:
    """Return the load of *store* before *until*, of rows with the values *equal*, by *bucket*.

    Timeouts due before *at* are overdue.
    """
    table = store.tables.timeouts
    overdue = (table.c.due < at).label("is_overdue")
    grouped, _columns = load_of(table, checked_bucket(bucket))
    statement = grouped.add_columns(overdue).group_by(overdue)
    with store.database.read() as connection:
        wanted = [table.c[name] == value for name, value in equal.items() if value is not None]
        rows = connection.execute(statement.where(table.c.due < until, *wanted)).all()
    return [
        Bucket(
            endpoint=row.endpoint,
            destination=row.destination,
            begin=row.bucket,
            messages=row.messages,
            bytes=row.bytes,
            is_overdue=bool(row.is_overdue),
        )
        for row in rows
    ]
