"""The rules of ``reconcile`` once more, in plain Python for a single message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from timeoutmgr.pipeline.transforms.verdicts import Verdict


class Fact(NamedTuple):
    """One row of a view about a message: *what* is an event, or pending, accepted, key-STATE."""

    what: str
    at: int | None
    due: int


_KNOWS_DUE = (
    *("accepted", "scheduled", "rescheduled", "migrated"),
    *("key-pending", "key-dispatched", "key-migrated"),
)


def verdict(facts: Sequence[Fact], *, cutoff: int, late: int) -> Verdict:
    """Return the verdict on the message that all *facts* are about."""
    names = [fact.what for fact in facts]
    dispatches = [fact for fact in facts if fact.what == "dispatched"]
    is_pending = "pending" in names
    if {"erased", "key-erased"} & set(names):
        return Verdict.UNKNOWN if is_pending else Verdict.ERASED
    if dispatches and is_pending:
        return Verdict.DISPATCHED_BUT_PENDING
    if len(dispatches) > 1:
        return Verdict.DUPLICATE
    if dispatches:
        (sent,) = dispatches
        assert sent.at is not None
        return Verdict.LATE if sent.at - sent.due > late else Verdict.OK
    dispatched_keys = [fact for fact in facts if fact.what == "key-dispatched"]
    is_failed = bool({"failed", "dead_lettered", "key-failed"} & set(names))
    is_cancelled = bool({"cancelled", "key-cancelled"} & set(names))
    if is_pending:
        if dispatched_keys or is_failed or is_cancelled:
            return Verdict.UNKNOWN
        due = max(fact.due for fact in facts if fact.what == "pending")
        return Verdict.OVERDUE if due < cutoff else Verdict.PENDING
    known_dues = [fact.due for fact in facts if fact.what in _KNOWS_DUE]
    if dispatched_keys:
        closed = max(fact.at for fact in dispatched_keys if fact.at is not None)
        return Verdict.LATE if closed - max(known_dues) > late else Verdict.OK
    if is_failed:
        return Verdict.FAILED
    if is_cancelled:
        return Verdict.CANCELLED
    if "key-pending" in names:
        return Verdict.LOST
    if {"migrated", "key-migrated"} & set(names):
        return Verdict.MIGRATED
    if {"scheduled", "rescheduled"} & set(names):
        return Verdict.LOST
    if "accepted" in names:
        return Verdict.LOST if max(known_dues) < cutoff else Verdict.PENDING
    return Verdict.UNKNOWN


class Times(NamedTuple):
    """The instants that count of a message: when it was sent first, and when it was due."""

    first_at: int | None
    due: int | None


def times(facts: Sequence[Fact]) -> Times:
    """Return the times of a message by all its *facts*."""
    sent = [fact for fact in facts if fact.what == "dispatched"]
    closed = [fact.at for fact in facts if fact.what == "key-dispatched" and fact.at is not None]
    pending = [fact.due for fact in facts if fact.what == "pending"]
    known = [fact.due for fact in facts if fact.what in _KNOWS_DUE]
    if sent:
        ats = [fact.at for fact in sent if fact.at is not None]
        return Times(min(ats), min(fact.due for fact in sent))
    return Times(max(closed, default=None), max(pending or known, default=None))
