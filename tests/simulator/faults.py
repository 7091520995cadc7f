"""The faults, in one table; the seed chooses faults and instants.

In two phases: a site is on or off for a whole run, and if it is on, it fires with its own small
chance. So some runs see a single fault, again and again, and other runs see all of them together.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Final, NamedTuple


class Site(NamedTuple):
    """*chance* of firing each time a run comes by, and a sentence about the fault."""

    chance: float
    what: str


ON: Final = 0.5
"""The share of runs that have a site on."""

SITES: Final[dict[str, Site]] = {
    # --- the storage
    "store.undone": Site(0.02, "A commit fails and is undone."),
    "store.unknown": Site(0.02, "A commit is made, its answer is lost."),
    "store.slow": Site(0.05, "A statement takes seconds."),
    "store.cut": Site(0.05, "The database drops a dispatcher's connection, and its row locks."),
    "store.outage": Site(0.25, "The storage is away for seconds to minutes."),
    # --- the broker
    "broker.lost": Site(0.004, "A message is lost on its way to the broker; no confirm."),
    "broker.unconfirmed": Site(0.004, "A message is accepted, its confirm is lost."),
    "broker.lands_late": Site(0.004, "No confirm comes, and the message arrives much later."),
    "broker.refused": Site(0.01, "The broker says no to a message."),
    "broker.away": Site(0.01, "A connection breaks before anything is sent."),
    "broker.cut": Site(0.1, "A consumer's channel breaks; what it holds goes to another."),
    "broker.delayed": Site(0.02, "A message takes seconds to show up in its queue."),
    "broker.reordered": Site(0.05, "A message overtakes others in its queue."),
    "broker.outage": Site(0.25, "The broker is away for seconds to minutes."),
    # --- processes and hosts
    "process.crash": Site(0.006, "A process is killed at a port call, before or after its effect."),
    "process.pause": Site(0.008, "A thread stands still for longer than a claim holds."),
    "process.lingers": Site(
        0.5, "A dead owner's session lock is seen to end only a minute or two later."
    ),
    "clock.step": Site(0.3, "A host's clock is set forward or back; the database's is not."),
    # --- users
    "queue.missing": Site(0.25, "A destination is deleted, and perhaps made again."),
    "sender.twice": Site(0.05, "A sender sends a message twice, under one id."),
}


class Faults:
    """The faults of one run."""

    def __init__(self, chance: Random, *, only: frozenset[str] | None = None) -> None:
        self._random = chance.random
        drawn = {name: chance.random() < ON for name in SITES}
        self._on = {
            name: site.chance
            for name, site in SITES.items()
            if (drawn[name] if only is None else name in only)
        }
        self.fired: Counter[str] = Counter()

    def fires(self, name: str) -> bool:
        """Come by the site *name*; return whether it fires."""
        chance = self._on.get(name)
        if chance is None or self._random() >= chance:
            return False
        self.fired[name] += 1
        return True

    def heal(self) -> None:
        """Let nothing go wrong from now on."""
        self._on.clear()
