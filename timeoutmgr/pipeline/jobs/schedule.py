"""``schedule``: a data set into the store, every row once; what cannot be is set aside.

All runs over the same files, with the same options, take one instant for now: that of the first
run that stored anything, which the ledger has. So a run after it, or after half of it, finds the
same rows good, due at the same times, and has only to store what is missing.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as f
from sqlalchemy import select

from timeoutmgr.config import check_endpoint_name
from timeoutmgr.contracts import Clock
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.instants import Micros, duration_micros, from_micros
from timeoutmgr.pipeline.errors import TooManyRejects
from timeoutmgr.pipeline.folders import folder_option
from timeoutmgr.pipeline.frames import write_timeouts
from timeoutmgr.pipeline.jobs.reading import FORMATS, broken_files_named, rows_of, which_files
from timeoutmgr.pipeline.jobs.rejects import require_ours
from timeoutmgr.pipeline.jobs.running import Progress, new_run_id, silent, told_by_workers
from timeoutmgr.pipeline.ledger import Ledger, RunState, at_work
from timeoutmgr.pipeline.loading import checked_on_conflict
from timeoutmgr.pipeline.session import in_utc
from timeoutmgr.pipeline.stores import open_store
from timeoutmgr.pipeline.transforms.requests import COLUMNS, Rules, judged, normalised, smeared
from timeoutmgr.pipeline.views import TO_STORE
from timeoutmgr.validation import Limits

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

KIND: Final = "schedule"
TWICE: Final = "another row has the same key and another content"
_CURVE_POINTS: Final = 10

MissingQueues = Callable[[Sequence[str]], Collection[str]]
"""Returns those of some destinations that do not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions:
    """What to schedule, and how.

    *paths* are files or folders of *format*; with *multi_line* a value of CSV may hold line ends,
    and such a file is read by one task. *columns* says how a column is called there, by the name
    that it has here; with *ignore_extra* other columns are left out. *rejects* is a folder for the
    rows that cannot be scheduled, as JSON with their reasons; more than *max_reject_ratio* of all
    and nothing is stored. Seconds in which more than *max_per_second* are due are smeared: their
    rows come up to
    *jitter* later. For the others see ``Rules``.
    """

    store: str
    endpoint: str
    dataset: str
    paths: tuple[str, ...]
    format: str = "parquet"
    multi_line: bool = False
    columns: Mapping[str, str] = field(default_factory=dict)
    ignore_extra: bool = False
    message_type: str | None = None
    past: str = "reject"
    limits: Limits = field(default_factory=Limits)
    rejects: Path | None = None
    max_reject_ratio: float = 0.0
    max_per_second: int | None = None
    jitter: timedelta | None = None
    on_conflict: str = "ignore"
    dry_run: bool = False
    run_id: str | None = None

    def __post_init__(self) -> None:
        """Check every value."""
        check_endpoint_name(self.endpoint)
        checked_on_conflict(self.on_conflict)
        _rules(self, now=0)  # which check theirs
        if self.format not in FORMATS:
            raise ConfigurationError(f"format is one of {FORMATS}, got {self.format!r}")
        if self.multi_line and self.format == "parquet":
            raise ConfigurationError("multi_line is for csv and json; Parquet has no lines")
        strange = sorted(self.columns.keys() - set(COLUMNS))
        if strange:
            raise ConfigurationError(
                f"columns maps {strange[0]!r}, expected one of {', '.join(COLUMNS)}"
            )
        if not self.paths:
            raise ConfigurationError("no file is given; name at least one file or folder")
        if self.rejects is not None:
            folder_option("rejects", self.rejects)
        if not 0 <= self.max_reject_ratio <= 1:
            raise ConfigurationError(
                f"max_reject_ratio is between 0 and 1, got {self.max_reject_ratio}"
            )
        if (self.max_per_second is None) != (self.jitter is None):
            raise ConfigurationError("max_per_second and jitter go together; give both or none")
        if self.jitter is not None and self.jitter <= timedelta(0):
            raise ConfigurationError(f"jitter must be positive, got {self.jitter}")
        if self.max_per_second is not None and self.max_per_second < 1:
            raise ConfigurationError(f"max_per_second must be positive, got {self.max_per_second}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleReport:
    """What became of the rows.

    *as_of* is what the rows were judged by as now: the instant of the first run of these files and
    options. *new* were stored now, *known* before. *curve* are the ten busiest minutes: when,
    and how many. It, *busiest_second*, *first_due* and *last_due* tell of the rows as they are
    stored, with those of the *smeared_seconds* later than they were given.
    """

    run_id: str
    as_of: Micros
    rows: int
    accepted: int
    rejected: int
    reasons: Mapping[str, int]
    repeated: int
    new: int
    known: int
    smeared_seconds: int
    first_due: Micros | None
    last_due: Micros | None
    busiest_second: int
    curve: tuple[tuple[Micros, int], ...]
    dry_run: bool

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "run_id": self.run_id,
            "as_of": _shown(self.as_of),
            "dry_run": self.dry_run,
            "rows": self.rows,
            "accepted": self.accepted,
            "rejected": self.rejected,
            "reasons": dict(self.reasons),
            "repeated": self.repeated,
            "new": self.new,
            "known": self.known,
            "smeared_seconds": self.smeared_seconds,
            "first_due": _shown(self.first_due),
            "last_due": _shown(self.last_due),
            "busiest_second": self.busiest_second,
            "busiest_minutes": [
                {"minute": _shown(minute), "messages": count} for minute, count in self.curve
            ],
        }


