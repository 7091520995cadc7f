"""Pauses of dispatch: of a destination, or of all destinations of an endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from timeoutmgr.contracts.audit import ChangedBy
from timeoutmgr.contracts.reports import Count
from timeoutmgr.contracts.stores import TimeoutStore
from timeoutmgr.message.instants import Micros


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A pause in force: of *destination*, or of all destinations if that is None.

    It ends at *until* by itself, if that is given. *parked* timeouts came due meanwhile and wait
    for its end, in the order of timeouts at *place*. A pause that *is_ending* holds no further
    timeout.
    """

    destination: str | None
    since: Micros
    until: Micros | None
    actor: str
    reason: str | None
    parked: Count
    place: Micros
    is_ending: bool = False


@dataclass(frozen=True, slots=True)
class Unparked:
    """A step of a resume: *returned* timeouts are due *at* an instant; *is_last* without others."""

    returned: int
    at: Micros
    is_last: bool


@runtime_checkable
class PausesDispatch(TimeoutStore, Protocol):
    """A store that can hold back due timeouts; no store needs to.

    From the commit of a pause on, no lock for dispatch returns a timeout that it holds. Such a
    timeout is parked when it is locked: it stands where no claim reads it until the pause ends. Its
    id, its due time and its attempts stay. A cancel or a reschedule finds it as any other timeout.
    """

    def pause(self, destination: str | None, until: Micros | None, by: ChangedBy) -> bool:
        """Pause *destination* (None: all) until an instant; return whether it was not paused.

        A pause of it that is in force gets the new end.
        """
        ...

    def resume(self, destination: str | None, by: ChangedBy) -> bool:
        """Begin to end the pause of *destination*; return whether there was one.

        ``unpark`` ends it. After a crash in between another process does.
        """
        ...

    def unpark(self) -> Unparked:
        """Return a bounded number of parked timeouts of pauses that are ending to their place."""
        ...

    def pauses(self) -> Sequence[Pause]:
        """Return the pauses in force."""
        ...
