"""``schedule``: store a data set, every row once; write rejected rows to a folder.

All runs over the same files, with the same options, use the same instant as now: the instant of the
first run that stored anything, which the ledger keeps. So a later run, even after an incomplete
run, accepts the same rows with the same due times, and only has to store the missing rows.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from pyspark.sql import functions as f
from sqlalchemy import select

from timeoutmgr.contracts import Clock
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import Micros, duration_micros, from_micros, to_micros
from timeoutmgr.pipeline.errors import TooManyRejects
from timeoutmgr.pipeline.frames import write_timeouts
from timeoutmgr.pipeline.jobs.data_set_files import (
    broken_files_named,
    rows_of,
    table_of,
    which_files,
)
from timeoutmgr.pipeline.jobs.moments import micros_of
from timeoutmgr.pipeline.jobs.output_folder import require_own
from timeoutmgr.pipeline.jobs.run_context import Progress, new_run_id, silent, worker_errors
from timeoutmgr.pipeline.ledger import JobLedger, JobRunState
from timeoutmgr.pipeline.options import TABLE, RequestRules, ScheduleOptions
from timeoutmgr.pipeline.spark.session import in_utc
from timeoutmgr.pipeline.stores import open_store
from timeoutmgr.pipeline.transforms.requests import judged, normalised, smeared
from timeoutmgr.pipeline.views import TO_STORE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

KIND: Final = "schedule"
TWICE: Final = "another row has the same key and another content"
_CURVE_POINTS: Final = 10

MissingQueues = Callable[[Sequence[str]], Collection[str]]
"""Returns which of the given destinations are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleReport:
    """Counts of the rows of a run.

    *as_of* is the instant by which the rows were judged: the instant of the first run of these
    files and options. *new* rows were stored now, *known* rows before. *curve* has the ten busiest
    minutes, with their numbers of rows. *curve*, *busiest_second*, *first_due* and *last_due* use
    the stored due times: rows of the *smeared_seconds* are due later than given.
    """

    run_id: str
    as_of: Micros
    dry_run: bool
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

    def document(self) -> dict[str, Any]:
        """Return the report for JSON."""
        found = asdict(self)
        for name in ("as_of", "first_due", "last_due"):
            found[name] = _shown(found[name])
        found["busiest_minutes"] = [
            {"minute": _shown(minute), "messages": count} for minute, count in found.pop("curve")
        ]
        return found


@in_utc
def schedule(
    spark: "SparkSession",
    options: ScheduleOptions,
    *,
    clock: Clock,
    frame: "DataFrame | None" = None,
    missing_queues: MissingQueues | None = None,
    progress: Progress = silent,
) -> ScheduleReport:
    """Store the rows in *options*, or the rows of *frame*; a repeat stores missing rows.

    A run over a frame repeats an earlier run only if it has the same ``run_id``: two frames cannot
    be compared without reading them.

    Raises WrongColumns, TooManyRejects, and ConfigurationError for a broken file, before any row is
    stored.
    """
    if frame is None and not options.paths:
        raise ConfigurationError("no row is given; name a file, a folder or a table, or a frame")
    if frame is not None and options.run_id is None:
        options = replace(options, run_id=new_run_id(KIND))
    store = open_store(options.store)
    store.require_tables()
    if options.rejects is not None:
        require_own(options.rejects, "rejects")
    ledger = JobLedger(store, clock)
    with worker_errors(), broken_files_named(options.format):
        progress("reading and judging")
        rows, which = _rows(spark, options) if frame is None else (frame, {"frame": options.run_id})
        requests = normalised(rows, options.columns, ignore_extra=options.ignore_extra)
        parameters = parameters_of(options, which)
        first = ledger.first(KIND, parameters)
        now = store.database.now(clock) if first is None else first.created
        run_id = options.run_id or (new_run_id(KIND) if first is None else first.run_id)
        if first is not None:
            progress(f"going on with run {first.run_id}, as of {_shown(now)}")
        judgement = _judged(requests, options, now, missing_queues)
        try:
            report = _report(judgement, options, run_id, now)
            if options.rejects is not None:
                progress("writing the rejected rows")
                _write_rejects(judgement, report, str(options.rejects.absolute()))
            _require_few_rejects(report, options.max_reject_ratio)
            if options.dry_run:
                return report
            with ledger.at_work(run_id, KIND, parameters, now):
                progress(f"storing {report.accepted} timeouts")
                return _store(judgement, options, report, ledger)
        finally:
            judgement.forget()


