"""Incidents: injected faults with process and time; every repeat needs an incident."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from chaos.plan import FaultKind
from timeoutmgr.message.instants import Micros

SERVERS: Final = ""
"""The process of an incident that concerns all processes: a restart of database or broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """A fault that happened; instants of this host's clock.

    *process* names an incarnation of a process, such as ``worker-1#7``; SERVERS means all of them.
    *connections* is the number of cut connections.
    """

    kind: FaultKind
    process: str
    begin: Micros
    end: Micros
    connections: int = 0

    def concerns(self, *processes: str) -> bool:
        """Return whether the fault concerned any of *processes*."""
        return self.process == SERVERS or self.process in processes

    def overlaps(self, begin: Micros, end: Micros) -> bool:
        """Return whether the incident overlaps the time from *begin* to *end*."""
        return self.begin <= end and self.end >= begin


def counted(incidents: Iterable[Incident]) -> Counter[FaultKind]:
    """Return the number of incidents of each kind."""
    return Counter(incident.kind for incident in incidents)