def schedule(
    spark: "SparkSession",
    options: ScheduleOptions,
    *,
    clock: Clock,
    missing_queues: MissingQueues | None = None,
    progress: Progress = silent,
) -> ScheduleReport:
    """Store what *options* describe; run again, it does what is left, and else nothing.

    Raises WrongColumns, TooManyRejects, and ConfigurationError for a file that is broken, before
    anything is stored.
    """
    in_utc(spark)
    store = open_store(options.store)
    store.require_tables()
    if options.rejects is not None:
        require_ours(options.rejects)
    ledger = Ledger(store, clock)
    if not options.dry_run:
        ledger.abort_the_dead(KIND)
    with told_by_workers(), broken_files_named(options.format):
        progress("reading and judging")
        requests = _requests(spark, options)
        parameters = parameters_of(options, which_files(spark, options.paths))
        first = ledger.first(KIND, parameters)
        now = store.database.now(clock) if first is None else first.created
        run_id = options.run_id or (new_run_id(KIND) if first is None else first.run_id)
        if first is not None:
            progress(f"going on with run {first.run_id}, as of {_shown(now)}")
        rules = _rules(options, now)
        look = _Look(requests, rules)
        unknown = missing_queues(look.destinations()) if missing_queues is not None else ()
        if unknown:
            look.forget()
            rules = _rules(options, now, frozenset(unknown))
            look = _Look(requests, rules)
        try:
            report = _report(look, options, run_id, now)
            if options.rejects is not None:
                progress("writing what is rejected")
                # None are written too: an earlier run's would be taken for this one's.
                rejects = look.rejects() if report.rejected else look.rejects().limit(0)
                rejects.write.mode("overwrite").json(str(options.rejects))
            if report.rejected > report.rows * options.max_reject_ratio:
                raise TooManyRejects(
                    report.rejected, report.rows, options.max_reject_ratio, [*report.reasons]
                )
            if options.dry_run:
                return report
            ledger.begin(run_id, KIND, parameters, now)
            with at_work(store, ledger, run_id):
                before = ledger.counted(run_id)
                progress(f"storing {report.accepted} timeouts")
                write_timeouts(
                    look.to_store(options),
                    options.store,
                    run_id=run_id,
                    on_conflict=options.on_conflict,
                )
                done = _stored(report, ledger.counted(run_id) - before)
                ledger.note(run_id, done.document())
                ledger.move(run_id, RunState.COMPLETED)
            return done
        finally:
            look.forget()


