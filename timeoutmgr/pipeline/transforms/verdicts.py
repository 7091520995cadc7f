"""The fate of every message: evidence from all sources, one row per id, and a verdict on it.

There is a single union and a single grouping by id, with numbers only: a join for each source would
cost twice as much, and texts would make the grouping sort.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import IntFlag, StrEnum
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from pyspark.sql import types as t

from timeoutmgr.contracts import TimeoutState
from timeoutmgr.message.instants import Micros, duration_micros
from timeoutmgr.pipeline.transforms.instants import EXPECTED, KINDS, instant, is_thinkable
from timeoutmgr.pipeline.transforms.requests import timeout_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

PRINT: Final = ("print_1", "print_2")
_HEAPS: Final = 1024
PLACES: Final = ("endpoint", "destination")
"""Columns of evidence that only verdicts with ids use."""
VERDICTS: Final = (*("id", *PLACES, "day", "verdict", "dispatches", "first_at", "due", "lateness"),)
"""The columns of a verdict."""


def printed(rows: "DataFrame") -> "DataFrame":
    """Return *rows* with the two columns of PRINT instead of their id.

    Spark sends and groups numbers faster than texts, and finds the smallest of some numbers without
    keeping them. Among a billion ids, two share all 128 bits once in 10^20 runs.
    """
    others = [name for name in rows.columns if name != "id"]
    # The same hash with another seed: the hash of the number 1, which precedes the id.
    hashes = (_print_1(), f.xxhash64(f.lit(1), f.col("id")))
    return rows.select(*(one.alias(name) for one, name in zip(hashes, PRINT, strict=True)), *others)


def tallied(rows: "DataFrame", kind: str) -> "DataFrame":
    """Count *rows* of each *kind* in heaps (random groups): kind, many, and two prints of each.

    A heap has the first and the last print in it. With few rows of a kind, hardly any heap has
    three rows, so all prints are returned; with many rows, there are some thousand to choose from.
    """
    first, second = map(f.col, PRINT)
    heap = f.pmod(second, f.lit(_HEAPS)).alias("heap")
    return rows.groupBy(kind, heap).agg(
        f.count(f.lit(1)).alias("many"), f.min(first).alias("first"), f.max(first).alias("last")
    )


def about(rows: "DataFrame", prints: Collection[int]) -> "DataFrame":
    """Return the *rows* whose id has its first print among *prints*."""
    return rows.where(_print_1().isin(list(prints)))


def _print_1() -> "Column":
    return f.xxhash64(f.col("id"))


class Verdict(StrEnum):
    """The fate of a message."""

    OK = "ok"
    LATE = "late"
    """Dispatched, but later after its due time than the limit."""
    PENDING = "pending"
    OVERDUE = "overdue"
    """Pending, though it was due before the cutoff."""
    DUPLICATE = "duplicate"
    """Dispatched more than once, always under the same message id."""
    DISPATCHED_BUT_PENDING = "dispatched_but_pending"
    LOST = "lost"
    """Accepted, or stored, and neither pending nor ended."""
    CANCELLED = "cancelled"
    FAILED = "dead_lettered"
    """In the error queue, with its whole message; reports keep the older name."""
    MIGRATED = "migrated"
    """Moved to another place, which knows its further fate."""
    ERASED = "erased"
    """Erased on request: only its id is known."""
    UNDECIDED = "undecided"
    """Accepted and not seen, but it is unknown whether it should have arrived by now."""
    UNKNOWN = "unknown"
    """The evidence contradicts itself, or proves nothing."""


BROKEN: Final = (Verdict.LOST, Verdict.DISPATCHED_BUT_PENDING)
"""Verdicts that no run may have."""


class Evidence(IntFlag):
    """Kinds of evidence on a message."""

    PENDING = 1
    ACCEPTED = 2
    SCHEDULED = 4
    DISPATCHED = 8
    CANCELLED = 16
    FAILED = 32
    CLOSED = 64
    """Its key says that it was dispatched; its history may be purged, or was not kept."""
    KEPT = 128
    """Its key says that it is pending in this store."""
    MOVED = 256
    """It was moved to another place; it may have come back since."""
    OTHER = 512
    ERASED = 1024


EVENTS: Final[Mapping[str, Evidence]] = {
    "scheduled": Evidence.SCHEDULED,
    "rescheduled": Evidence.SCHEDULED,
    "rerouted": Evidence.SCHEDULED,
    "dispatched": Evidence.DISPATCHED,
    "cancelled": Evidence.CANCELLED,
    "failed": Evidence.FAILED,
    "dead_lettered": Evidence.FAILED,
    TimeoutState.MIGRATED: Evidence.MOVED,
    TimeoutState.ERASED: Evidence.ERASED,
}
STATES: Final[Mapping[str, Evidence]] = {
    TimeoutState.PENDING: Evidence.KEPT,
    TimeoutState.DISPATCHED: Evidence.CLOSED,
    TimeoutState.CANCELLED: Evidence.CANCELLED,
    TimeoutState.FAILED: Evidence.FAILED,
    TimeoutState.MIGRATED: Evidence.MOVED,
    TimeoutState.ERASED: Evidence.ERASED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The limits that verdicts depend on.

    A message due before *cutoff* should have ended; a dispatch more than *late* after due is late.
    Messages without a due time in the senders' list were accepted before *as_of* (None: any time).
    Messages that are due from *until* on, or known to be for others than *destination*, are left
    out.
    """

    cutoff: Micros
    late: timedelta = timedelta(minutes=1)
    as_of: Micros | None = None
    until: Micros | None = None
    destination: str | None = None

    @property
    def accepted_is_stored(self) -> bool:
        """Whether an accepted message, whatever its due time, must be in a store by now."""
        return self.as_of is not None and self.as_of <= self.cutoff


