"""Outcomes of a dispatch, a cancel or a change."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from timeoutmgr.contracts.timeouts import Key
from timeoutmgr.message.instants import Micros


class OutcomeKind(StrEnum):
    """How the dispatch of one timeout ended."""

    DISPATCHED = "dispatched"
    FAILED = "failed"
    """Its whole message is in the error queue."""
    RETRY = "retry"
    """It stays, with one more attempt, and is not tried before ``next_try``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the dispatch of one timeout ended, to be recorded by ``LockedTimeouts.close``.

    *next_try* is an instant of the store's clock; *at* is too, where the dispatcher knew it.
    *maybe_sent* goes with RETRY: no confirm came, so that a later cancel must not promise.
    """

    key: Key
    kind: OutcomeKind
    at: Micros
    next_try: Micros = 0
    reason: str = ""
    maybe_sent: bool = False


class CancelResult(StrEnum):
    """Effect of a cancel or a change; every answer is true when it is given."""

    CANCELLED = "cancelled"
    """It will not be delivered."""
    TOO_LATE = "too_late"
    """It was dispatched, or is being dispatched now; it will be delivered. So it will when it was
    moved to another place, or is on its way there: cancel it there, once it has arrived.

    Without row locks, also: it was stored amid timeouts that are being dispatched now.
    """
    MAYBE_SENT = "maybe_sent"
    """It will not be sent again, but a claim on it ended without saying whether it was sent."""
    WILL_BE_CANCELLED = "will_be_cancelled"
    """No such timeout is stored. If its message arrives, it is dropped and the history says so."""
    UNKNOWN = "unknown"
    """No such timeout is stored, and the store cannot remember a cancel."""


class ChangeResult(StrEnum):
    """Effect of a reschedule or send-now."""

    CHANGED = "changed"
    TOO_LATE = "too_late"
    MAYBE_SENT = "maybe_sent"
    """It is rescheduled, but an earlier claim may have sent it already."""
    UNKNOWN = "unknown"
