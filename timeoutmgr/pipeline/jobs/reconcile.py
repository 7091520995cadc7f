"""``reconcile``: a verdict on every message, by evidence from stores, archive and senders."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import func, select

from timeoutmgr.contracts import Clock
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import Micros, duration_micros, from_micros
from timeoutmgr.pipeline.errors import WrongColumns
from timeoutmgr.pipeline.frames import tasks_on
from timeoutmgr.pipeline.jobs.data_set_files import PACKED, analysed, broken_files_named, table_of
from timeoutmgr.pipeline.jobs.moments import Moments, micros_of, moments
from timeoutmgr.pipeline.jobs.output_folder import require_own
from timeoutmgr.pipeline.jobs.run_context import Progress, silent, worker_errors
from timeoutmgr.pipeline.options import TABLE, ReconcileOptions
from timeoutmgr.pipeline.spark.session import in_utc
from timeoutmgr.pipeline.stores import open_store
from timeoutmgr.pipeline.transforms.verdicts import (
    BROKEN,
    PLACES,
    Bounds,
    Verdict,
    about,
    of_accepted,
    of_history,
    of_keys,
    of_pending,
    printed,
    problems_of,
    tallied,
    together,
    verdicts,
    verdicts_by_print,
)
from timeoutmgr.pipeline.views import Selection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "history": ("sequence", "id", "event", "at", "due"),
    "pending": ("id", "due"),
    "keys": ("id", "state", "due", "closed_at"),
}
_FORMATS: Final = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json"}
_SHOWN: Final = ("id", "verdict", "due", "dispatches")
"""The columns of a verdict that an example shows."""
_APART: Final = timedelta(hours=1)
_WELL: Final = (Verdict.OK, Verdict.PENDING, Verdict.CANCELLED, Verdict.MIGRATED, Verdict.ERASED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileReport:
    """Number of messages by verdict, and examples of bad verdicts.

    *is_decidable* says whether every accepted message is known, and none is undecided; otherwise
    the job cannot notice a message that vanished before it was stored. *frame* has all verdicts, if
    ``out`` or ``keep`` asked for them.
    """

    at: Micros
    messages: int
    counts: Mapping[Verdict, int]
    examples: Sequence[Mapping[str, Any]]
    is_decidable: bool
    frame: "DataFrame | None" = None

    @property
    def verdicts(self) -> "DataFrame":
        """All verdicts, with the columns ``transforms.verdicts.VERDICTS``.

        Raises ConfigurationError if the options asked for no such frame.
        """
        if self.frame is None:
            raise ConfigurationError(
                "the verdicts were counted and not kept; give ReconcileOptions a folder (out), or "
                "keep=True for a frame that lasts as long as its session"
            )
        return self.frame

    @property
    def is_broken(self) -> bool:
        """Whether any message has a verdict that no message may have (``BROKEN``)."""
        return any(self.counts.get(verdict) for verdict in BROKEN)

    def document(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {
            "at": from_micros(self.at).isoformat(),
            "messages": self.messages,
            "verdicts": {verdict.value: self.counts.get(verdict, 0) for verdict in Verdict},
            "lost_is_decidable": self.is_decidable,
            "examples": [dict(one) for one in self.examples],
        }


@in_utc
def reconcile(
    spark: "SparkSession", options: ReconcileOptions, *, clock: Clock, progress: Progress = silent
) -> ReconcileReport:
    """Return a verdict on every message of the stores; change nothing."""
    if options.out is not None:
        require_own(options.out, "verdicts")
    progress("taking snapshots")
    with worker_errors(), moments_of(options, clock=clock) as held:
        history = map(of_history, held.history(spark, _columns(options)["history"]))
        evidence = [*history, *others_of(spark, options, held)]
        return judged(spark, options, held, evidence, progress)


def moments_of(
    options: ReconcileOptions, *, clock: Clock, more: Sequence[str] = ()
) -> AbstractContextManager[Moments]:
    """Hold the moments that the job judges, with *more* columns of the history."""
    columns = _columns(options)
    return moments(
        options.stores,
        options.archive,
        views=[*columns],
        columns=[*dict.fromkeys((*chain(*columns.values()), *more))],
        which=_window(options),
        clock=clock,
    )


def others_of(spark: "SparkSession", options: ReconcileOptions, held: Moments) -> list["DataFrame"]:
    """Return the evidence of the senders, and of the stores except their history."""
    columns, found = _columns(options), list["DataFrame"]()
    for one in held.stores:
        for view, evidence in (("pending", of_pending), ("keys", of_keys)):
            rows = one.snapshot.read(spark, view, columns=columns[view], which=held.which)
            found.append(evidence(rows))
    return [*found, *_of_accepted(spark, options)]


def judged(
    spark: "SparkSession",
    options: ReconcileOptions,
    held: Moments,
    evidence: Sequence["DataFrame"],
    progress: Progress,
) -> ReconcileReport:
    """Return the report on *evidence*, which is read a second time to name examples."""
    at = min(one.snapshot.now for one in held.stores)
    progress("judging")
    with _sampled(spark, options, evidence, _bounds(options, at)) as found:
        heaps = tallied(found.printed, "verdict").collect()
        examples = _examples(found, heaps, options.examples)
    counts = Counter[Verdict]()
    for heap in heaps:
        counts[Verdict(heap["verdict"])] += heap["many"]
    return ReconcileReport(
        at=at,
        messages=counts.total(),
        counts=dict(counts),
        examples=examples,
        is_decidable=not counts[Verdict.UNDECIDED] and all_known(spark, options),
        frame=found.frame,
    )


def _columns(options: ReconcileOptions) -> Mapping[str, tuple[str, ...]]:
    """Return the columns to read from each view; places only if verdicts show or need them."""
    if options.out is None and not options.keep and options.destination is None:
        return _COLUMNS
    more = {"keys": ("endpoint",)}
    return {view: (*names, *more.get(view, PLACES)) for view, names in _COLUMNS.items()}


def _window(options: ReconcileOptions) -> Selection:
    since = micros_of(options.since)
    # Clocks of hosts differ: if a message seems to be stored after its end, it has only a key.
    closed = None if since is None else since - duration_micros(_APART)
    return Selection(endpoint=options.endpoint, at_from=since, open_since=closed)


def _bounds(options: ReconcileOptions, at: Micros) -> Bounds:
    return Bounds(
        cutoff=at - duration_micros(options.grace),
        late=options.late,
        as_of=micros_of(options.as_of),
        until=micros_of(options.until),
        destination=options.destination,
    )


@dataclass(frozen=True, slots=True)
class VerdictSample:
    """Verdicts with prints (hashes) instead of ids, and a function that returns some with ids.

    *frame* has the verdicts with ids, if the options keep them.
    """

    printed: "DataFrame"
    about: Callable[[Collection[int]], "DataFrame"]
    frame: "DataFrame | None" = None


@contextmanager
def _sampled(
    spark: "SparkSession",
    options: ReconcileOptions,
    evidence: Sequence["DataFrame"],
    bounds: Bounds,
) -> Iterator[VerdictSample]:
    """Judge, and keep the verdicts as long as *options* say, or judge anew each time.

    Verdicts on a window are kept until the end of the block: the evidence is read once. Keeping the
    verdicts on all of history would take longer than judging a few ids again.
    """
    if options.out is not None or options.keep:
        frame = _kept(spark, verdicts(evidence, bounds), options.out)
        yield VerdictSample(printed(frame), lambda prints: about(frame, prints), frame)
    elif options.since is not None:
        narrow = verdicts(evidence, bounds).select(*_SHOWN)
        held = narrow.coalesce(tasks_on(spark)).persist()
        try:
            yield VerdictSample(printed(held), lambda prints: about(held, prints))
        finally:
            held.unpersist()
    else:
        yield VerdictSample(
            printed(verdicts(evidence, bounds))
            if bounds.destination is not None
            else verdicts_by_print(evidence, bounds),
            lambda prints: verdicts([about(together(evidence), prints)], bounds),
        )


def _kept(spark: "SparkSession", frame: "DataFrame", out: Path | None) -> "DataFrame":
    if out is None:
        return frame.localCheckpoint()  # the moment of the verdicts ends with the job
    # Spark takes the text before a colon in a relative path for a scheme.
    path = str(out.absolute())
    frame.write.mode("overwrite").parquet(path)
    return spark.read.parquet(path)


def all_known(spark: "SparkSession", options: ReconcileOptions) -> bool:
    """Return whether the list or a full history has all accepted messages of judged endpoints."""
    if options.accepted is not None and _list_of(spark, options.accepted).isEmpty():
        return False  # its export may have failed
    # Ask every name: each endpoint of a store knows its own settings only.
    if all(open_store(one).tables.history_kept == "full" for one in options.stores):
        return True
    return options.accepted is not None and _is_for_all(options)


def _is_for_all(options: ReconcileOptions) -> bool:
    """Return whether the list covers the only judged endpoint."""
    return options.endpoint == options.list_of or (
        options.endpoint is None and all(_ends(one) <= {options.list_of} for one in options.stores)
    )


def _ends(name: str) -> set[str | None]:
    """Return the first and the last endpoint of a store, which an index finds without a scan."""
    store = open_store(name)
    endpoint = store.tables.keys.c.endpoint
    with store.database.read() as connection:
        found = [connection.scalar(select(end(endpoint))) for end in (func.min, func.max)]
    return {*found} - {None}


def _of_accepted(spark: "SparkSession", options: ReconcileOptions) -> list["DataFrame"]:
    if options.accepted is None or options.list_of is None:
        return []
    with broken_files_named("a list of accepted ids"):
        frame = _list_of(spark, options.accepted)
        problems = problems_of(frame)
    if problems:
        raise WrongColumns(options.accepted, problems)
    return [of_accepted(frame, options.list_of)]


def _list_of(spark: "SparkSession", given: str) -> "DataFrame":
    if given.startswith(TABLE):
        return table_of(spark, given)
    path = Path(given)
    plain = path.with_suffix("") if path.suffix in PACKED else path
    kind = _FORMATS.get(plain.suffix, "parquet")
    reader = spark.read.format(kind)
    remedy = "; a list of accepted ids ends in .csv, .json or .jsonl, or is Parquet"
    with analysed(given, kind, remedy):
        frame = (reader.option("header", True) if kind == "csv" else reader).load(given)
        frame.schema.fieldNames()  # Spark Connect reads the schema only when asked
    return frame


def _examples(found: VerdictSample, heaps: Sequence["Row"], most: int) -> list[dict[str, Any]]:
    """Return up to *most* ids of each bad verdict, broken verdicts first."""
    prints: dict[str, set[int]] = {}
    for heap in heaps:
        if heap["verdict"] not in _WELL:
            prints.setdefault(heap["verdict"], set()).update((heap["first"], heap["last"]))
    wanted = {one for some in prints.values() for one in sorted(some)[:most]}
    if not wanted:
        return []
    rows = [row for row in found.about(wanted).collect() if row["verdict"] in prints]
    rows.sort(key=lambda row: (row["verdict"] not in BROKEN, row["verdict"], row["id"]))
    return [
        {
            "id": row["id"],
            "verdict": row["verdict"],
            "due": None if row["due"] is None else from_micros(row["due"]).isoformat(),
            "dispatches": row["dispatches"],
        }
        for row in rows
    ]
