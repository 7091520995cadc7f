"""The faults that no port call brings about: outages, clocks that are set, queues that go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from timeoutmgr.message.instants import Micros

from .broker import DESTINATIONS
from .node import Node
from .timeline import MINUTE, SECOND, Actor
from .world import World

LONGEST: Final = 12 * MINUTE
"""Outages that take turns could hold some actors up for hours, with nothing new to see."""


class Trouble:
    """Comes by the sites of such faults each ten seconds or so, until all heals."""

    def __init__(self, world: World, nodes: Sequence[Node]) -> None:
        self.actor = Actor("trouble", self._step)
        self._world = world
        self._nodes = nodes
        self._random: Random = world.random
        self._longest = world.timeline.now + LONGEST

    def heal(self) -> None:
        """End all outages; the clocks stay as they are set."""
        self._world.faults.heal()
        self.actor.removed = True
        self._storage(away=False)
        self._broker(away=False)
        self._world.broker.destinations.update(DESTINATIONS)

    def _step(self) -> Micros | None:
        if self._world.timeline.now > self._longest:
            self.heal()
            return None
        fires = self._world.faults.fires
        if not self._world.database.away and fires("store.outage"):
            self._storage(away=True)
            self._after_a_while(lambda: self._storage(away=False))
        if not self._world.broker.away and fires("broker.outage"):
            self._broker(away=True)
            self._after_a_while(lambda: self._broker(away=False))
        if fires("clock.step"):
            self._step_clock()
        if fires("queue.missing"):
            queue = DESTINATIONS[self._random.randrange(len(DESTINATIONS))]
            self._world.note(queue, "is deleted")
            self._world.broker.destinations.discard(queue)
            self._after_a_while(lambda: self._world.broker.destinations.add(queue))
        return int((5 + 10 * self._random.random()) * SECOND)

    def _after_a_while(self, action: Callable[[], None]) -> None:
        seconds = 2 + 250 * self._random.random() ** 2
        self._world.timeline.happens(int(seconds * SECOND), action)

    def _storage(self, *, away: bool) -> None:
        if away != self._world.database.away:
            self._world.note("storage", "goes away" if away else "is back")
        self._world.database.away = away

    def _broker(self, *, away: bool) -> None:
        if away != self._world.broker.away:
            self._world.note("broker", "goes away" if away else "is back")
        self._world.broker.away = away

    def _step_clock(self) -> None:
        node = self._nodes[self._random.randrange(len(self._nodes))]
        step = int((self._random.random() - 0.5) ** 3 * 1_000 * SECOND)
        self._world.note(node.name, f"has its clock set by {step} us")
        node.clock.offset += step