def _requests(spark: "SparkSession", options: ScheduleOptions) -> "DataFrame":
    rows = rows_of(
        spark,
        options.paths,
        options.format,
        multi_line=options.multi_line,
        columns=options.columns,
    )
    return normalised(rows, options.columns, ignore_extra=options.ignore_extra)


def require_known(store: str, endpoint: str, clock: Clock) -> None:
    """Raise ConfigurationError where nothing in the store called *store* tells of *endpoint*.

    Under a name that no endpoint has, rows would stay for ever: each looks for its own only.
    """
    opened = open_store(store)
    opened.require_tables()
    keys = opened.tables.keys
    with opened.database.read() as connection:
        stored = connection.execute(
            select(keys.c.id).where(keys.c.endpoint == endpoint).limit(1)
        ).first()
    # One that has stored nothing yet has a heartbeat while it runs.
    if stored is None and not opened.persistence.timeouts(endpoint, clock).processes():
        raise ConfigurationError(
            f"the store knows no endpoint {endpoint!r}: none of that name runs, or has stored "
            "anything lately; expected an endpoint that dispatches from this store. Mend the name, "
            "start the endpoint first, or give its own settings file (--config) in place of "
            "--endpoint"
        )


def parameters_of(options: ScheduleOptions, files: Mapping[str, Any]) -> dict[str, Any]:
    """Return what makes two runs the same: all that decides what timeout a row of *files* becomes.

    Not what decides whether it is stored, as ``max_reject_ratio`` does. The files count and not
    their names alone: of another file under the same name, a delay begins anew.
    """
    jitter = options.jitter
    # A run of before there were names for columns is the same run.
    named = {"columns": dict(options.columns)} if options.columns else {}
    return {
        **named,
        "dataset": options.dataset,
        "endpoint": options.endpoint,
        "files": files,
        "format": options.format,
        "multi_line": options.multi_line,
        "message_type": options.message_type,
        "past": options.past,
        "max_per_second": options.max_per_second,
        "jitter": None if jitter is None else duration_micros(jitter),
    }


def _rules(options: ScheduleOptions, now: Micros, unknown: frozenset[str] = frozenset()) -> Rules:
    return Rules(
        endpoint=options.endpoint,
        dataset=options.dataset,
        now=now,
        message_type=options.message_type,
        past=options.past,
        limits=options.limits,
        unknown=unknown,
    )


