"""``lateness``: how late messages were, against what was promised."""

from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as f

from timeoutmgr.contracts import Clock
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.instants import duration_micros
from timeoutmgr.pipeline.folders import folder_option
from timeoutmgr.pipeline.jobs.moments import moments
from timeoutmgr.pipeline.jobs.running import Progress, silent, told_by_workers
from timeoutmgr.pipeline.quantiles import QUANTILES
from timeoutmgr.pipeline.session import in_utc
from timeoutmgr.pipeline.transforms import lateness as late
from timeoutmgr.pipeline.transforms.lateness import GROUPS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COLUMNS: Final = ("sequence", "event", "at", "due", "endpoint", "destination")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatenessOptions:
    """Whose lateness, grouped *by* what; *quantile* of each group is to be at most *slo*.

    Of *archive* counts what was archived of these stores; of all, if none is given. *named* groups
    are told of, the worst first; all of them count.
    """

    stores: tuple[str, ...]
    archive: Path | None = None
    by: tuple[str, ...] = GROUPS
    quantile: str = "p99"
    slo: timedelta = timedelta(minutes=1)
    named: int = 10_000

    def __post_init__(self) -> None:
        """Check every value."""
        if not self.stores and self.archive is None:
            raise ConfigurationError("neither a store nor an archive is given")
        if self.archive is not None:
            folder_option("archive", self.archive)
        strange = sorted(set(self.by) - set(GROUPS))
        if strange or not self.by:
            raise ConfigurationError(f"by is some of {GROUPS}, got {self.by}")
        if self.quantile not in QUANTILES:
            raise ConfigurationError(f"quantile is one of {(*QUANTILES,)}, got {self.quantile!r}")
        if self.slo < timedelta(0):
            raise ConfigurationError(f"slo is not negative, got {self.slo}")
        if self.named < 1:
            raise ConfigurationError(f"named is at least 1, got {self.named}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatenessReport:
    """How many *messages* of how many groups, and how many of these break the promise.

    *groups* are the worst ones, the very worst first; *histogram* by powers of two microseconds.
    """

    options: LatenessOptions
    messages: int
    of_groups: int
    broken: int
    groups: tuple[dict[str, Any], ...]
    histogram: dict[int, int]

    @property
    def breaches(self) -> list[dict[str, Any]]:
        """Return those of the groups named whose quantile is over the promise."""
        most = duration_micros(self.options.slo)
        return [group for group in self.groups if group[self.options.quantile] > most]

    def document(self) -> dict[str, Any]:
        """Return it for JSON; times are in seconds."""
        return {
            "slo": f"{self.options.quantile} <= {self.options.slo.total_seconds():g} s",
            "messages": self.messages,
            "groups_in_all": self.of_groups,
            "groups_that_break_it": self.broken,
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
    in_utc(spark)
    with ExitStack() as stack, told_by_workers():
        progress("reading history")
        looked = moments(
            options.stores,
            options.archive,
            views=("history",),
            columns=_COLUMNS,
            clock=clock,
            progress=progress,
        )
        frames = stack.enter_context(looked).history(spark, _COLUMNS)
        history = reduce(lambda one, other: one.unionByName(other), frames).persist()
        stack.callback(history.unpersist)
        groups = late.lateness(history, options.by, options.slo).persist()
        stack.callback(groups.unpersist)
        is_broken = f.col(options.quantile) > duration_micros(options.slo)
        all_ = groups.agg(f.sum("messages"), f.count(f.lit(1)), f.count_if(is_broken)).first()
        assert all_ is not None, "an aggregate of everything is one row"
        worst = groups.orderBy(f.desc(options.quantile), *options.by).limit(options.named)
        powers = {row["power"]: row["messages"] for row in late.histogram(history).collect()}
        return LatenessReport(
            options=options,
            messages=all_[0] or 0,
            of_groups=all_[1],
            broken=all_[2],
            groups=tuple(worst.toArrow().to_pylist()),
            histogram=dict(sorted(powers.items())),
        )


def _shown(group: dict[str, Any]) -> dict[str, Any]:
    times = (*QUANTILES, "least", "most")
    return {
        name: round(value / 1_000_000, 6)
        if name in times
        else (value.isoformat() if name == "day" else value)
        for name, value in group.items()
    }
