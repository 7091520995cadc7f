"""Load: how many messages are due in each bucket of time, and what that asks of the senders.

The counting is done by the stores; what is left is small, so this is plain Python.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from heapq import nlargest

from timeoutmgr.instants import Micros, duration_micros


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """What is due for *destination* within one width from *begin* on."""

    endpoint: str
    destination: str
    begin: Micros
    messages: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """A bucket of all destinations together, and who is most of it."""

    begin: Micros
    messages: int
    per_second: float
    most: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """What a *capacity* of messages a second makes of the load.

    *latest* is by how much the last message of the worst backlog is late; it is worst at *at*,
    and *backlog* messages long. *needed* is the rate at which nothing waits longer than a bucket.
    """

    capacity: float
    needed: float
    latest: timedelta
    at: Micros | None
    backlog: int


def together(buckets: Iterable[Bucket]) -> list[Bucket]:
    """Return one bucket for each begin, endpoint and destination: stores may share them."""
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
    """Return how many messages are due in each bucket, in the order of time."""
    found: dict[Micros, int] = defaultdict(int)
    for bucket in buckets:
        found[bucket.begin] += bucket.messages
    return dict(sorted(found.items()))


def by_destination(buckets: Iterable[Bucket]) -> dict[str, int]:
    """Return how many messages are due for each destination, the most first."""
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


def drain(totals: Mapping[Micros, int], width: timedelta, capacity: float) -> Drain:
    """Return how a sender of *capacity* messages a second gets along with *totals*.

    What is due in a bucket is taken to be due at its begin: the worst that it can be.
    """
    backlog, before = 0.0, None
    worst, worst_at = 0.0, None
    for begin, messages in sorted(totals.items()):
        if before is not None:
            backlog = max(0.0, backlog - capacity * (begin - before) / 1_000_000)
        backlog, before = backlog + messages, begin
        if backlog > worst:
            worst, worst_at = backlog, begin
    return Drain(
        capacity=capacity,
        needed=max(totals.values(), default=0) / width.total_seconds(),
        latest=timedelta(seconds=worst / capacity),
        at=worst_at,
        backlog=round(worst),
    )


def coarser(totals: Mapping[Micros, int], width: timedelta, most: int) -> dict[Micros, int]:
    """Return *totals* in at most *most* buckets, each a whole number of *width*: for a picture."""
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
