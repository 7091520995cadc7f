"""Features: what an endpoint can do beyond sending and handling. Enabled, checked, then set up."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol, TypeAlias

from timeoutmgr.contracts import (
    Clock,
    Persistence,
    TimeoutStore,
    Transaction,
    TransactionMode,
    Transport,
)
from timeoutmgr.errors import ConfigurationError, FeatureRefused
from timeoutmgr.message import Message
from timeoutmgr.outgoing import DelayRoute
from timeoutmgr.resilience.breakers import OutageBreaker
from timeoutmgr.resilience.critical import CriticalErrors
from timeoutmgr.telemetry import Telemetry
from timeoutmgr.transport.pump import Consumption

if TYPE_CHECKING:
    from timeoutmgr.config import EndpointSettings


@dataclass(frozen=True, slots=True)
class Prerequisite:
    """Something that must hold for a feature; the sentence says why it does not."""

    holds: bool
    sentence: str


class Feature(Protocol):
    """A capability that is enabled in the configuration."""

    @property
    def name(self) -> str:
        """Its name in configuration files."""
        ...

    def prerequisites(self, settings: "EndpointSettings") -> Iterable[Prerequisite]:
        """Return what must hold; the first that does not ends the start with its sentence."""
        ...

    def set_up(self, context: "FeatureContext") -> None:
        """Hand satellites, tasks and routes to the endpoint; no I/O yet."""
        ...


StoreInside: TypeAlias = Callable[[Message, Transaction], None]
"""Stores a message that was routed to the manager inside a caller's own transaction."""


class Task(Protocol):
    """Something that runs beside the satellites while the endpoint runs."""

    def start(self) -> None:
        """Start; returns at once."""
        ...

    def stop(self) -> None:
        """Stop; returns when all is still. Stop before start and twice is fine."""
        ...

    def watch(self) -> None:
        """Look after itself; called about every second from the endpoint's watchdog."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Satellite:
    """A receiver on one of the endpoint's own queues."""

    consumption: Consumption
    concurrency: int = 1

    def __post_init__(self) -> None:
        """Check every value."""
        if self.concurrency < 1:
            raise ConfigurationError(
                f"satellite {self.consumption.name!r} needs at least one thread, "
                f"got {self.concurrency}"
            )


class FeatureContext:
    """What a feature finds when it is set up, and where it leaves its parts."""

    def __init__(
        self,
        *,
        settings: "EndpointSettings",
        transport: Transport,
        mode: TransactionMode,
        persistence: Persistence | None,
        clock: Clock,
        new_id: Callable[[], str],
        telemetry: Telemetry,
        critical: CriticalErrors,
        owner: str,
    ) -> None:
        self.settings = settings
        self.transport = transport
        self.mode = mode
        self.persistence = persistence
        self.clock = clock
        self.new_id = new_id
        self.telemetry = telemetry
        self.critical = critical
        self.owner = owner
        self.satellites: list[Satellite] = []
        self.tasks: list[Task] = []
        self.breakers: list[OutageBreaker] = []
        self.store: TimeoutStore | None = None
        self.delays: DelayRoute | None = None
        self.manager_address: str | None = None
        self.store_inside: StoreInside | None = None

    def add_satellite(self, satellite: Satellite) -> None:
        """Have *satellite* consume while the endpoint runs; installers create its queue."""
        self.satellites.append(satellite)

    def add_task(self, task: Task) -> None:
        """Have *task* run while the endpoint runs."""
        self.tasks.append(task)

    def breaker(
        self,
        name: str,
        wait: timedelta,
        sentence: str,
        unless: Callable[[], bool] = lambda: False,
    ) -> OutageBreaker:
        """Return a breaker that raises *sentence* as a critical error after *wait*.

        *unless* says whether the same outage was reported by another breaker already.
        """

        def trigger(error: BaseException) -> None:
            if not unless():
                self.critical.raise_error(sentence, error)

        made = OutageBreaker(name, time_to_wait=wait, on_trigger=trigger, clock=self.clock)
        self.breakers.append(made)
        return made

    def route_delays(self, address: str, route: DelayRoute) -> None:
        """Have delayed sends take *route* to the manager at *address*."""
        if self.manager_address is not None:
            raise ConfigurationError(
                f"Another feature has already set the timeout manager address "
                f"({self.manager_address!r}); {address!r} cannot be a second one. Use one of them."
            )
        self.manager_address = address
        self.delays = route


def check_prerequisites(features: Iterable[Feature], settings: "EndpointSettings") -> None:
    """Raise FeatureRefused with the sentence of the first prerequisite that does not hold."""
    for feature in features:
        for prerequisite in feature.prerequisites(settings):
            if not prerequisite.holds:
                raise FeatureRefused(f"feature {feature.name!r}: {prerequisite.sentence}")
