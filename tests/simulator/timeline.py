"""Simulated time and the order of actors: one heap of turns in one thread.

A turn is a plain call, and other turns run *inside* it: whenever an actor's port call takes time,
all turns within that time are played first, and then the call goes on. So an actor is overtaken at
each of its port calls, as often and for as long as the seed has it; that turns end in the reverse
order of their beginning, where they overlap, is the price of having neither threads nor copies.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

from tests.support.clock import START
from timeoutmgr.message.instants import Micros

SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
_NEVER: Final = 1 << 62
_DEEPEST: Final = 12
"""Turns inside turns; beyond it time passes and all actors pause, as on a busy host."""


class Killed(BaseException):
    """The process of the acting actor is dead; nothing that it does from now on has an effect."""


class Actor:
    """An actor, which gets turns; *act* returns in how many microseconds it wants the next."""

    def __init__(self, name: str, act: Callable[[], Micros | None]) -> None:
        self.name = name
        self.act = act
        self.busy = False
        self.removed = False
        self.ticket = 0
        self.at: Micros | None = None


class Timeline:
    """The true time, which is the database's, and the turns to come."""

    def __init__(self) -> None:
        self.now: Micros = START
        self._turns: list[tuple[Micros, int, Actor]] = []
        self._happenings: list[tuple[Micros, int, Callable[[], None]]] = []
        self._count = 0
        self._depth = 0

    def at(self, when: Micros, actor: Actor) -> None:
        """Give *actor* its next turn then, instead of when it had it."""
        if actor.removed:
            return
        self._count += 1
        actor.ticket = self._count
        actor.at = when
        heapq.heappush(self._turns, (when, self._count, actor))

    def hurry(self, when: Micros, actor: Actor) -> None:
        """Give an idle *actor* its turn then, if it would come later."""
        if not actor.busy and (actor.at is None or when < actor.at):
            self.at(when, actor)

    def happens(self, micros: Micros, what: Callable[[], None]) -> None:
        """Let *what* happen in *micros*, also amid another turn; it takes no time itself."""
        self._count += 1
        heapq.heappush(self._happenings, (self.now + micros, self._count, what))

    def pass_time(self, micros: Micros) -> None:
        """Let *micros* pass, and play the turns of other actors within that time."""
        end = self.now + micros
        while self._next(end):
            pass
        self.now = max(self.now, end)

    def play_next(self) -> None:
        """Play the next turn, or an event that comes before it."""
        self._next(_NEVER)

    def _next(self, end: Micros) -> bool:
        acting = self._turns[0][0] if self._turns and self._depth < _DEEPEST else _NEVER
        happening = self._happenings[0][0] if self._happenings else _NEVER
        if min(acting, happening) > end:
            return False
        if happening <= acting:
            when, _, what = heapq.heappop(self._happenings)
            self.now = max(self.now, when)
            what()
        else:
            when, ticket, actor = heapq.heappop(self._turns)
            if ticket == actor.ticket and not actor.removed:
                self.now = max(self.now, when)
                self._play(actor)
        return True

    def _play(self, actor: Actor) -> None:
        actor.at, actor.busy = None, True
        self._depth += 1
        try:
            pause = actor.act()
        except Killed:
            pause = None
        finally:
            self._depth -= 1
            actor.busy = False
        if pause is not None:
            self.at(self.now + pause, actor)


class HostClock:
    """A host's clock: the wall clock is *offset* from the true time, the monotonic clock is not."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.offset: Micros = 0

    def now(self) -> Micros:
        return self._timeline.now + self.offset

    def monotonic(self) -> float:
        return self._timeline.now / SECOND
