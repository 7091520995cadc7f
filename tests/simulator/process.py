"""A process that can be killed, and the port calls of the actors in it."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from .faults import Faults
from .timeline import SECOND, HostClock, Killed, Timeline

if TYPE_CHECKING:
    from .ledger import LockedChunk
    from .world import World


class Process:
    """A process of a node: a restart is another process."""

    def __init__(self, name: str, clock: HostClock) -> None:
        self.name = name
        self.clock = clock
        self.dead = False
        self.lock_ends = 0

    def is_seen_dead(self, now: int) -> bool:
        """Return whether other processes see it as dead; its session lock may linger."""
        return self.dead and now >= self.lock_ends


class Calls:
    """The events at each port call of an actor: time passes, other actors act, the actor dies."""

    def __init__(self, world: World, process: Process, name: str) -> None:
        self.process = process
        self.name = name
        self.chunk: LockedChunk | None = None
        """The timeouts that this actor has locked for dispatch."""
        self.received: int | None = None
        """How many messages its turn has received; None before."""
        self._world = world
        self._timeline: Timeline = world.timeline
        self._faults: Faults = world.faults
        self._random: Random = world.random

    def before(self) -> None:
        """Begin a port call: nothing of it has an effect yet."""
        if self.process.dead:
            raise Killed
        chance = self._random.random()
        # Mostly a network's answer; now and then long enough for another actor to overtake.
        took = int(500 + 4_000 * chance) if chance < 0.8 else int(chance**20 * SECOND)
        if self._faults.fires("process.pause"):
            took = int((20 + 80 * self._random.random()) * SECOND)
            self.note("stands still", f"{took / SECOND:.0f} s")
        self._timeline.pass_time(took)
        self._crash()

    def after(self) -> None:
        """End a port call: it has had its effect, its caller does not know yet."""
        if self._random.random() < 0.2:
            self._timeline.pass_time(int(self._random.random() * 200_000))
        self._crash()

    def slow(self, site: str) -> None:
        """Let seconds pass where *site* fires."""
        if self._faults.fires(site):
            self._timeline.pass_time(int((0.2 + 8 * self._random.random()) * SECOND))
            self._crash()

    def note(self, what: str, *of: str) -> None:
        """Write into the run's event log."""
        self._world.note(f"{self.process.name} {self.name}", what, *of)

    def _crash(self) -> None:
        if self.process.dead:
            raise Killed
        if self._faults.fires("process.crash"):
            self._world.kill(self.process)
            raise Killed
