"""How a delayed message goes into the levels, and which go to a store all the same."""

from dataclasses import dataclass
from typing import Final

from timeoutmgr.contracts import Clock
from timeoutmgr.message import headers
from timeoutmgr.message.instants import Micros, to_wire
from timeoutmgr.message.message import Outgoing, with_headers
from timeoutmgr.message.routes import DelayRoute
from timeoutmgr.native.levels import (
    MAX_SECONDS,
    check_destination,
    parts_until,
    routing_key,
    start_level,
)
from timeoutmgr.native.names import NameSet

_SECOND: Final = 1_000_000
_NEARLY_A_SECOND: Final = 990_000
"""Composing takes its moment: of a delay of one second a little less is left at its end."""


@dataclass(frozen=True, slots=True)
class ThroughLevels:
    """The way through the levels called *names* to *destination*, arriving at *due*.

    The delay counts from when the message is written: a message that was composed earlier is not
    later.
    """

    names: NameSet
    destination: str
    due: Micros
    clock: Clock

    def address(self) -> tuple[str, str]:
        """Return its key and, before it, the exchange of the level or part that holds it first."""
        names = self.names
        parts = parts_until(self.due, self.clock.now(), names.parts)
        seconds, part = divmod(parts, names.parts)
        first = names.fraction_name(part) if part else names.level_name(start_level(seconds))
        return first, routing_key(seconds, self.destination)


def to_levels(outgoing: Outgoing, due: Micros, names: NameSet, clock: Clock) -> Outgoing:
    """Return *outgoing* on its way through the levels, its absolute due instant in a header.

    Raises DelayTooLong, and InvalidMessage for a destination that cannot be bound.
    """
    check_destination(outgoing.destination)
    parts_until(due, clock.now(), names.parts)
    marked = {**outgoing.message.headers, headers.DELIVER_AT: to_wire(due)}
    return Outgoing(
        outgoing.destination,
        with_headers(outgoing.message, marked),
        ThroughLevels(names, outgoing.destination, due, clock),
    )


@dataclass(frozen=True, slots=True)
class NativeRoute:
    """The way of delayed messages: into the levels, even beside a timeout manager.

    Where it *falls_back*, a delay that the levels cannot keep exactly (less than a second, or more
    than the last of them) takes the way *stored*.
    """

    names: NameSet
    clock: Clock
    falls_back: bool
    stored: DelayRoute | None

    def __call__(self, outgoing: Outgoing, due: Micros) -> Outgoing:
        """Return *outgoing* on its way; raises DelayTooLong where nothing can keep it as long."""
        if self.falls_back and self.stored is not None and self._is_for_a_store(due):
            return self.stored(outgoing, due)
        return to_levels(outgoing, due, self.names, self.clock)

    def _is_for_a_store(self, due: Micros) -> bool:
        wait = due - self.clock.now()
        return 0 < wait < _NEARLY_A_SECOND or wait > MAX_SECONDS * _SECOND
