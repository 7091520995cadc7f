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

    It ends at *until* by itself, if that is given. *parked* timeouts came due during the pause and
    wait for its end; in the order of timeouts they stand at *place*. A pause that *is_ending* holds
    back no further timeout.
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
    """A step of a resume: *returned* timeouts are due *at* an instant; *is_last* if none remain."""

    returned: int
    at: Micros
    is_last: bool


@runtime_checkable
class PausesDispatch(TimeoutStore, Protocol):
    """A store that can hold back due timeouts; no store needs to.

    After the commit of a pause, ``lock_for_dispatch`` returns no timeout that the pause holds back.
    It parks such a timeout instead: it moves the timeout to a place that no claim reads until the
    pause ends. The id, the due time and the attempts stay. A cancel or a reschedule finds a parked
    timeout like any other.
    """

    def pause(self, destination: str | None, until: Micros | None, by: ChangedBy) -> bool:
        """Pause *destination* (None: all) until an instant; return whether that began a pause.

        If it is paused already, that pause gets the new end.
        """
        ...

    def resume(self, destination: str | None, by: ChangedBy) -> bool:
        """Begin to end the pause of *destination*; return whether it was paused.

        ``unpark`` completes the end. After a crash in between, another process completes it.
        """
        ...

    def unpark(self) -> Unparked:
        """Return to their place a bounded number of parked timeouts whose pause is ending."""
        ...

    def pauses(self) -> Sequence[Pause]:
        """Return the pauses in force."""
        ...
