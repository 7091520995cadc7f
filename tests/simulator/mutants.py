"""Known wrong orders and missing locks, each with the promise that the ledger must miss."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.model.promises import Promise
from tests.model.wrong import (
    ConfirmNotAwaited,
    DeleteBeforePublish,
    ErrorQueueAfterRemoval,
    NewIdPerDispatch,
)
from timeoutmgr.contracts import Key, LockedTimeouts, Outcome, OutcomeKind, TransactionMode
from timeoutmgr.message.instants import Micros
from timeoutmgr.satellites.timeout_manager.dispatcher import DispatchTimeouts

from .database import Claim, Database
from .node import Parts


class OrderedIsDue(DispatchTimeouts):
    def _wait_until_due(self, locked: LockedTimeouts) -> None:
        return


class NoTombstoneAfterDispatch(Database):
    def record(self, outcomes: Sequence[Outcome]) -> None:
        super().record(outcomes)
        for outcome in outcomes:
            if outcome.kind is OutcomeKind.DISPATCHED:
                self.known.pop(outcome.key.id, None)


class DueNotLookedAtAgain(Database):
    """Takes a row by its id, wherever it was moved to."""

    def due(self, keys: Iterable[Key], now: Micros) -> list[Key]:
        known = {key.id: self.known[key.id].due for key in keys}
        return sorted(key for one, due in known.items() if (key := Key(due, one)) in self.rows)


class EndedClaimLeavesNoFlag(Database):
    def may_have_sent(self, claim: Claim) -> bool:
        return False

    def flag_maybe_sent(self, keys: Iterable[Key]) -> None:
        return


class HighWaterKey(Database):
    """Claims only keys behind the last key of the claim before."""

    last_key = Key(0, "")

    def free_keys(self, now: Micros, limit: int) -> tuple[list[Key], Micros | None]:
        keys, next_due = super().free_keys(now, limit)
        keys = [key for key in keys if key > self.last_key]
        self.last_key = max([self.last_key, *keys])
        return keys, next_due if keys else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """Wrong parts, and the promise that they break."""

    name: str
    promise: Promise
    parts: Parts


MUTANTS = (
    Mutant(
        name="ack before insert",
        promise=Promise.NEVER_LOST,
        parts=Parts(store_mode=TransactionMode.NONE),
    ),
    Mutant(
        name="delete before publish",
        promise=Promise.NEVER_LOST,
        parts=Parts(dispatching=DeleteBeforePublish),
    ),
    Mutant(
        name="confirm not awaited",
        promise=Promise.NEVER_LOST,
        parts=Parts(dispatching=ConfirmNotAwaited),
    ),
    Mutant(
        name="error queue after removal",
        promise=Promise.NEVER_LOST,
        parts=Parts(dispatching=ErrorQueueAfterRemoval),
    ),
    Mutant(
        name="a last key instead of a claim",
        promise=Promise.NEVER_LOST,
        parts=Parts(database=HighWaterKey),
    ),
    Mutant(
        name="a new message id per dispatch",
        promise=Promise.SAME_ID,
        parts=Parts(dispatching=NewIdPerDispatch),
    ),
    Mutant(
        name="no tombstone after a dispatch",
        promise=Promise.NO_REPEAT_WITHOUT_CRASH,
        parts=Parts(database=NoTombstoneAfterDispatch),
    ),
    Mutant(
        name="due is not looked at again when taking",
        promise=Promise.NEVER_EARLY,
        parts=Parts(database=DueNotLookedAtAgain),
    ),
    Mutant(
        name="a timeout that is ordered ahead counts as due",
        promise=Promise.NEVER_EARLY,
        parts=Parts(dispatching=OrderedIsDue),
    ),
    Mutant(
        name="an ended claim leaves no flag",
        promise=Promise.CANCEL_IS_TRUE,
        parts=Parts(database=EndedClaimLeavesNoFlag),
    ),
)
