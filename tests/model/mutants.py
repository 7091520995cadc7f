"""The list of mutants: known wrong orders and missing locks, each with the promise it breaks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from timeoutmgr.contracts import TransactionMode

from .actors import CLEAR, Scenario
from .fenced import FencedStore
from .handlers import HandlerScenario
from .promises import CANCEL, CHANGE, Promise
from .recurring import RecurringScenario
from .rowlocks import RowLockStore
from .world import BEFORE, DUE, LATER, Bounds
from .wrong import (
    CancelLeavesNoTombstone,
    CancelWithoutRowLock,
    ClearsBesideStores,
    ClearsByTimeOfSending,
    ConfirmNotAwaited,
    DeleteBeforePublish,
    DueNotLookedAtAgain,
    EndedClaimLeavesNoFlag,
    EndsOthersClaim,
    ErrorQueueAfterRemoval,
    FlagBeforePublish,
    ForgetsClears,
    HighWaterKey,
    LeaseWithoutRowLock,
    NewIdPerDispatch,
    NoClaimBeforePublish,
    NoTombstoneAfterDispatch,
    ReleasesLockedClaim,
    TombstoneLookedAtUnlocked,
    UnfencedClaim,
    UnknownLeavesNoFlag,
)
from .wrong_handlers import (
    AcksBeforeEffects,
    AcksFailed,
    AcksNotBegun,
    HandlesGivenBack,
    IgnoresLostTransaction,
    KeepsFailedEffects,
    NewIdPerHandling,
    RepeatsNeighbours,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A change that breaks *promise* in *scenario*, which holds it without the change."""

    name: str
    promise: Promise
    scenario: Scenario | HandlerScenario | RecurringScenario
    change: dict[str, Any] = field(default_factory=dict)

    @property
    def mutated(self) -> Scenario | HandlerScenario | RecurringScenario:
        return replace(self.scenario, **self.change)


CLEARED = Scenario(
    saga=(("m1", BEFORE), (CLEAR, BEFORE + 1)),
    sent=(("m1", DUE),),
    chunk=1,
    stores=2,
    dispatchers=1,
    starts=BEFORE,
    bounds=Bounds(polls=1),
)
ONE_CRASH, ONE_UNKNOWN = Bounds(crashes=1), Bounds(unknowns=1)
ROW_LOCKS = Scenario(store=RowLockStore)
FENCED = Scenario(store=FencedStore)
SENT_TWICE = (("m1", DUE), ("m1", DUE))
HANDLERS = HandlerScenario()
HANDLERS_RECEIVE_ONLY = HandlerScenario(mode=TransactionMode.RECEIVE_ONLY)