def of_history(history: "DataFrame") -> "DataFrame":
    """Return the evidence of *history*, which has id, event, at and due, and perhaps PLACES."""
    kind = _kinds_by("event", EVENTS)
    return history.select("id", kind, _micros("at"), _micros("due"), *_places(history))


def of_pending(pending: "DataFrame") -> "DataFrame":
    """Return the evidence of *pending*, which has id and due, and perhaps PLACES."""
    kind = _of_kind(Evidence.PENDING)
    return pending.select("id", kind, _none("at"), _micros("due"), *_places(pending))


def of_keys(keys: "DataFrame") -> "DataFrame":
    """Return the evidence of *keys*, which has id, state, due and closed_at, perhaps PLACES."""
    kind, at = _kinds_by("state", STATES), _micros("closed_at").alias("at")
    return keys.select("id", kind, at, _micros("due"), *_places(keys))


def of_accepted(accepted: "DataFrame", endpoint: str) -> "DataFrame":
    """Return the evidence of senders: messages *accepted* for *endpoint*'s manager.

    *accepted* has id or message_id, and due if senders know it; see :func:`problems_of`.
    """
    known = accepted.columns
    named = f.col("id" if "id" in known else "message_id").cast("string")
    id_ = named if "id" in known else timeout_id(endpoint, named)
    due = f.unix_micros(instant(*_due_in(accepted)))
    return accepted.select(
        *(id_.alias("id"), _of_kind(Evidence.ACCEPTED), _none("at"), due.alias("due")),
        *(f.lit(endpoint).alias("endpoint"), *_places(accepted)[1:]),
    )


