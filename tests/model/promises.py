"""The promises, which hold in every state and at every fair end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from timeoutmgr.contracts import CancelResult, ChangeResult, TimeoutState
from timeoutmgr.message import headers
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Message

from .world import World


class Promise(StrEnum):
    """A promise of the README."""

    NEVER_LOST = "never lost"
    SAME_ID = "always the same message id"
    CANCEL_IS_TRUE = "a cancel's answer is true"
    CHANGE_IS_TRUE = "a reschedule's answer is true"
    NO_REPEAT_WITHOUT_CRASH = "no repeat without a crash"
    TOMBSTONES_STAY = "tombstones stay"
    NEVER_EARLY = "never early"
    EXACTLY_ONCE = "exactly once in one transaction"
    FAILS_ALONE = "a failed message leaves an error copy and no effect"
    CLEARS_IN_ORDER = "a clear reaches what stands ahead of it"
    NOBODY_WAITS_FOR_EVER = "nobody waits for ever"


class PromiseBroken(AssertionError):
    """A promise that does not hold, and the way there."""

    def __init__(self, promise: Promise, why: str, steps: Sequence[str] = ()) -> None:
        way = "\n".join(f"  {n:2}. {step}" for n, step in enumerate(steps, 1))
        super().__init__(f"{promise.value}: {why}\n{way}")
        self.promise = promise
        self.why = why
        self.steps = steps

    def along(self, steps: Sequence[str]) -> PromiseBroken:
        return PromiseBroken(self.promise, self.why, (*steps, *self.steps))


_CANCELLED = frozenset({CancelResult.CANCELLED.value, CancelResult.WILL_BE_CANCELLED.value})
CANCEL, CHANGE = "cancel", "reschedule"


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """The promises for some accepted messages.

    *dues* are their due times, *ids* the ids of their timeouts; *changed_to* is the due time after
    a reschedule. *failing* says that their destination does not exist; *cleared* stand ahead of a
    clear of their saga.
    """

    dues: Mapping[str, Micros]
    ids: Mapping[str, str]
    changed_to: Micros
    failing: bool = False
    cleared: frozenset[str] = frozenset()

    def delivered(self, world: World, message: Message) -> World:
        """Record a delivery, if it may be made now."""
        name = message.id
        if name not in self.dues:
            raise PromiseBroken(Promise.SAME_ID, f"{name!r} is delivered, but was never sent")
        if message.headers.get(headers.RELATED_TO_TIMEOUT) != self.ids[name]:
            raise PromiseBroken(Promise.SAME_ID, f"{name} names another timeout")
        if world.now < self.dues[name]:
            raise PromiseBroken(Promise.NEVER_EARLY, f"{name} is delivered before it is due")
        if name in self.cleared and world.cleared:
            raise PromiseBroken(Promise.CLEARS_IN_ORDER, f"{name} is cleared, and is delivered")
        self._is_allowed(world, name)
        if world.times_delivered(name) > world.causes:
            raise PromiseBroken(
                Promise.NO_REPEAT_WITHOUT_CRASH,
                f"{name} is delivered {world.times_delivered(name) + 1} times after "
                f"{world.causes} interruptions",
            )
        times = world.delivered.get((name, world.now), 0)
        return world._replace(delivered=world.delivered.having((name, world.now), times + 1))

    def _is_allowed(self, world: World, name: str) -> None:
        unheld = world.lapses or world.cuts
        cancel = world.answers.get(f"{CANCEL} {name}")
        # A dispatcher that was paused past its claim, or lost its row lock, may still send:
        # the only limit of this promise.
        if cancel in _CANCELLED or (cancel == CancelResult.MAYBE_SENT and not unheld):
            raise PromiseBroken(
                Promise.CANCEL_IS_TRUE, f"{name} is delivered after a cancel answered {cancel}"
            )
        change = world.answers.get(f"{CHANGE} {name}")
        if world.now >= self.changed_to:
            return
        if change == ChangeResult.CHANGED or (change == ChangeResult.MAYBE_SENT and not unheld):
            raise PromiseBroken(
                Promise.NEVER_EARLY, f"{name} is sent before the due time that it was moved to"
            )

    def answered(self, world: World, what: str, name: str, answer: str) -> World:
        """Record a client's answer, if it is true."""
        promise = Promise.CANCEL_IS_TRUE if what == CANCEL else Promise.CHANGE_IS_TRUE
        times = world.times_delivered(name)
        after_cancel = f"{CANCEL} {name}" in world.answers or what == CANCEL
        if answer in _CANCELLED and what == CANCEL and times:
            raise PromiseBroken(promise, f"{name} was delivered, and a cancel answers {answer}")
        if what == CHANGE and answer == ChangeResult.CHANGED and times:
            raise PromiseBroken(promise, f"{name} was delivered, and is said to be changed")
        if what == CHANGE and answer == ChangeResult.UNKNOWN and not after_cancel:
            known = world.keys.get(self.ids[name])
            if known is not None and known.state is not TimeoutState.CANCELLED:
                raise PromiseBroken(promise, f"{name} is stored, and said to be unknown")
        if answer == CancelResult.TOO_LATE and not (
            times or name in world.failed or self._is_locked(world, name)
        ):
            raise PromiseBroken(promise, f"{name} was never sent, but a {what} comes too late")
        return world._replace(answers=world.answers.having(f"{what} {name}", answer))

    def _is_locked(self, world: World, name: str) -> bool:
        key = next((key for key in world.rows if key.id == self.ids[name]), None)
        if key is None:
            return False
        locked = (c for c in world.claims.values() if c.locked and not c.over and c.covers(key))
        return ("row", key) in world.locks or any(locked)

    def check(self, world: World) -> None:
        """Check one state."""
        for key in world.rows:
            known = world.keys.get(key.id)
            if known is None or known.state is not TimeoutState.PENDING or known.due != key.due:
                raise PromiseBroken(
                    Promise.TOMBSTONES_STAY, f"a row is stored whose key says {known}"
                )

    def check_end(self, world: World) -> None:
        """Check that at a fair end everything accepted came to its end."""
        if world.rows or world.held or any(world.queues.values()):
            raise PromiseBroken(Promise.NEVER_LOST, "at a fair end something is still on its way")
        for name in self.dues:
            known = world.keys.get(self.ids[name])
            cancelled = known is not None and known.state is TimeoutState.CANCELLED
            if cancelled and f"{CANCEL} {name}" in world.answers:
                continue
            if self.failing and name in world.failed:
                continue
            if cancelled and name in self.cleared:
                continue
            if not world.times_delivered(name):
                raise PromiseBroken(Promise.NEVER_LOST, f"{name} was accepted, and never arrives")
