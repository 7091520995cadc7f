"""The ledger: the accepted messages, their fates, and a verdict on every promise."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tests.model.promises import Promise
from timeoutmgr.contracts import CancelResult, ChangeResult, Key
from timeoutmgr.message import headers
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Message

from .process import Process


@dataclass(slots=True, eq=False)
class Hand:
    """Timeouts in the hands of one dispatcher, from the take to the close.

    *until* is the end of the claim where nothing but the claim protects them. *interrupted* is a
    crash in the sense of the promise: the process killed, its connection with the storage lost,
    a commit unanswered, a pause longer than the claim. *unknown* are timeouts without a confirm.
    """

    process: Process
    keys: Collection[Key]
    began: int
    until: Micros | None = None
    interrupted: bool = False
    cut_off: bool = False
    unknown: set[str] = field(default_factory=set)
    ended: int | None = None

    def met_a_crash(self, message_id: str, now: Micros) -> bool:
        """Return whether *message_id*, which it may have sent, can be sent again."""
        if self.interrupted or message_id in self.unknown or self.process.dead:
            return True
        return self.ended is None and self.until is not None and now >= self.until


@dataclass(slots=True, eq=False)
class Life:
    """One timeout from its sender's view. Counters are the ledger's *step* when it was."""

    message_id: str
    timeout_id: str
    destination: str
    body: bytes
    due: Micros
    """It must not be delivered before."""
    due_before: Micros = 0
    """A dispatcher with a lock from before *due* changed must not deliver it before this."""
    changed: int = 0
    saga: str = ""
    created: Micros = 0
    accepted: bool = False
    outcomes: list[Hand] = field(default_factory=list)
    delivered: int = 0
    """First."""
    moved: int = 0
    fenced: int = -1
    """Found inside an interval that a dispatcher has taken; it may be of another's keys."""
    last_hand: Hand | None = None
    may_fail: bool = False
    may_vanish: bool = False
    never: str = ""
    """Which answer said that it will not be delivered."""
    not_taken_after: int | None = None


