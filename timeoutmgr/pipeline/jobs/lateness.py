"""``lateness``: how late messages were, against what was promised."""

from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from timeoutmgr.contracts import Clock
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.instants import duration_micros
from timeoutmgr.pipeline.jobs.archived import Archive
from timeoutmgr.pipeline.jobs.running import Progress, silent, told_by_workers
from timeoutmgr.pipeline.snapshots import snapshot
from timeoutmgr.pipeline.transforms import lateness as late
from timeoutmgr.pipeline.transforms.lateness import GROUPS, QUANTILES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS: Final = ("sequence", "event", "at", "due", "endpoint", "destination")
_MOST: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LatenessOptions:
    """Whose lateness, grouped *by* what; *quantile* of each group is to be at most *slo*."""

    stores: tuple[str, ...]
    archive: Path | None = None
    by: tuple[str, ...] = GROUPS
    quantile: str = "p99"
    slo: timedelta = timedelta(minutes=1)

    def __post_init__(self) -> None:
        """Check every value."""
        if not self.stores and self.archive is None:
            raise ConfigurationError("neither a store nor an archive is given")
        strange = sorted(set(self.by) - set(GROUPS))
        if strange or not self.by:
            raise ConfigurationError(f"by is some of {GROUPS}, got {self.by}")
        if self.quantile not in QUANTILES:
            raise ConfigurationError(f"quantile is one of {(*QUANTILES,)}, got {self.quantile!r}")
        if self.slo < timedelta(0):
            raise ConfigurationError(f"slo is not negative, got {self.slo}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatenessReport:
    """The lateness of each group, the worst first; *histogram* by powers of two microseconds."""

    options: LatenessOptions
    groups: tuple[dict[str, Any], ...]
    histogram: dict[int, int]

    @property
    def messages(self) -> int:
        """How many were dispatched."""
        return sum(group["messages"] for group in self.groups)

    @property
    def breaches(self) -> list[dict[str, Any]]:
        """Return the groups whose quantile is over the promise."""
        most = duration_micros(self.options.slo)
        return [group for group in self.groups if group[self.options.quantile] > most]

    def document(self) -> dict[str, Any]:
        """Return it for JSON; times are in seconds."""
        return {
            "slo": f"{self.options.quantile} <= {self.options.slo.total_seconds():g} s",
            "messages": self.messages,
            "breaches": [_shown(group) for group in self.breaches],
            "groups": [_shown(group) for group in self.groups],
        }


def lateness(
    spark: "SparkSession",
    options: LatenessOptions,
    *,
    clock: Clock,
    progress: Progress = silent,
) -> LatenessReport:
    """Return how late what was dispatched was; nothing is changed."""
    with ExitStack() as stack, told_by_workers():
        progress("reading history")
        history = _history(spark, options, clock, stack).persist()
        stack.callback(history.unpersist)
        groups = late.lateness(history, options.by, options.slo).limit(_MOST).toArrow().to_pylist()
        powers = {row["power"]: row["messages"] for row in late.histogram(history).collect()}
    ordered = sorted(groups, key=lambda one: (-one[options.quantile], *map(str, one.values())))
    return LatenessReport(
        options=options, groups=tuple(ordered), histogram=dict(sorted(powers.items()))
    )


def _history(
    spark: "SparkSession", options: LatenessOptions, clock: Clock, stack: ExitStack
) -> "DataFrame":
    archive = Archive(options.archive) if options.archive is not None else None
    purged = archive.purged() if archive is not None else frozenset()
    frames = []
    for name in options.stores:
        moment = stack.enter_context(
            snapshot(name, views=("history",), columns=_COLUMNS, clock=clock)
        )
        rows = moment.read(spark, "history", columns=_COLUMNS)
        frames.append(
            rows if archive is None else archive.and_not_in_it(spark, moment.store, rows, purged)
        )
    if archive is not None:
        frames.append(archive.read(spark, _COLUMNS))
    every = frames[0]
    for frame in frames[1:]:
        every = every.unionByName(frame)
    return every


def _shown(group: dict[str, Any]) -> dict[str, Any]:
    times = (*QUANTILES, "least", "most")
    return {
        name: round(value / 1_000_000, 6)
        if name in times
        else (value.isoformat() if name == "day" else value)
        for name, value in group.items()
    }