def problems_of(accepted: "DataFrame") -> list[str]:
    """Return the reasons why *accepted* cannot be a list of senders; read it once for that."""
    ids = [name for name in ("id", "message_id") if name in accepted.columns]
    if not ids:
        return ["has neither a column 'message_id' nor 'id'"]
    due, kind = _due_in(accepted)
    if not isinstance(kind, KINDS):
        return [
            f"has a column 'due' that is {kind.simpleString()}; expected timestamps, or texts with "
            f"a time zone such as {EXPECTED}"
        ]
    is_none = due.isNotNull() & ~f.coalesce(is_thinkable(instant(due, kind)), f.lit(False))
    counted = accepted.agg(
        f.count_if(f.col(ids[0]).isNull()),
        f.count_if(is_none),
        f.min(f.when(is_none, due.cast("string"))),
    ).first()
    assert counted is not None, "an aggregate of everything is one row"
    empty, wrong, one = counted
    problems = [f"has {empty} rows whose {ids[0]!r} is empty"] if empty else []
    if wrong:
        problems.append(
            f"has {wrong} rows whose 'due' is not an instant of the years 1 to 9999 with a time "
            f"zone, such as {EXPECTED}; one is {one[:80]!r}"
        )
    return problems


def _due_in(accepted: "DataFrame") -> "tuple[Column, t.DataType]":
    kinds = {one.name: one.dataType for one in accepted.schema.fields}
    return (f.col("due"), kinds["due"]) if "due" in kinds else (f.lit(None), t.NullType())


def verdicts(evidence: "Sequence[DataFrame]", bounds: Bounds) -> "DataFrame":
    """Return one row for each id in *evidence*: the columns of VERDICTS, times in microseconds.

    The destination is that of the pending message, or the last destination in history. A message
    with an unknown destination may have had any: such verdicts are never left out.
    """
    found = _judged(together(evidence), ("id",), bounds, *PLACES)
    found = found.withColumn("day", f.to_date(f.timestamp_micros("due")))
    if bounds.destination is not None:
        is_missed = f.col("verdict").isin(Verdict.LOST, Verdict.UNDECIDED)
        is_there = f.col("destination") == bounds.destination
        found = found.where(f.coalesce(is_there, is_missed))
    return found.select(*VERDICTS)


def verdicts_by_print(evidence: "Sequence[DataFrame]", bounds: Bounds) -> "DataFrame":
    """Return ``verdicts`` with prints instead of ids, in four fifths of the time."""
    return _judged(printed(together(evidence)), PRINT, bounds)


def together(frames: "Sequence[DataFrame]") -> "DataFrame":
    """Return the rows of all *frames*."""
    return reduce(lambda one, other: one.unionByName(other), frames)


def _judged(evidence: "DataFrame", by: "Sequence[str]", bounds: Bounds, *more: str) -> "DataFrame":
    kind = f.col("kind")
    # Exchange rows before grouping: an id occurs a few times, in different partitions. Grouping in
    # each partition first would take as long again, and send no fewer rows.
    sums = (
        evidence.repartition(*by)
        .groupBy(*by)
        .agg(
            f.bit_or(kind).alias("kinds"),
            f.sum((kind == Evidence.DISPATCHED).cast("int")).alias("dispatches"),
            f.min(f.when(kind == Evidence.DISPATCHED, f.col("at"))).alias("dispatched_at"),
            f.min(f.when(kind == Evidence.DISPATCHED, f.col("due"))).alias("dispatched_due"),
            f.max(f.when(kind == Evidence.CLOSED, f.col("at"))).alias("closed_at"),
            f.max(f.when(kind == Evidence.PENDING, f.col("due"))).alias("pending_due"),
            f.max(f.when(_any_of(kind, _KNOWS_DUE), f.col("due"))).alias("other_due"),
            *(_last_place(name) for name in more),
        )
    )
    due = f.coalesce("dispatched_due", "pending_due", "other_due")
    first = f.coalesce("dispatched_at", "closed_at")
    known = sums.select(
        *(*by, *more, "kinds", "dispatches"), first.alias("first_at"), due.alias("due")
    ).withColumn("lateness", f.col("first_at") - f.col("due"))
    if bounds.until is not None:
        known = known.where(f.coalesce(f.col("due") < bounds.until, f.lit(True)))
    verdict = _verdict(bounds).alias("verdict")
    return known.select(*by, *more, verdict, "dispatches", "first_at", "due", "lateness")