def _judged(
    requests: "DataFrame",
    options: ScheduleOptions,
    now: Micros,
    missing_queues: MissingQueues | None,
) -> "_Judgement":
    """Judge *requests*; judge them again if the queues of some destinations are missing."""
    judgement = _judgement(requests, options, options.rules(now))
    unknown = missing_queues(judgement.destinations()) if missing_queues is not None else ()
    if not unknown:
        return judgement
    judgement.forget()
    return _judgement(requests, options, options.rules(now, frozenset(unknown)))


def _judgement(
    requests: "DataFrame", options: ScheduleOptions, rules: RequestRules
) -> "_Judgement":
    """Judge the rows of *requests* within the window of *options*."""
    if options.destination is not None:
        requests = requests.where(f.col("destination").cast("string") == options.destination)
    rows = judged(requests, rules)
    # A row without a due time is a reject in every window.
    if options.since is not None:
        rows = rows.where(f.col("due").isNull() | (f.col("due") >= _instant(options.since)))
    if options.until is not None:
        rows = rows.where(f.col("due").isNull() | (f.col("due") < _instant(options.until)))
    return _Judgement(rows)


def _instant(at: datetime) -> "Column":
    return f.timestamp_micros(f.lit(to_micros(at)))


def _write_rejects(judgement: "_Judgement", report: ScheduleReport, path: str) -> None:
    # Write even an empty result: it replaces the rejects of an earlier run.
    rejects = judgement.rejects() if report.rejected else judgement.rejects().limit(0)
    rejects.write.mode("overwrite").json(path)


def _require_few_rejects(report: ScheduleReport, most: float) -> None:
    if report.rejected > report.rows * most:
        raise TooManyRejects(report.rejected, report.rows, most, [*report.reasons])


def _store(
    judgement: "_Judgement", options: ScheduleOptions, report: ScheduleReport, ledger: JobLedger
) -> ScheduleReport:
    """Store the accepted rows and complete the run; return the report with the stored rows."""
    run_id = report.run_id
    before = ledger.counted(run_id)
    write_timeouts(
        judgement.to_store(options), options.store, run_id=run_id, on_conflict=options.on_conflict
    )
    new = ledger.counted(run_id) - before
    done = replace(report, new=new, known=report.accepted - new)
    ledger.move(run_id, JobRunState.COMPLETED, done.document())
    return done


def _rows(spark: "SparkSession", options: ScheduleOptions) -> tuple["DataFrame", Mapping[str, Any]]:
    """Return the rows of the paths, and the identity of their files."""
    if options.paths[0].startswith(TABLE):
        rows = table_of(spark, options.paths[0])
        # A table without files is identified only by its name.
        files = [*map(unquote, rows.inputFiles())]  # they are URIs, and Spark opens paths
        return rows, which_files(spark, files) if files else {"table": options.paths[0]}
    rows = rows_of(
        spark, options.paths, options.format, multi_line=options.multi_line, columns=options.columns
    )
    return rows, which_files(spark, options.paths)


