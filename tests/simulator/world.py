"""The state that all actors of a run share, and the death of a process."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from timeoutmgr.message.instants import Micros

from .broker import Broker
from .database import Database
from .faults import Faults
from .ledger import Ledger
from .process import Process
from .timeline import SECOND, Timeline


class Event(NamedTuple):
    """A line of the event log."""

    at: Micros
    who: str
    what: str
    of: tuple[str, ...]


class World:
    """Disks, clock, chance, faults and books of one run."""

    def __init__(self, chance: Random, faults: Faults, database: Database) -> None:
        self.random = chance
        self.faults = faults
        self.timeline = Timeline()
        self.database = database
        self.ledger = Ledger()
        self.broker = Broker(self)
        self.events: list[Event] = []
        self.crashes = 0
        self.reports = 0
        self.on_death: Callable[[Process], None] = lambda process: None

    def note(self, who: str, what: str, *of: str) -> None:
        """Write into the event log."""
        self.ledger.step += 1
        self.events.append(Event(self.timeline.now, who, what, of))

    def tells(self, who: str, breaker: str) -> None:
        """Call the critical error hooks."""
        self.note(who, f"tells of an outage: {breaker}")
        self.reports += 1

    def kill(self, process: Process) -> None:
        """Let *process* die: its deliveries go back, its transactions roll back, its locks end."""
        if process.dead:
            return
        self.crashes += 1
        self.note(process.name, "is killed")
        process.dead = True
        process.lock_ends = self.timeline.now
        if self.faults.fires("process.lingers"):
            process.lock_ends += int((5 + 150 * self.random.random()) * SECOND)
        for row in self.database.rows.values():
            if row.holder is not None and row.holder.process is process:
                row.holder = None
        self.broker.give_back_all_of(process)
        self.on_death(process)
