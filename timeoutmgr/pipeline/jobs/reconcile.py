"""``reconcile``: a verdict on every message, by stores, archive and senders."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from timeoutmgr.contracts import Clock
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import Micros, duration_micros, from_micros, to_micros
from timeoutmgr.pipeline.errors import WrongColumns
from timeoutmgr.pipeline.jobs.moments import Moments, moments
from timeoutmgr.pipeline.jobs.run_context import Progress, silent, worker_errors
from timeoutmgr.pipeline.options import TABLE, ReconcileOptions
from timeoutmgr.pipeline.spark.session import in_utc
from timeoutmgr.pipeline.stores import open_store
from timeoutmgr.pipeline.transforms.verdicts import (
    BROKEN,
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

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

_HISTORY: Final = ("sequence", "id", "event", "at", "due")
_PENDING: Final = ("id", "due")
_KEYS: Final = ("id", "state", "due", "closed_at")
_VIEWS: Final = ("pending", "history", "keys")
_FORMATS: Final = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json"}
_WELL: Final = (Verdict.OK, Verdict.PENDING, Verdict.CANCELLED, Verdict.MIGRATED)
_ALL_COLUMNS: Final = tuple(dict.fromkeys((*_HISTORY, *_PENDING, *_KEYS)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileReport:
    """How many messages got each verdict, and examples of verdicts that are not well.

    *is_decidable* says whether every message that was accepted is known, and none is undecided:
    without that, a message may have vanished before it was stored, and is not missed.
    """

    at: Micros
    messages: int
    counts: Mapping[Verdict, int]
    examples: Sequence[Mapping[str, Any]]
    is_decidable: bool

    @property
    def is_broken(self) -> bool:
        """Whether a message has a verdict that none may have."""
        return any(self.counts.get(verdict) for verdict in BROKEN)

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "at": from_micros(self.at).isoformat(),
            "messages": self.messages,
            "verdicts": {verdict.value: self.counts.get(verdict, 0) for verdict in Verdict},
            "lost_is_decidable": self.is_decidable,
            "examples": [dict(one) for one in self.examples],
        }


def reconcile(
    spark: "SparkSession",
    options: ReconcileOptions,
    *,
    clock: Clock,
    progress: Progress = silent,
) -> ReconcileReport:
    """Return a verdict on every message of the stores; nothing is changed."""
    in_utc(spark)
    if options.out is not None:
        _require_ours(options.out)
    progress("taking snapshots")
    looked = moments(
        options.stores,
        options.archive,
        views=_VIEWS,
        columns=_ALL_COLUMNS,
        clock=clock,
    )
    with worker_errors(), looked as held:
        at = min(one.snapshot.now for one in held.stores)
        evidence = [*_of_stores(spark, held), *_of_accepted(spark, options)]
        judge = _Judge(evidence, _bounds(options, at))
        progress("judging")
        found = judge.judge() if options.out is None else judge.write(spark, options.out)
        heaps = tallied(found.printed, "verdict").collect()
        counts = Counter[Verdict]()
        for heap in heaps:
            counts[Verdict(heap["verdict"])] += heap["many"]
        return ReconcileReport(
            at=at,
            messages=counts.total(),
            counts=dict(counts),
            examples=_examples(found, heaps, options.examples),
            is_decidable=not counts[Verdict.UNDECIDED]
            and (options.accepted is not None or _all_full(options)),
        )


def _bounds(options: ReconcileOptions, at: Micros) -> Bounds:
    return Bounds(
        cutoff=at - duration_micros(options.grace),
        late=options.late,
        as_of=None if options.as_of is None else to_micros(options.as_of),
    )


@dataclass(frozen=True, slots=True)
class VerdictSample:
    """Verdicts with prints in place of ids, and a function for the verdicts on some prints."""

    printed: "DataFrame"
    about: Callable[[Collection[int]], "DataFrame"]


@dataclass(frozen=True, slots=True)
class _Judge:
    evidence: Sequence["DataFrame"]
    bounds: Bounds

    def judge(self) -> VerdictSample:
        """Judge each time anew: to keep all verdicts would take longer than to judge a few ids."""
        return VerdictSample(
            verdicts_by_print(self.evidence, self.bounds),
            lambda prints: verdicts([about(together(self.evidence), prints)], self.bounds),
        )

    def write(self, spark: "SparkSession", folder: Path) -> VerdictSample:
        """Write all verdicts into *folder*, and find them there."""
        verdicts(self.evidence, self.bounds).write.mode("overwrite").parquet(str(folder))
        written = spark.read.parquet(str(folder))
        return VerdictSample(printed(written), lambda prints: about(written, prints))


# Names of Spark's output: parts, checksums beside them, and the remains of a dead run.
_OF_SPARK: Final = re.compile(r"_temporary|\.?(_SUCCESS|part-.+\.parquet)(\.crc)?")


def _require_ours(folder: Path) -> None:
    """Raise ConfigurationError where *folder* holds anything but verdicts: it would be removed."""
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    strange = next((name for name in names if not _OF_SPARK.fullmatch(name)), None)
    parts = (folder / name for name in names if name.startswith("part-"))
    strange = strange or next((one.name for one in parts if not _holds_verdicts(one)), None)
    if strange is not None:
        raise ConfigurationError(
            f"the folder for verdicts, {folder}, holds {strange!r}, which no earlier run has "
            "written, and which would be removed; name a folder that is new or empty"
        )


def _holds_verdicts(path: Path) -> bool:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return {"id", "verdict", "dispatches"} <= set(pq.read_schema(path).names)
    except (pa.ArrowInvalid, OSError):
        return False


def _all_full(options: ReconcileOptions) -> bool:
    # Ask every name: each endpoint of a store knows its own settings only.
    return all(open_store(one).tables.history_kept == "full" for one in options.stores)


def _of_stores(spark: "SparkSession", held: Moments) -> list["DataFrame"]:
    found = [of_history(one) for one in held.history(spark, _HISTORY)]
    for one in held.stores:
        found.append(of_pending(one.snapshot.read(spark, "pending", columns=_PENDING)))
        found.append(of_keys(one.snapshot.read(spark, "keys", columns=_KEYS)))
    return found


def _of_accepted(spark: "SparkSession", options: ReconcileOptions) -> list["DataFrame"]:
    if options.accepted is None or options.endpoint is None:
        return []
    frame = _list_of(spark, options.accepted)
    problems = problems_of(frame)
    if problems:
        raise WrongColumns(options.accepted, problems)
    return [of_accepted(frame, options.endpoint)]


def _list_of(spark: "SparkSession", given: str) -> "DataFrame":
    from pyspark.errors import AnalysisException

    is_table = given.startswith(TABLE)
    kind = _FORMATS.get(Path(given).suffix, "parquet")
    try:
        if is_table:
            frame = spark.table(given.removeprefix(TABLE))
        else:
            reader = spark.read.format(kind)
            frame = (reader.option("header", True) if kind == "csv" else reader).load(given)
        frame.schema.fieldNames()  # Spark Connect reads the schema only when asked
    except AnalysisException as error:
        tried, remedy = (
            ("a table", "give its name as Spark SQL has it, and what its catalog needs by --conf")
            if is_table
            else (kind, "a list of accepted ids ends in .csv, .json or .jsonl, or is Parquet")
        )
        raise ConfigurationError(
            f"{given} cannot be read as {tried}: {str(error).splitlines()[0]}; {remedy}"
        ) from error
    return frame


def _examples(found: VerdictSample, heaps: Sequence["Row"], most: int) -> list[dict[str, Any]]:
    """Return up to *most* ids of each verdict that is not well, broken verdicts first."""
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