def require_known(store: str, endpoint: str, clock: Clock) -> None:
    """Raise ConfigurationError if nothing in the store *store* refers to *endpoint*.

    Rows of an endpoint that does not exist would stay forever: an endpoint reads only its own rows.
    """
    opened = open_store(store)
    opened.require_tables()
    keys = opened.tables.keys
    with opened.database.read() as connection:
        stored = connection.execute(
            select(keys.c.id).where(keys.c.endpoint == endpoint).limit(1)
        ).first()
    # A running endpoint that has stored nothing yet has a heartbeat.
    if stored is None and not opened.persistence.timeouts(endpoint, clock).processes():
        raise ConfigurationError(
            f"the store knows no endpoint {endpoint!r}: none of that name runs, or has stored "
            "anything lately; expected an endpoint that dispatches from this store. Fix the name, "
            "start the endpoint first, or give its own settings file (--config) in place of "
            "--endpoint"
        )


def parameters_of(options: ScheduleOptions, files: Mapping[str, Any]) -> dict[str, Any]:
    """Return the identity of a run: all options that shape the timeouts of the rows in *files*.

    Options that only decide whether rows are stored, such as ``max_reject_ratio``, do not belong to
    it. The identity of the files does: in a new file with an old name, delays begin anew.
    """
    jitter = options.jitter
    # Omit unused newer options, so that runs of older versions keep their identity.
    named = {"columns": dict(options.columns)} if options.columns else {}
    window = {
        "since": micros_of(options.since),
        "until": micros_of(options.until),
        "destination": options.destination,
    }
    return {
        **named,
        **{name: value for name, value in window.items() if value is not None},
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


class _Judgement:
    """A judgement on all rows: a few columns of each row, cached until ``forget``."""

    def __init__(self, rows: "DataFrame") -> None:
        self._judged = rows
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
        """Release the cached data."""
        self.facts.unpersist()
        self._twice.unpersist()

    def destinations(self) -> list[str]:
        """Return the destinations of the rows without reasons for a rejection."""
        good = self.facts.where(f.size("reasons") == 0)
        return [row[0] for row in good.select("destination").distinct().collect()]

    def totals(self) -> tuple[int, int]:
        """Return the number of rows, and the number of good rows."""
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
        """Return the rows of *frame* that can be scheduled; it has ids and reasons."""
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
        """Return the number of due rows per second, with the first and the last due time."""
        due = f.unix_micros("due")
        return (
            self._smeared(self._each_once(), options)
            .groupBy(_second())
            .agg(f.count("*").alias("count"), f.min(due).alias("first"), f.max(due).alias("last"))
        )

    def hot(self, most: int) -> "DataFrame":
        """Return the seconds in which more than *most* rows are due, by the given due times."""
        seconds = self._each_once().groupBy(_second()).count()
        return seconds.where(f.col("count") > most)

    def _each_once(self) -> "DataFrame":
        rows = self.good(self.facts).select("id", "due")
        return rows.dropDuplicates(["id"]) if self.repeated else rows

    def _smeared(self, rows: "DataFrame", options: ScheduleOptions) -> "DataFrame":
        if options.max_per_second is None or options.jitter is None:
            return rows
        return smeared(rows, self.hot(options.max_per_second), options.jitter)

    def _ambiguous(self) -> "DataFrame":
        return self._twice.where("contents > 1").select("id")


def _second() -> "Column":
    return f.date_trunc("second", "due").alias("second")


def _report(
    judgement: "_Judgement", options: ScheduleOptions, run_id: str, now: Micros
) -> ScheduleReport:
    rows, good = judgement.totals()
    accepted = good - judgement.ambiguous
    smears = judgement.hot(options.max_per_second).count() if options.max_per_second else 0
    # For each minute, the count and the busiest second.
    minutes = (
        judgement.seconds(options)
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
        accepted=accepted - judgement.repeated,
        rejected=rows - accepted,
        reasons=judgement.reasons() if accepted < rows else {},
        repeated=judgement.repeated,
        new=0,
        known=0,
        smeared_seconds=smears,
        first_due=whole[1],
        last_due=whole[2],
        busiest_second=whole[0] or 0,
        curve=tuple((row[0], row[1]) for row in points),
        dry_run=options.dry_run,
    )


def _shown(instant: Micros | None) -> str | None:
    return None if instant is None else from_micros(instant).isoformat()
