"""What was done to whom, and when: every repeat must be tied to one of these."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from timeoutmgr.instants import Micros
from timeoutmgr.testing.chaos.plan import FaultKind

SERVERS: Final = ""
"""Whom a restart of database or broker befalls: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One fault as it was; instants of this host's clock.

    *process* names one life of a process, such as ``worker-1#7``; SERVERS means all of them.
    *connections* is how many were cut.
    """

    kind: FaultKind
    process: str
    begin: Micros
    end: Micros
    connections: int = 0

    def concerns(self, *processes: str) -> bool:
        """Return whether it befell one of *processes*."""
        return self.process == SERVERS or self.process in processes

    def overlaps(self, begin: Micros, end: Micros) -> bool:
        """Return whether it was between *begin* and *end*, or a part of it."""
        return self.begin <= end and self.end >= begin


def counted(incidents: Iterable[Incident]) -> Counter[FaultKind]:
    """Return how many there were of each kind."""
    return Counter(incident.kind for incident in incidents)
