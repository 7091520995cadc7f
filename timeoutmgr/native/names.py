"""Names of the delay levels on the broker: our own, and the names of other programs.

Programs that share names share the levels. Then every argument must be equal: otherwise the broker
refuses the declaration of the second program. So each set also has its arguments.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Final

from timeoutmgr.contracts import Clock
from timeoutmgr.errors import ConfigurationError, InvalidMessage
from timeoutmgr.message import headers
from timeoutmgr.message.instants import Micros, instant_of, to_wire
from timeoutmgr.message.message import NO_NUMBERS, Message, Outgoing, with_headers
from timeoutmgr.message.routes import DelayRoute
from timeoutmgr.native.levels import (
    LEVELS,
    MAX_SECONDS,
    check_destination,
    parts_until,
    routing_key,
    start_level,
)
from timeoutmgr.transport.settings import QueueType

UNROUTABLE: Final = "timeoutmgr.v1.unroutable"
"""Name of exchange and queue of unroutable messages, for every set of names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameSet:
    """A set of names: *level* is the format for exchange and queue, *delivery* the last exchange.

    *arguments* are the arguments of a level's queue, beside its time to live and its next exchange;
    the first queue type is the default. *alternate* tells whether the exchanges are declared with
    the alternate exchange; for other programs' names a policy of the broker must set it. *fraction*
    is the format of exchanges and queues that keep a message for part of a second before its level,
    from 1 to *parts* - 1 parts; *entrance* is the exchange after them, which routes to each level.
    Other programs' names have neither. *margin*, in milliseconds, is added to each level's time to
    live: RabbitMQ truncates the time of arrival to whole milliseconds, so that each level may be up
    to a millisecond early. *is_nservicebus* means that NServiceBus' tools read the messages in
    these levels, and that its endpoints are peers.
    """

    name: str
    level: str
    delivery: str
    arguments: Mapping[QueueType, Mapping[str, Any]]
    alternate: bool = False
    margin: int = 0
    fraction: str = ""
    parts: int = 1
    entrance: str = ""
    is_nservicebus: bool = False

    def level_name(self, level: int) -> str:
        """Return the name of the exchange and of the queue of *level*, from 0."""
        if not 0 <= level < LEVELS:
            raise ValueError(f"levels are 0 to {LEVELS - 1}, got {level}")
        return self.level.format(level)

    def fraction_name(self, part: int) -> str:
        """Return the name of the exchange and of the queue that hold a message for *part* parts."""
        if not 0 < part < self.parts:
            raise ValueError(f"parts of a second are 1 to {self.parts - 1}, got {part}")
        return self.fraction.format(part, self.parts)

    @property
    def level_names(self) -> list[str]:
        """The names of all levels, starting with level 0."""
        return [self.level_name(level) for level in range(LEVELS)]

    @property
    def queue_types(self) -> list[QueueType]:
        """The queue types that these names can have, the usual one first."""
        return list(self.arguments)

    def next_exchange(self, level: int) -> str:
        """Return the exchange that follows *level*."""
        return self.delivery if level == 0 else self.level_name(level - 1)

    def prefixed(self, prefix: str) -> "NameSet":
        """Return these names in kombu's form with a *prefix*, which may be empty."""
        if not prefix:
            return self
        if self.name != "celery":
            raise ConfigurationError(f"only celery's names take a prefix, not {self.name!r}")
        as_format = prefix.replace("{", "{{").replace("}", "}}")
        level, delivery = f"{as_format}_{self.level}", f"{prefix}_{self.delivery}"
        return replace(self, level=level, delivery=delivery)


