"""``report``: load, lateness, verdicts, growth and anomalies of all stores in one report."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark import StorageLevel
from pyspark.sql import functions as f

from timeoutmgr.contracts import Clock
from timeoutmgr.message.instants import from_micros
from timeoutmgr.pipeline.jobs.forecast import ForecastReport, forecast
from timeoutmgr.pipeline.jobs.moments import Moment, Moments
from timeoutmgr.pipeline.jobs.reconcile import ReconcileReport, judged, moments_of, others_of
from timeoutmgr.pipeline.jobs.run_context import Progress, each_store, silent, worker_errors
from timeoutmgr.pipeline.options import ForecastOptions, ReconcileOptions, ReportOptions
from timeoutmgr.pipeline.spark.session import in_utc
from timeoutmgr.pipeline.transforms.daily import FEWEST_DAYS, Anomaly, anomalies, daily
from timeoutmgr.pipeline.transforms.verdicts import of_history, together

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS: Final = ("id", "event", "at", "due", "destination")
_BUCKETS: Final = 120
_WEEK: Final = 7
_TWO_WEEKS: Final = 14


@dataclass(frozen=True, slots=True)
class KeptShare:
    """Numbers of dispatched *messages*, and of messages that *kept* the promise."""

    messages: int
    kept: int

    @property
    def share(self) -> float:
        """The share of messages that kept the promise."""
        return self.kept / self.messages

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self) | {"share": round(self.share, 6)}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoresReport:
    """A report *at* an instant; *loads* are by store, *days* the rows of ``daily``."""

    at: datetime
    options: ReportOptions
    loads: Mapping[str, ForecastReport]
    days: Sequence[Mapping[str, Any]]
    verdicts: ReconcileReport

    def kept(self, *by: str) -> dict[tuple[Any, ...], KeptShare]:
        """Return the kept shares by some of store, destination and due_day, lowest share first."""
        sums: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0])
        for row in self.days:
            if row["due_day"] is not None:
                found = sums[tuple(row[name] for name in by)]
                found[0] += row["events"]
                found[1] += row["kept"]
        shares = {key: KeptShare(*found) for key, found in sums.items()}
        return dict(sorted(shares.items(), key=lambda one: (one[1].share, one[0])))

    def events(self, *by: str, what: str = "events") -> dict[tuple[Any, ...], int]:
        """Return the sum of the column *what* of days, such as *sent*, by some columns."""
        sums: dict[tuple[Any, ...], int] = defaultdict(int)
        for row in self.days:
            if row[what]:
                sums[tuple(row[name] for name in by)] += row[what]
        return dict(sorted(sums.items()))

    def growth(self) -> dict[str, tuple[float, float | None]]:
        """Return each store's rows of history per day: in the last 7 days, and in the 7 before.

        With fewer days, the mean of these days; None for a week that was read only in part.
        """
        today, found, days = self.at.date(), {}, self.options.days
        for store in self.loads:
            ages = {
                (today - day).days: many
                for (of, day), many in self.events("store", "day").items()
                if of == store
            }
            before = _mean(ages, 1 + _WEEK, _WEEK) if days >= _TWO_WEEKS else None
            found[store] = (_mean(ages, 1, min(days, _WEEK)), before)
        return found

    def notes(self) -> dict[str, str]:
        """Return the parts of the report that lack data for want of days, with the reasons."""
        needed = {
            "growth": ("compares the last week with the week before", _TWO_WEEKS),
            "anomalies": ("compare a day with the same weekday of three weeks before", FEWEST_DAYS),
        }
        return {
            part: f"{part} {why}; give at least {days} days (--days), got {self.options.days}"
            for part, (why, days) in needed.items()
            if self.options.days < days
        }

    def anomalies(self) -> list[tuple[str, str, Anomaly]]:
        """Return store and destination of each unusual day, the most unusual first."""
        series: dict[tuple[str, str], dict[date, int]] = defaultdict(dict)
        sent = self.events("store", "destination", "day", what="sent")
        for (store, destination, day), many in sent.items():
            series[store, destination][day] = many
        last = self.at.date() - timedelta(days=1)
        found = [(*key, one) for key, days in series.items() for one in anomalies(days, last)]
        return sorted(found, key=lambda one: (-one[2].excess, one[:2]))

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "at": self.at.isoformat(),
            "days": self.options.days,
            "load": {store: one.document() for store, one in self.loads.items()},
            "promise": {
                "seconds": self.options.promise.total_seconds(),
                "by_store": self._shares("store"),
                "by_destination": self._shares("store", "destination"),
                "by_day": self._shares("due_day"),
            },
            "verdicts": self.verdicts.document(),
            "growth": {
                store: {
                    "rows_a_day": round(last, 3),
                    "week_before": None if before is None else round(before, 3),
                }
                for store, (last, before) in self.growth().items()
            },
            "notes": self.notes(),
            "anomalies": [
                {"store": store, "destination": destination}
                | asdict(one)
                | {"day": one.day.isoformat()}
                for store, destination, one in self.anomalies()
            ],
        }

    def _shares(self, *by: str) -> list[dict[str, Any]]:
        return [
            dict(zip(by, map(_plain, key), strict=True)) | one.document()
            for key, one in self.kept(*by).items()
        ]


@in_utc
def report(
    spark: "SparkSession", options: ReportOptions, *, clock: Clock, progress: Progress = silent
) -> StoresReport:
    """Return the load ahead and a report on the last days; change nothing."""
    names = _labels([one.name for one in each_store(options.stores)])
    at = from_micros(clock.now())
    begin = at.replace(hour=0, minute=0, second=0, microsecond=0)
    judging = ReconcileOptions(
        stores=tuple(names), archive=options.archive, since=begin - timedelta(days=options.days)
    )
    progress("counting the load ahead")
    loads = _loads(options, names, clock)
    with ExitStack() as stack, worker_errors():
        held = stack.enter_context(moments_of(judging, clock=clock, more=("destination",)))
        progress("reading history")
        # Keep the rows on Spark's disks for two more reads: the store is read only once.
        history = _history(spark, held, names).persist(StorageLevel.DISK_ONLY)
        stack.callback(history.unpersist)
        days = daily(history, options.promise).toArrow().to_pylist()
        evidence = [history.drop("store"), *others_of(spark, judging, held)]
        verdicts = judged(spark, judging, held, evidence, progress)
    return StoresReport(at=at, options=options, loads=loads, days=days, verdicts=verdicts)


def _loads(
    options: ReportOptions, names: Mapping[str, str], clock: Clock
) -> dict[str, ForecastReport]:
    bucket = timedelta(seconds=-(-int(options.ahead.total_seconds()) // _BUCKETS))
    return {
        label: forecast(
            ForecastOptions(stores=(name,), bucket=bucket, ahead=options.ahead), clock=clock
        )
        for name, label in names.items()
    }


def _history(spark: "SparkSession", held: Moments, names: Mapping[str, str]) -> "DataFrame":
    """Return the evidence of all stores' events, each with the label of its store."""

    def labelled(one: Moment) -> "DataFrame":
        # Events that may be in store and table are compared by their sequence.
        columns = _COLUMNS if one.is_split else ("sequence", *_COLUMNS)
        events = of_history(together([*held.events_of(spark, one, columns)]))
        return events.withColumn("store", f.lit(names[one.snapshot.store.name]))

    return together([*map(labelled, held.stores)])


def _labels(names: Sequence[str]) -> dict[str, str]:
    """Return readable names of stores: for a settings file its name, with folders if needed."""
    parts = {name: Path(name).with_suffix("").parts if name else ("store",) for name in names}
    return {name: _label(name, parts) for name in names}


def _label(name: str, parts: Mapping[str, tuple[str, ...]]) -> str:
    """Return the shortest end of the path *name* that no other path has, or the whole path."""
    for many in range(1, len(parts[name]) + 1):
        end = parts[name][-many:]
        if sum(other[-many:] == end for other in parts.values()) == 1:
            return Path(*end).as_posix()
    return name or "own store"


def _mean(ages: Mapping[int, int], begin: int, days: int) -> float:
    return sum(ages.get(age, 0) for age in range(begin, begin + days)) / days


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, date) else value