class _Look:
    """One look at all rows: narrow facts of each, kept until they are forgotten."""

    def __init__(self, requests: "DataFrame", rules: Rules) -> None:
        self._judged = judged(requests, rules)
        self.facts = self._judged.select("id", "destination", "due", "reasons", "content").persist()
        good = self.facts.where(f.size("reasons") == 0)
        same = good.groupBy("id").agg(
            f.count("*").alias("rows"), f.count_distinct("content").alias("contents")
        )
        self._twice = same.where("rows > 1").persist()
        found = self._twice.agg(
            f.coalesce(f.sum(f.when(f.col("contents") == 1, f.col("rows") - 1)), f.lit(0)),
            f.coalesce(f.sum(f.when(f.col("contents") > 1, f.col("rows"))), f.lit(0)),
        ).first()
        assert found is not None, "an aggregate of everything is one row"
        self.repeated: int = found[0]
        self.ambiguous: int = found[1]

    def forget(self) -> None:
        """Let go of the facts."""
        self.facts.unpersist()
        self._twice.unpersist()

    def destinations(self) -> list[str]:
        """Return the destinations of the rows that are good so far."""
        good = self.facts.where(f.size("reasons") == 0)
        return [row[0] for row in good.select("destination").distinct().collect()]

    def totals(self) -> tuple[int, int]:
        """Return how many rows there are, and how many are good."""
        found = self.facts.agg(f.count("*"), f.count_if(f.size("reasons") == 0)).first()
        assert found is not None, "an aggregate of everything is one row"
        return found[0], found[1]

    def reasons(self) -> dict[str, int]:
        """Return how many rows each reason rejects, the most frequent first."""
        rows = self.facts.select(f.explode("reasons").alias("reason")).groupBy("reason").count()
        found = {row["reason"]: row["count"] for row in rows.collect()}
        if self.ambiguous:
            found[TWICE] = self.ambiguous
        return dict(sorted(found.items(), key=lambda one: (-one[1], one[0])))

    def good(self, frame: "DataFrame") -> "DataFrame":
        """Return those of *frame*, which has ids and reasons, that can be scheduled."""
        good = frame.where(f.size("reasons") == 0)
        if not self.ambiguous:
            return good
        return good.join(self._ambiguous(), "id", "left_anti")

    def rejects(self) -> "DataFrame":
        """Return the rows that cannot be scheduled, as JSON, with their reasons."""
        bad = self._judged.where(f.size("reasons") > 0).select("reasons", "input")
        if not self.ambiguous:
            return bad
        again = self._judged.where(f.size("reasons") == 0).join(
            self._ambiguous(), "id", "left_semi"
        )
        return bad.unionByName(again.select(f.array(f.lit(TWICE)).alias("reasons"), "input"))

    def to_store(self, options: ScheduleOptions) -> "DataFrame":
        """Return the timeouts to store."""
        return self._smeared(self.good(self._judged).select(*TO_STORE.names), options)

    def seconds(self, options: ScheduleOptions) -> "DataFrame":
        """Return how many will be due in each second, the first of them and the last."""
        rows = self.good(self.facts).select("id", "due")
        if self.repeated:
            rows = rows.dropDuplicates(["id"])
        due = f.unix_micros("due")
        return (
            self._smeared(rows, options)
            .groupBy(_second())
            .agg(f.count("*").alias("count"), f.min(due).alias("first"), f.max(due).alias("last"))
        )

    def hot(self, most: int) -> "DataFrame":
        """Return the seconds in which more than *most* are due as they were given."""
        seconds = self.good(self.facts).groupBy(_second()).count()
        return seconds.where(f.col("count") > most)

    def _smeared(self, rows: "DataFrame", options: ScheduleOptions) -> "DataFrame":
        if options.max_per_second is None or options.jitter is None:
            return rows
        return smeared(rows, self.hot(options.max_per_second), options.jitter)

    def _ambiguous(self) -> "DataFrame":
        return self._twice.where("contents > 1").select("id")


def _second() -> "Column":
    return f.date_trunc("second", "due").alias("second")


def _report(look: _Look, options: ScheduleOptions, run_id: str, now: Micros) -> ScheduleReport:
    rows, good = look.totals()
    accepted = good - look.ambiguous
    smears = look.hot(options.max_per_second).count() if options.max_per_second else 0
    # Each minute, and the busiest second in it.
    minutes = (
        look.seconds(options)
        .groupBy(f.date_trunc("minute", "second").alias("minute"))
        .agg(
            *(f.sum("count").alias("messages"), f.max("count").alias("busiest")),
            *(f.min("first").alias("first"), f.max("last").alias("last")),
        )
        .persist()
    )
    whole = minutes.agg(f.max("busiest"), f.min("first"), f.max("last")).first()
    assert whole is not None, "an aggregate of everything is one row"
    curve = minutes.orderBy(f.desc("messages"), "minute").limit(_CURVE_POINTS)
    points = curve.select(f.unix_micros("minute"), "messages").collect()
    minutes.unpersist()
    return ScheduleReport(
        run_id=run_id,
        as_of=now,
        rows=rows,
        accepted=accepted - look.repeated,
        rejected=rows - accepted,
        reasons=look.reasons() if accepted < rows else {},
        repeated=look.repeated,
        new=0,
        known=0,
        smeared_seconds=smears,
        first_due=whole[1],
        last_due=whole[2],
        busiest_second=whole[0] or 0,
        curve=tuple((row[0], row[1]) for row in points),
        dry_run=options.dry_run,
    )


def _stored(report: ScheduleReport, new: int) -> ScheduleReport:
    return replace(report, new=new, known=report.accepted - new)


def _shown(instant: Micros | None) -> str | None:
    return None if instant is None else from_micros(instant).isoformat()