def _last_place(name: str) -> "Column":
    pending = f.max(f.when(f.col("kind") == Evidence.PENDING, f.col(name)))
    # A key has no destination, but the instant of the event that closed it.
    named_at = f.when(f.col(name).isNotNull(), f.col("at"))
    return f.coalesce(pending, f.max_by(name, named_at), f.max(name)).alias(name)


_KNOWS_DUE: Final = (
    Evidence.ACCEPTED | Evidence.SCHEDULED | Evidence.CLOSED | Evidence.KEPT | Evidence.MOVED
)


def _verdict(bounds: Bounds) -> "Column":
    is_pending, is_sent = _has(Evidence.PENDING), f.col("dispatches") > 0
    is_over = f.col("due") < bounds.cutoff
    is_late = f.col("lateness") > duration_micros(bounds.late)
    ended = _has(Evidence.FAILED) | _has(Evidence.CANCELLED)
    chain = [
        (_has(Evidence.ERASED) & is_pending, Verdict.UNKNOWN),
        (_has(Evidence.ERASED), Verdict.ERASED),
        (is_sent & is_pending, Verdict.DISPATCHED_BUT_PENDING),
        (f.col("dispatches") > 1, Verdict.DUPLICATE),
        (is_sent & is_late, Verdict.LATE),
        (is_sent, Verdict.OK),
        (is_pending & (ended | _has(Evidence.CLOSED)), Verdict.UNKNOWN),
        (_has(Evidence.CLOSED) & is_late, Verdict.LATE),
        (_has(Evidence.CLOSED), Verdict.OK),
        (_has(Evidence.FAILED), Verdict.FAILED),
        (_has(Evidence.CANCELLED), Verdict.CANCELLED),
        (is_pending & is_over, Verdict.OVERDUE),
        (is_pending, Verdict.PENDING),
        # All tables are read at one moment: a stored timeout that no other table has is lost.
        (_has(Evidence.KEPT), Verdict.LOST),
        (_has(Evidence.MOVED), Verdict.MIGRATED),
        (_has(Evidence.SCHEDULED), Verdict.LOST),
        # An accepted message may be on its way to the store until it is due.
        (_has(Evidence.ACCEPTED) & f.coalesce(~is_over, f.lit(False)), Verdict.PENDING),
        (
            _has(Evidence.ACCEPTED) & f.col("due").isNull() & f.lit(not bounds.accepted_is_stored),
            Verdict.UNDECIDED,
        ),
        (_has(Evidence.ACCEPTED), Verdict.LOST),
    ]
    verdict = f.lit(Verdict.UNKNOWN.value)
    for condition, meant in reversed(chain):
        verdict = f.when(f.coalesce(condition, f.lit(False)), f.lit(meant.value)).otherwise(verdict)
    return verdict


def _has(kind: Evidence) -> "Column":
    return _any_of(f.col("kinds"), kind)


def _any_of(kinds: "Column", asked: Evidence) -> "Column":
    return kinds.bitwiseAND(f.lit(int(asked))) != 0


def _kinds_by(column: str, meanings: Mapping[str, Evidence]) -> "Column":
    meant = f.lit(int(Evidence.OTHER))
    for name, kind in reversed([*meanings.items()]):  # the first meaning has precedence
        meant = f.when(f.col(column) == name, f.lit(int(kind))).otherwise(meant)
    return meant.alias("kind")


def _places(rows: "DataFrame") -> list["Column"]:
    there = rows.columns
    return [(f.col(n) if n in there else f.lit(None)).cast("string").alias(n) for n in PLACES]


def _of_kind(kind: Evidence) -> "Column":
    return f.lit(int(kind)).alias("kind")


def _micros(column: str) -> "Column":
    return f.unix_micros(f.col(column)).alias(column)


def _none(column: str) -> "Column":
    return f.lit(None).cast("bigint").alias(column)
