"""The parts that features give an endpoint: immutable values, merged and checked here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from timeoutmgr.contracts import (
    DeadLetters,
    Persistence,
    SharedDatabase,
    TimeoutStore,
    Transport,
    TransportSession,
)
from timeoutmgr.contracts.stores import DirectStorage
from timeoutmgr.contracts.transports import Queue
from timeoutmgr.database.failures import tells_of_absence
from timeoutmgr.errors import ConfigurationError, SchemaMissing, TimeoutManagerError
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Expiry, Outgoing
from timeoutmgr.message.routes import DelayRoute
from timeoutmgr.transport.delivery_policy import PLAIN, DeliveryPolicies
from timeoutmgr.transport.pump import Consumption

if TYPE_CHECKING:
    from timeoutmgr.features.delayed_delivery import StoreStart

MissingDestinations: TypeAlias = Callable[[TransportSession, Sequence[str]], list[str]]
"""Returns the queues that do not exist; prepares the other queues for delayed messages."""


class Installed(Protocol):
    """A part of a feature that installers create, such as tables."""

    def install(self) -> None:
        """Create missing parts; idempotent and safe to run concurrently."""
        ...

    def check(self) -> None:
        """Raise SchemaMissing, with the command to run, if ``install`` is needed."""
        ...

    def ddl(self) -> str:
        """Return the statements that ``install`` would run if nothing were installed."""
        ...


class NativeDelays(Protocol):
    """Route of delayed messages through the broker's own delays."""

    @property
    def falls_back(self) -> bool:
        """Whether a message that the broker cannot delay goes to the timeout manager."""
        ...

    def __call__(self, outgoing: Outgoing, due: Micros) -> Outgoing:
        """Return *outgoing* with its route; raise InvalidMessage if it cannot be delayed."""
        ...


QUEUE_HOLDS_UP: Final = (
    "once the queue is full it refuses what the delay levels deliver, and after 32 refused "
    "messages a level delivers nothing to any endpoint on the broker"
)
"""Reason why native delays must not lead to a queue that refuses messages."""
QUEUE_HOLDS_UP_REMEDY: Final = (
    "Remove the length limit: a policy's by changing the policy, an argument's by a new queue "
    "(empty it, delete it and run `timeoutmgr install`). Or use TimeoutManager: there, refused "
    "messages delay no others."
)
"""Remedy for a queue that would hold up native delays."""


class Task(Protocol):
    """Work that runs beside the satellites while the endpoint runs."""

    def start(self) -> None:
        """Start; returns at once."""
        ...

    def stop(self) -> None:
        """Stop, and wait for the end; idempotent, and allowed before ``start``."""
        ...

    def watch(self) -> None:
        """Check the task; the endpoint's watchdog calls this about every second."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Satellite:
    """A receiver on a further queue of the endpoint.

    A satellite on an *optional_queue* drains the queue of a feature that an earlier configuration
    had: it consumes only if the queue exists at the start of the endpoint, and installers do not
    create it.
    """

    consumption: Consumption
    concurrency: int = 1
    optional_queue: bool = False

    def __post_init__(self) -> None:
        """Check every value."""
        if self.concurrency < 1:
            raise ConfigurationError(
                f"satellite {self.consumption.name!r} needs at least one thread, "
                f"got {self.concurrency}"
            )


@dataclass(frozen=True, slots=True)
class ManagerRoute:
    """Route of delayed messages to the timeout manager at *address*."""

    address: str
    delays: DelayRoute


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureParts:
    """The parts that a feature gives the endpoint, or the parts of all its features.

    *native_delays* take precedence over *manager*, even beside a store, and use the queues
    *levels*. *missing_destinations* checks the destinations of delayed messages. *delivery* wraps
    sends, steps and failures. Commands use *dead_letters*. A broker sends dead messages of the
    endpoint's queue to *dead_messages_to* instead of the error queue. *wake* notifies the pollers
    of a stored timeout. *databases* are further databases, beside those of queues and timeouts.
    """

    satellites: tuple[Satellite, ...] = ()
    tasks: tuple[Task, ...] = ()
    installed: tuple[Installed, ...] = ()
    store: TimeoutStore | None = None
    delayed: StoreStart | None = None
    direct: DirectStorage | None = None
    wake: Callable[[Micros], None] | None = None
    manager: ManagerRoute | None = None
    native_delays: NativeDelays | None = None
    levels: tuple[Queue, ...] = ()
    missing_destinations: MissingDestinations | None = None
    delivery: DeliveryPolicies | None = None
    dead_letters: DeadLetters | None = None
    databases: tuple[SharedDatabase, ...] = ()
    dead_messages_to: str | None = None
    expiry: Expiry | None = None

    @property
    def policies(self) -> DeliveryPolicies:
        """The policies of sends, steps and failures; default policies if no feature has any."""
        return self.delivery or PLAIN

    @property
    def manager_address(self) -> str | None:
        """The queue of the timeout manager, or None."""
        return None if self.manager is None else self.manager.address

    @property
    def stored_delays(self) -> DelayRoute | None:
        """The route of a delayed message to a store, or None."""
        return None if self.manager is None else self.manager.delays

    @property
    def delays(self) -> DelayRoute | None:
        """The route of a delayed message: the broker's own route takes precedence."""
        return self.native_delays or self.stored_delays

    @property
    def remembering_delays(self) -> DelayRoute | None:
        """The route of a delayed message to a store that remembers ids, or None."""
        return self.stored_delays if self.delayed is None else None

    @property
    def cancellable_delays(self) -> DelayRoute | None:
        """The route of a delayed message that can still be cancelled, or None."""
        native = self.native_delays
        return self.stored_delays if native is None or native.falls_back else None


def merged(parts: Mapping[str, FeatureParts]) -> FeatureParts:
    """Return the merged parts of all features, which are given by name in order of set-up.

    Raises ConfigurationError if two features give a part that an endpoint has only once.
    """
    found: dict[str, Any] = {}
    givers: dict[str, str] = {}
    for feature, own in parts.items():
        for field in fields(FeatureParts):
            value = getattr(own, field.name)
            if isinstance(value, tuple):
                found[field.name] = (*found.get(field.name, ()), *value)
            elif value is not None:
                if field.name in givers:
                    raise _clash(field.name, found[field.name], value, givers[field.name], feature)
                givers[field.name], found[field.name] = feature, value
    return FeatureParts(**found)


def _clash(name: str, one: Any, other: Any, first: str, second: str) -> ConfigurationError:
    if isinstance(one, ManagerRoute):
        return ConfigurationError(
            f"Another feature has already set the timeout manager address "
            f"({one.address!r}); {other.address!r} cannot be a second one. Use one of them."
        )
    return ConfigurationError(
        f"features {first!r} and {second!r} both bring {name}, which an endpoint has once; "
        "disable one of them"
    )


# --- the schema that an endpoint needs: whether an error tells that tables are missing --------


def missing_schema(
    error: Exception,
    transport: Transport,
    persistence: Persistence | None,
    installed: Iterable[Installed],
) -> SchemaMissing | None:
    """Return which tables *error* is about, if they are missing or too old; None otherwise."""
    if not tells_of_absence(error):
        return None
    try:
        if transport.database is not None:
            transport.check()
        if persistence is not None:
            persistence.check()
        for part in installed:
            part.check()
    except SchemaMissing as missing:
        return missing
    except TimeoutManagerError:
        # On SQLite the caller's own transaction prevents the check of a new file.
        return SchemaMissing(f"{error}; run `timeoutmgr install`")
    return None