MUTANTS = (
    Mutant(
        name="a clear goes by two hosts' clocks",
        promise=Promise.CLEARS_IN_ORDER,
        scenario=replace(CLEARED, saga=(("m1", LATER), (CLEAR, DUE)), stores=1),
        change={"store": ClearsByTimeOfSending},
    ),
    Mutant(
        name="a clear is not remembered for messages in hand",
        promise=Promise.CLEARS_IN_ORDER,
        scenario=replace(CLEARED, store=FencedStore),
        change={"store": ForgetsClears},
    ),
    Mutant(
        name="a clear does not wait for transactions that store",
        promise=Promise.CLEARS_IN_ORDER,
        scenario=CLEARED,
        change={"store": ClearsBesideStores},
    ),
    Mutant(
        name="ack before insert",
        promise=Promise.NEVER_LOST,
        scenario=replace(ROW_LOCKS, bounds=ONE_CRASH),
        change={"store_mode": TransactionMode.NONE},
    ),
    Mutant(
        name="delete before publish",
        promise=Promise.NEVER_LOST,
        scenario=replace(FENCED, bounds=ONE_CRASH),
        change={"dispatch_step": DeleteBeforePublish},
    ),
    Mutant(
        name="mark before publish",
        promise=Promise.NEVER_LOST,
        scenario=replace(FENCED, bounds=ONE_CRASH),
        change={"store": FlagBeforePublish},
    ),
    Mutant(
        name="confirm not awaited",
        promise=Promise.NEVER_LOST,
        scenario=replace(FENCED, bounds=ONE_UNKNOWN),
        change={"dispatch_step": ConfirmNotAwaited},
    ),
    Mutant(
        name="high-water mark instead of a claim",
        promise=Promise.NEVER_LOST,
        scenario=replace(FENCED, sent=(("m1", DUE), ("m2", BEFORE)), chunk=1),
        change={"store": HighWaterKey},
    ),
    Mutant(
        name="error queue after removal",
        promise=Promise.NEVER_LOST,
        scenario=replace(FENCED, has_destination=False, bounds=ONE_CRASH),
        change={"dispatch_step": ErrorQueueAfterRemoval},
    ),
    Mutant(
        name="lease without a row lock, on a database that has them",
        promise=Promise.NO_REPEAT_WITHOUT_CRASH,
        scenario=replace(ROW_LOCKS, bounds=Bounds(lapses=1)),
        change={"store": LeaseWithoutRowLock},
    ),
    Mutant(
        name="unfenced claim on SQLite",
        promise=Promise.NO_REPEAT_WITHOUT_CRASH,
        scenario=replace(FENCED, bounds=Bounds(redeliveries=1)),
        change={"store": UnfencedClaim},
    ),
    Mutant(
        name="resurrection: the tombstone is looked at without a lock",
        promise=Promise.TOMBSTONES_STAY,
        scenario=replace(ROW_LOCKS, sent=SENT_TWICE, stores=2, dispatchers=1, chunk=1),
        change={"store": TombstoneLookedAtUnlocked},
    ),
    Mutant(
        name="no tombstone after a dispatch",
        promise=Promise.NO_REPEAT_WITHOUT_CRASH,
        scenario=replace(ROW_LOCKS, sent=SENT_TWICE, dispatchers=1, chunk=1),
        change={"store": NoTombstoneAfterDispatch},
    ),
    Mutant(
        name="a new message id per dispatch",
        promise=Promise.SAME_ID,
        scenario=FENCED,
        change={"dispatch_step": NewIdPerDispatch},
    ),
    Mutant(
        name="cancel without a row lock",
        promise=Promise.CANCEL_IS_TRUE,
        scenario=replace(ROW_LOCKS, clients=((CANCEL, "m1"),)),
        change={"store": CancelWithoutRowLock},
    ),
    Mutant(
        name="cancel leaves no tombstone for what is on its way",
        promise=Promise.CANCEL_IS_TRUE,
        scenario=replace(FENCED, clients=((CANCEL, "m1"),)),
        change={"store": CancelLeavesNoTombstone},
    ),
    Mutant(
        name="due is not looked at again when taking",
        promise=Promise.NEVER_EARLY,
        scenario=replace(ROW_LOCKS, clients=((CHANGE, "m1"),)),
        change={"store": DueNotLookedAtAgain},
    ),
    Mutant(
        name="an ended claim leaves no mark",
        promise=Promise.CANCEL_IS_TRUE,
        scenario=replace(ROW_LOCKS, clients=((CANCEL, "m1"),), bounds=ONE_UNKNOWN),
        change={"store": EndedClaimLeavesNoFlag},
    ),
    Mutant(
        name="no claim before the publish of a single-id order",
        promise=Promise.CANCEL_IS_TRUE,
        scenario=replace(
            ROW_LOCKS,
            orders=("m1",),
            clients=((CANCEL, "m1"),),
            dispatchers=1,
            bounds=Bounds(crashes=1, polls=0),
        ),
        change={"store": NoClaimBeforePublish},
    ),
    Mutant(
        name="an unknown confirm leaves no mark",
        promise=Promise.CANCEL_IS_TRUE,
        scenario=replace(FENCED, clients=((CANCEL, "m1"),), bounds=ONE_UNKNOWN),
        change={"dispatch_step": UnknownLeavesNoFlag},
    ),
    Mutant(
        name="a dispatcher ends a claim whose rows others hold",
        promise=Promise.CANCEL_IS_TRUE,
        scenario=replace(
            ROW_LOCKS, clients=((CANCEL, "m1"),), bounds=Bounds(crashes=1, redeliveries=1, polls=1)
        ),
        change={"store": EndsOthersClaim},
    ),
    Mutant(
        name="a release ends a claim that a dispatcher has taken",
        promise=Promise.NO_REPEAT_WITHOUT_CRASH,
        scenario=replace(FENCED, bounds=ONE_UNKNOWN),
        change={"store": ReleasesLockedClaim},
    ),
    Mutant(
        name="a message is acknowledged that no handler began",
        promise=Promise.NEVER_LOST,
        scenario=replace(HANDLERS, bounds=Bounds(pauses=1)),
        change={"pump": AcksNotBegun},
    ),
    Mutant(
        name="a batch is acknowledged before its effects",
        promise=Promise.NEVER_LOST,
        scenario=replace(HANDLERS, bounds=ONE_CRASH),
        change={"pump": AcksBeforeEffects},
    ),
    Mutant(
        name="without a transaction, a batch is acknowledged before its effects",
        promise=Promise.NEVER_LOST,
        scenario=replace(HANDLERS_RECEIVE_ONLY, bounds=ONE_CRASH),
        change={"pump": AcksBeforeEffects},
    ),
    Mutant(
        name="the effects of a failed message stay in the batch",
        promise=Promise.FAILS_ALONE,
        scenario=HANDLERS,
        change={"step": KeepsFailedEffects},
    ),
    Mutant(
        name="a failed message is acknowledged with its neighbours",
        promise=Promise.NEVER_LOST,
        scenario=HANDLERS,
        change={"pump": AcksFailed},
    ),
    Mutant(
        name="the neighbours of a failed message are handled again, and their effects stay",
        promise=Promise.EXACTLY_ONCE,
        scenario=HANDLERS,
        change={"pump": RepeatsNeighbours},
    ),
    Mutant(
        name="messages that were given back are handled too",
        promise=Promise.NO_REPEAT_WITHOUT_CRASH,
        scenario=replace(HANDLERS_RECEIVE_ONLY, bounds=Bounds(pauses=1)),
        change={"pump": HandlesGivenBack},
    ),
    Mutant(
        name="a batch is committed although its savepoint is lost",
        promise=Promise.EXACTLY_ONCE,
        scenario=replace(HANDLERS, bounds=Bounds(losses=1)),
        change={"step": IgnoresLostTransaction},
    ),
    Mutant(
        name="a repeated handler sends with a new message id",
        promise=Promise.SAME_ID,
        scenario=replace(HANDLERS_RECEIVE_ONLY, bounds=ONE_CRASH),
        change={"step": NewIdPerHandling},
    ),
    Mutant(
        name="two processes store one occurrence under two ids",
        promise=Promise.NO_REPEAT_WITHOUT_CRASH,
        scenario=RecurringScenario(),
        change={"has_lock": False, "own_ids": True},
    ),
    Mutant(
        name="a schedule is advanced before its run is stored",
        promise=Promise.NEVER_LOST,
        scenario=RecurringScenario(bounds=ONE_CRASH),
        change={"one_transaction": False},
    ),
    Mutant(
        name="after a pause the id of the cancelled run is used again",
        promise=Promise.NEVER_LOST,
        scenario=RecurringScenario(paused=True),
        change={"forgets_cancels": True},
    ),
)
