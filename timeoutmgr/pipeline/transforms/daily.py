"""Events by day, and the days that differ from earlier days of the same weekday."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from math import sqrt
from statistics import median
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from timeoutmgr.message.instants import duration_micros
from timeoutmgr.pipeline.transforms.verdicts import Evidence

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DAY: Final = 86_400_000_000
_WEEKS: Final = 4
_FEWEST: Final = 3
FEWEST_DAYS: Final = 7 * _FEWEST + 1
"""Days of history before today that are needed to judge a single day."""
_SHARE: Final = 0.5
_SIGMAS: Final = 4.0


def daily(evidence: "DataFrame", promise: timedelta) -> "DataFrame":
    """Return the number of events in *evidence* of history by store, destination and days.

    *day* is the day of the event. A dispatch also has *due_day*, the day on which its message was
    due; *kept* counts the dispatches that were late by at most *promise*.
    """
    is_sent = f.col("kind") == int(Evidence.DISPATCHED)
    is_kept = f.col("at") - f.col("due") <= duration_micros(promise)
    # As numbers: converting each instant to a date would take longer than all the rest.
    counted = evidence.groupBy(
        *("store", "destination"),
        f.floor(f.col("at") / _DAY).alias("day"),
        f.when(is_sent, f.floor(f.col("due") / _DAY)).alias("due_day"),
    ).agg(
        f.count(f.lit(1)).alias("events"),
        f.count_if(is_sent).alias("sent"),
        f.count_if(is_sent & is_kept).alias("kept"),
    )
    dates = {name: f.date_from_unix_date(f.col(name).cast("int")) for name in ("day", "due_day")}
    return counted.withColumns(dates)


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A day whose *messages* differ from *expected*, the median of earlier same weekdays."""

    day: date
    messages: int
    expected: float

    @property
    def excess(self) -> float:
        """The difference of the day, in standard deviations of random arrivals."""
        return abs(self.messages - self.expected) / sqrt(max(self.expected, 1.0))


def anomalies(counts: Mapping[date, int], last: date) -> list[Anomaly]:
    """Return the days up to *last* that differ from the same weekday of the four weeks before.

    A day without messages counts as 0. A day is judged if the series began at least three weeks
    before. It differs by at least half of the expected number, and by more than random arrivals do.
    """
    if not counts:
        return []
    first = min(counts)
    found = []
    for number in range(7 * _FEWEST, (last - first).days + 1):
        day = first + timedelta(days=number)
        before = [day - timedelta(weeks=weeks) for weeks in range(1, _WEEKS + 1)]
        expected = median(counts.get(one, 0) for one in before if one >= first)
        one = Anomaly(day, counts.get(day, 0), expected)
        if abs(one.messages - expected) >= _SHARE * expected and one.excess > _SIGMAS:
            found.append(one)
    return found
