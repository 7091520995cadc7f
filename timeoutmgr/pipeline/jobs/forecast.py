"""``forecast``: due messages over time, as the stores count them, with peaks and needed rate."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from timeoutmgr.contracts import Clock
from timeoutmgr.message.instants import Micros, duration_micros, from_micros
from timeoutmgr.pipeline.jobs.run_context import Progress, each_store, silent
from timeoutmgr.pipeline.load import (
    BacklogForecast,
    Bucket,
    Peak,
    by_destination,
    by_time,
    coarser,
    count_load,
    drain,
    peaks,
    together,
)
from timeoutmgr.pipeline.options import ForecastOptions
from timeoutmgr.pipeline.pages import Bar, bars, page, shown_span, shown_time, table

_MOST_BARS: Final = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastReport:
    """The load after *at*; *buckets* divides it by time, endpoint and destination."""

    at: Micros
    options: ForecastOptions
    messages: int
    bytes: int
    overdue: int
    totals: dict[Micros, int]
    destinations: dict[str, int]
    peaks: Sequence[Peak]
    drain: BacklogForecast | None
    buckets: Sequence[Bucket]

    def lines(self) -> Iterator[Sequence[object]]:
        """Yield the lines of a table: the header, then the buckets in order of time."""
        yield ["begin", "endpoint", "destination", "messages", "bytes"]
        for one in sorted(self.buckets, key=lambda one: (one.begin, one.endpoint, one.destination)):
            begin = from_micros(one.begin).isoformat()
            yield [begin, one.endpoint, one.destination, one.messages, one.bytes]

    def document(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {
            "at": from_micros(self.at).isoformat(),
            "horizon_seconds": self.options.ahead.total_seconds(),
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
    """Return the load ahead; needs no Spark, since the stores count."""
    found: list[Bucket] = []
    at = 0
    for store in each_store(options.stores):
        progress(f"counting in {store.name or 'the store'}")
        store.require_tables()
        at = store.database.now(clock)
        until = at + duration_micros(options.ahead)
        equal = {"endpoint": options.endpoint, "destination": options.destination}
        found += count_load(store, options.bucket, at, until, equal)
    return report(found, at, options)


def report(found: Sequence[Bucket], at: Micros, options: ForecastOptions) -> ForecastReport:
    """Return the report on the load after *at* that *found* counts."""
    width = duration_micros(options.bucket)
    now = at - at % width
    ahead = [one if one.begin >= now else replace(one, begin=now) for one in found]
    totals = by_time(ahead)
    return ForecastReport(
        at=at,
        options=options,
        messages=sum(totals.values()),
        bytes=sum(bucket.bytes for bucket in ahead),
        overdue=sum(bucket.messages for bucket in found if bucket.is_overdue),
        totals=totals,
        destinations=by_destination(ahead),
        peaks=peaks(ahead, options.bucket, options.peaks),
        drain=None if options.capacity is None else drain(totals, options.bucket, options.capacity),
        buckets=together(ahead),
    )


def _drained(drained: BacklogForecast) -> dict[str, Any]:
    return {
        "capacity_per_second": drained.capacity,
        "needed_per_second": round(drained.needed, 3),
        "longest_wait_seconds": round(drained.latest.total_seconds(), 3),
        "worst_at": None if drained.at is None else from_micros(drained.at).isoformat(),
        "backlog": drained.backlog,
    }


def forecast_page(report: ForecastReport) -> str:
    """Return the load ahead as an HTML page."""
    options = report.options
    totals = coarser(report.totals, options.bucket, _MOST_BARS)
    width = _width(list(totals)) or options.bucket
    hot = {max(totals, key=lambda begin: totals[begin])} if totals else set()
    curve = [
        Bar(_label(begin, width), count, f"{shown_time(begin)}: {count:,} messages", begin in hot)
        for begin, count in totals.items()
    ]
    parts = [
        f'<p class="note">At {shown_time(report.at)}, for the next {shown_span(options.ahead)}: '
        f"{report.messages:,} messages, {report.bytes:,} bytes of bodies, {report.overdue:,} "
        "overdue already.</p>",
        f"<h2>Messages due, per {shown_span(width)}</h2>",
        bars("messages due over time", curve),
        f"<h2>The busiest {shown_span(options.bucket)} buckets</h2>",
        table(
            ["begin", "messages", "needs per second", "most for", "share"],
            [
                (
                    shown_time(one.begin),
                    one.messages,
                    round(one.per_second, 1),
                    one.most,
                    f"{one.share:.0%}",
                )
                for one in report.peaks
            ],
        ),
        "<h2>Destinations</h2>",
        table(["destination", "messages"], list(report.destinations.items())[:50]),
    ]
    if report.drain is not None:
        one = report.drain
        kind = "well" if one.capacity >= one.needed else "bad"
        parts.insert(
            1,
            f'<p class="{kind}">At {one.capacity:g} messages a second the worst backlog is '
            f"{one.backlog:,} messages, and its last one {shown_span(one.latest)} late"
            f"{f', at {shown_time(one.at)}' if one.at is not None else ''}. "
            f"Without waiting it needs {one.needed:,.1f} a second.</p>",
        )
    return page("What is due", parts)


def _label(instant: Micros, width: timedelta) -> str:
    return from_micros(instant).strftime("%m-%d %H:%M" if width < timedelta(days=1) else "%m-%d")


def _width(begins: Sequence[Micros]) -> timedelta | None:
    return timedelta(microseconds=begins[1] - begins[0]) if len(begins) > 1 else None