class Ledger:
    """Judges each event when it happens; the first broken promise is kept in *broken*."""

    def __init__(self) -> None:
        self.lives: dict[str, Life] = {}
        self.by_timeout: dict[str, Life] = {}
        self.broken: tuple[Promise, str, str] | None = None
        self.step = 0
        self.repeats = 0

    def sends(self, life: Life) -> None:
        self.lives[life.message_id] = self.by_timeout[life.timeout_id] = life

    def moves(self, timeout_id: str) -> None:
        """Note that a change of its due time is committed."""
        self.by_timeout[timeout_id].moved = self.step

    def is_fenced(self, timeout_id: str) -> None:
        """Note that a change of it was refused for a claim that is in force, and taken."""
        self.by_timeout[timeout_id].fenced = self.step

    def takes(self, hand: Hand) -> None:
        """Note that the timeouts of *hand* are to be dispatched."""
        for key in hand.keys:
            self.by_timeout[key.id].last_hand = hand

    def ends(self, hand: Hand, now: Micros) -> None:
        """Note that *hand* does no more."""
        hand.interrupted = hand.met_a_crash("", now)
        hand.ended = self.step

    def delivers(self, message: Message, hand: Hand | None, queue: str, now: Micros) -> None:
        """Judge a message that its destination's queue has taken."""
        life = self.lives.get(message.id)
        if life is None:
            self._breaks(Promise.SAME_ID, f"{message.id!r} is delivered, but was never sent", "")
            return
        related = message.headers.get(headers.RELATED_TO_TIMEOUT)
        if related != life.timeout_id or message.body != life.body or queue != life.destination:
            self._breaks(Promise.SAME_ID, f"{message.id} is not what was sent", message.id)
        if hand is None:
            self._breaks(Promise.SAME_ID, f"{message.id} came past the dispatcher", message.id)
            return
        due = life.due if hand.began >= life.changed else min(life.due, life.due_before)
        if now < due:
            self._breaks(Promise.NEVER_EARLY, f"{due - now} us before it is due", message.id)
        if life.never:
            self._breaks(Promise.CANCEL_IS_TRUE, f"sent after {life.never!r}", message.id)
        if life.not_taken_after is not None and hand.began > life.not_taken_after:
            self._breaks(Promise.CANCEL_IS_TRUE, "taken after 'maybe sent' said no", message.id)
        life.delivered = life.delivered or self.step
        self._comes_to_an_end(life, hand, now)

    def fails(self, message: Message, hand: Hand | None, now: Micros) -> None:
        """Judge a copy that the error queue has taken."""
        life = self.lives.get(message.id)
        if life is None or hand is None or not life.may_fail:
            why = message.headers.get(headers.EXCEPTION_MESSAGE, "")
            self._breaks(Promise.NEVER_LOST, f"error queue without need: {why}", message.id)
            return
        self._comes_to_an_end(life, hand, now)

    def _comes_to_an_end(self, life: Life, hand: Hand, now: Micros) -> None:
        life.outcomes.append(hand)
        self.repeats += len(life.outcomes) > 1
        sound = sum(not one.met_a_crash(life.message_id, now) for one in life.outcomes)
        if sound > 1 or len(set(map(id, life.outcomes))) < len(life.outcomes):
            times = len(life.outcomes)
            self._breaks(
                Promise.NO_REPEAT_WITHOUT_CRASH,
                f"sent {times} times, {sound} of them by who met no crash",
                life.message_id,
            )

    def cancels(self, life: Life, answer: CancelResult | None, asked: int) -> None:
        """Judge the answer of a cancel that began at step *asked*; None: no answer came."""
        if answer is CancelResult.TOO_LATE:
            self._is_too_late(life, asked)
            return
        life.may_vanish = True
        if answer in (CancelResult.CANCELLED, CancelResult.WILL_BE_CANCELLED):
            if life.delivered:
                self._breaks(Promise.CANCEL_IS_TRUE, f"sent before {answer!r}", life.message_id)
            life.never = answer
        elif answer is CancelResult.MAYBE_SENT and life.not_taken_after is None:
            life.not_taken_after = self.step

    def changes(
        self, life: Life, due: Micros, answer: ChangeResult | None, asked: int, before: Micros
    ) -> None:
        """Judge the answer of a reschedule; *before* is the due time until then."""
        if answer is ChangeResult.CHANGED and 0 < life.delivered < life.moved:
            self._breaks(Promise.CHANGE_IS_TRUE, "sent, and said to be changed", life.message_id)
        if answer is ChangeResult.TOO_LATE:
            self._is_too_late(life, asked)
        if answer in (ChangeResult.CHANGED, ChangeResult.MAYBE_SENT):
            earlier = life.due_before if life.changed else before
            life.due, life.due_before = due, min(due, before, earlier)
            life.changed = self.step if answer is ChangeResult.MAYBE_SENT else 0
        elif answer is not None:
            life.due = before
        if answer is None:
            life.due = min(due, before)

    def _is_too_late(self, life: Life, asked: int) -> None:
        hand = life.last_hand
        in_hand = hand is not None and (hand.ended is None or hand.ended >= asked)
        if not (life.outcomes or in_hand or life.fenced >= asked):
            self._breaks(Promise.CANCEL_IS_TRUE, "too late, but it was never sent", life.message_id)

    def closes(self, pending: Mapping[str, str]) -> None:
        """Judge the quiet end; *pending* names the open messages and their places."""
        for name, where in pending.items():
            self._breaks(Promise.NEVER_LOST, f"still {where} at the quiet end", name)
        for life in self.lives.values():
            if life.accepted and not life.outcomes and not life.may_vanish:
                self._breaks(Promise.NEVER_LOST, "accepted, and never arrives", life.message_id)

    def surprise(self, what: str) -> None:
        """Record an event that no simulated fault explains."""
        self._breaks(Promise.NOBODY_WAITS_FOR_EVER, what, "")

    def _breaks(self, promise: Promise, why: str, message_id: str) -> None:
        if self.broken is None:
            self.broken = (promise, why, message_id)
