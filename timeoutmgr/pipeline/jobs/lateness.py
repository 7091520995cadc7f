"""``lateness``: how late messages were, compared with the promise."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as f

from timeoutmgr.contracts import Clock
from timeoutmgr.message.instants import duration_micros
from timeoutmgr.pipeline.jobs.moments import micros_of, moments
from timeoutmgr.pipeline.jobs.run_context import Progress, silent, worker_errors
from timeoutmgr.pipeline.options import QUANTILES, LatenessOptions
from timeoutmgr.pipeline.pages import Bar, bars, page, shown_span, table
from timeoutmgr.pipeline.spark.session import in_utc
from timeoutmgr.pipeline.transforms.verdicts import together
from timeoutmgr.pipeline.views import Selection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def group_lateness(
    history: "DataFrame", by: tuple[str, ...], slo: timedelta, *, is_exact: bool = True
) -> "DataFrame":
    """Return quantiles of the lateness in *history* by group, in microseconds.

    Quantiles are exact (interpolated between neighbours) or, in less memory, approximate: each is
    the lateness of a message whose rank is off by at most one in ten thousand. *late* counts
    messages later than *slo*; an early message would make *least* negative.
    """
    sent = history.where(f.col("event") == "dispatched").select(
        "endpoint",
        "destination",
        f.to_date("due").alias("day"),
        (f.unix_micros("at") - f.unix_micros("due")).alias("lateness"),
    )
    wanted = list(QUANTILES.values())
    quantiles_of = f.percentile if is_exact else f.percentile_approx
    found = sent.groupBy(*by).agg(
        f.count(f.lit(1)).alias("messages"),
        quantiles_of("lateness", wanted).alias("quantiles"),
        f.min("lateness").alias("least"),
        f.max("lateness").alias("most"),
        f.count_if(f.col("lateness") > duration_micros(slo)).alias("late"),
    )
    quantiles = (f.col("quantiles")[at].alias(name) for at, name in enumerate(QUANTILES))
    return found.select(*by, "messages", *quantiles, "least", "most", "late")


def histogram(history: "DataFrame") -> "DataFrame":
    """Return how many messages were late by less than each power of two microseconds."""
    late = f.unix_micros("at") - f.unix_micros("due")
    power = f.ceil(f.log2(f.greatest(late, f.lit(1)).cast("double")))
    sent = history.where(f.col("event") == "dispatched")
    return sent.groupBy(power.cast("int").alias("power")).agg(f.count(f.lit(1)).alias("messages"))


_COLUMNS: Final = ("sequence", "event", "at", "due", "endpoint", "destination")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatenessReport:
    """Numbers of *messages*, of groups, and of *broken* groups, which break the promise.

    *groups* are the worst groups in order; *histogram* counts messages by powers of two
    microseconds. *frame* has all groups, in microseconds, as long as its session lasts.
    """

    options: LatenessOptions
    messages: int
    of_groups: int
    broken: int
    groups: tuple[dict[str, Any], ...]
    histogram: dict[int, int]
    frame: "DataFrame"

    @property
    def breaches(self) -> list[dict[str, Any]]:
        """The reported groups whose quantile exceeds the promise."""
        most = duration_micros(self.options.slo)
        return [group for group in self.groups if group[self.options.quantile] > most]

    def document(self) -> dict[str, Any]:
        """Return the report for JSON; times are in seconds."""
        return {
            "slo": f"{self.options.quantile} <= {self.options.slo.total_seconds():g} s",
            "messages": self.messages,
            "groups_in_all": self.of_groups,
            "groups_that_break_it": self.broken,
            "breaches": [_shown(group) for group in self.breaches],
            "groups": [_shown(group) for group in self.groups],
        }


@in_utc
def lateness(
    spark: "SparkSession", options: LatenessOptions, *, clock: Clock, progress: Progress = silent
) -> LatenessReport:
    """Return a report on how late messages were dispatched; change nothing."""
    with ExitStack() as stack, worker_errors():
        progress("reading history")
        looked = moments(
            options.stores,
            options.archive,
            views=("history",),
            columns=_COLUMNS,
            which=_window(options),
            clock=clock,
        )
        frames = stack.enter_context(looked).history(spark, _COLUMNS)
        history = together(frames).persist()
        stack.callback(history.unpersist)
        groups = group_lateness(
            history, options.by, options.slo, is_exact=not options.approximate
        ).localCheckpoint()
        is_broken = f.col(options.quantile) > duration_micros(options.slo)
        all_ = groups.agg(f.sum("messages"), f.count(f.lit(1)), f.count_if(is_broken)).first()
        assert all_ is not None, "an aggregate of everything is one row"
        worst = groups.orderBy(f.desc(options.quantile), *options.by).limit(options.named)
        powers = {row["power"]: row["messages"] for row in histogram(history).collect()}
        return LatenessReport(
            options=options,
            messages=all_[0] or 0,
            of_groups=all_[1],
            broken=all_[2],
            groups=tuple(worst.toArrow().to_pylist()),
            histogram=dict(sorted(powers.items())),
            frame=groups,
        )


def _window(options: LatenessOptions) -> Selection:
    return Selection(
        endpoint=options.endpoint,
        destination=options.destination,
        at_from=micros_of(options.since),
        at_before=micros_of(options.until),
    )


def _shown(group: dict[str, Any]) -> dict[str, Any]:
    times = (*QUANTILES, "least", "most")
    return {
        name: round(value / 1_000_000, 6)
        if name in times
        else (value.isoformat() if name == "day" else value)
        for name, value in group.items()
    }


def lateness_page(report: LatenessReport) -> str:
    """Return the lateness of dispatched messages as an HTML page."""
    options = report.options
    promise = f"{options.quantile} at most {shown_span(options.slo)}"
    verdict = (
        f'<p class="bad">{report.broken:,} of {report.of_groups:,} groups break it.</p>'
        if report.broken
        else '<p class="well">Every group keeps it.</p>'
    )
    columns = [*options.by, "messages", *QUANTILES, "most", "late"]
    rows = [tuple(_cell(name, group[name]) for name in columns) for group in report.groups[:200]]
    return page(
        "How late messages were",
        [
            f'<p class="note">{report.messages:,} messages were dispatched. The promise is '
            f"{promise}.</p>",
            verdict,
            "<h2>Messages by how late they were</h2>",
            bars("messages by lateness", histogram_bars(report.histogram, options.slo)),
            "<h2>The worst groups</h2>",
            table(columns, rows),
        ],
    )


def _cell(name: str, value: object) -> object:
    is_time = name in QUANTILES or name == "most"
    if is_time and isinstance(value, int | float):
        return shown_span(timedelta(microseconds=value))
    return value


def histogram_bars(powers: Mapping[int, int], slo: timedelta) -> list[Bar]:
    """Return a bar for each power of two microseconds; bars later than *slo* are hot."""
    if not powers:
        return []
    found = []
    for power in range(min(powers), max(powers) + 1):
        span, many = timedelta(microseconds=2**power), powers.get(power, 0)
        says = f"late by less than {shown_span(span)}: {many:,} messages"
        found.append(Bar(f"< {shown_span(span)}", many, says, span / 2 >= slo))
    return found