# At-least-once dead-lettering needs both other arguments; a level never drops a message.
_QUORUM: Final = MappingProxyType(
    {
        "x-queue-type": "quorum",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
)
_CLASSIC: Final = MappingProxyType({"x-queue-type": "classic", "x-overflow": "reject-publish"})

OURS: Final = NameSet(
    name="timeoutmgr",
    level="timeoutmgr.v1.delay-level-{:02}",
    delivery="timeoutmgr.v1.delay-delivery",
    arguments={"quorum": _QUORUM, "classic": _CLASSIC},
    alternate=True,
    margin=1,
    fraction="timeoutmgr.v1.delay-part-{}-of-{}",
    parts=8,
    entrance="timeoutmgr.v1.delay-entrance",
)
NSERVICEBUS_V2: Final = NameSet(
    name="nservicebus-v2",
    level="nsb.v2.delay-level-{:02}",
    delivery="nsb.v2.delay-delivery",
    arguments={"quorum": _QUORUM},
    is_nservicebus=True,
)
NSERVICEBUS_V1: Final = NameSet(
    name="nservicebus-v1",
    level="nsb.delay-level-{:02}",
    delivery="nsb.delay-delivery",
    arguments={"classic": {"x-queue-mode": "lazy"}},
    is_nservicebus=True,
)
CELERY: Final = NameSet(
    name="celery",
    level="celery_delayed_{}",
    delivery="celery_delayed_delivery",
    arguments={"quorum": _QUORUM, "classic": _CLASSIC},
)

NAME_SETS: Final = MappingProxyType(
    {names.name: names for names in (OURS, NSERVICEBUS_V2, NSERVICEBUS_V1, CELERY)}
)


def name_set(name: str) -> NameSet:
    """Return the set called *name*; an unknown name raises ConfigurationError with the nearest."""
    if (found := NAME_SETS.get(name)) is None:
        near = get_close_matches(name, NAME_SETS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(NAME_SETS)}"
        raise ConfigurationError(f"no names of delay levels are called {name!r}; {hint}")
    return found


# --- routes of delayed messages: into the levels, or to a store -------------------------------

_SECOND: Final = 1_000_000
_LONGEST_NUMBER: Final = 2**31 - 1
"""Maximum seconds, 68 years, in the 32 bits with which NServiceBus reads a delay."""
_NEARLY_A_SECOND: Final = 990_000
"""Microseconds that count as a second: composing shortens a delay of one second a little."""


@dataclass(frozen=True, slots=True)
class ThroughLevels:
    """The route through the levels called *names* to *destination*, to arrive at *due*.

    The delay counts from the moment of writing: a message that was composed early is not late.
    """

    names: NameSet
    destination: str
    due: Micros
    clock: Clock

    def address(self) -> tuple[str, str]:
        """Return the exchange of the first level or part, and the routing key."""
        names = self.names
        parts = parts_until(self.due, self.clock.now(), names.parts)
        seconds, part = divmod(parts, names.parts)
        first = names.fraction_name(part) if part else names.level_name(start_level(seconds))
        return first, routing_key(seconds, self.destination)

    def numbers(self, message: Message) -> Mapping[str, int]:
        """Return the header with the whole delay for NServiceBus' tools."""
        if not self.names.is_nservicebus:
            return NO_NUMBERS
        delay = delay_in_seconds(message, self.due)
        return NO_NUMBERS if delay is None else {headers.DELAY_IN_SECONDS: delay}


def delay_in_seconds(message: Message, due: Micros) -> int | None:
    """Return the seconds from TimeSent of *message* until *due*, rounded up, so never early.

    None if *message* has no readable TimeSent, or if the result is too large for NServiceBus.
    """
    sent = instant_of(message.headers, headers.TIME_SENT, None)
    if sent is None:
        return None
    seconds = -((sent - due) // _SECOND)
    return seconds if abs(seconds) <= _LONGEST_NUMBER else None


def to_levels(outgoing: Outgoing, due: Micros, names: NameSet, clock: Clock) -> Outgoing:
    """Return *outgoing* routed through the levels, with its absolute due instant in a header.

    Raises DelayTooLong, and InvalidMessage for a destination that cannot be bound, or a message
    with a route: the levels lead only to queues.
    """
    if headers.ROUTE in outgoing.message.headers:
        raise InvalidMessage(
            f"message {outgoing.message.id!r:.80} of another program is sent by a route, and delay "
            "levels lead to queues alone; keep it in a store (fallback_to_store=True)"
        )
    check_destination(outgoing.destination)
    parts_until(due, clock.now(), names.parts)
    marked = {**outgoing.message.headers, headers.DELIVER_AT: to_wire(due)}
    if names.is_nservicebus:
        marked.setdefault(headers.TIME_SENT, to_wire(clock.now()))
    return Outgoing(
        outgoing.destination,
        with_headers(outgoing.message, marked),
        ThroughLevels(names, outgoing.destination, due, clock),
    )


@dataclass(frozen=True, slots=True)
class NativeRoute:
    """Route of delayed messages into the levels, even beside a timeout manager.

    If it *falls_back*, a delay that the levels cannot keep exactly (less than a second, or beyond
    the last level) takes the route *stored*.
    """

    names: NameSet
    clock: Clock
    falls_back: bool
    stored: DelayRoute | None

    def __call__(self, outgoing: Outgoing, due: Micros) -> Outgoing:
        """Return *outgoing* with its route; raise DelayTooLong if nothing can delay it so long."""
        if self.falls_back and self.stored is not None and self._is_for_a_store(outgoing, due):
            return self.stored(outgoing, due)
        return to_levels(outgoing, due, self.names, self.clock)

    def _is_for_a_store(self, outgoing: Outgoing, due: Micros) -> bool:
        if headers.ROUTE in outgoing.message.headers:
            return True
        wait = due - self.clock.now()
        return 0 < wait < _NEARLY_A_SECOND or wait > MAX_SECONDS * _SECOND
