"""Features: what an endpoint can do beyond sending and handling. Enabled, checked, then set up."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol, TypeAlias

from timeoutmgr.contracts import (
    Clock,
    DeadLetters,
    Persistence,
    RepeatKind,
    TimeoutStore,
    Transaction,
    TransactionMode,
    Transport,
    TransportSession,
)
from timeoutmgr.database.places import server_of
from timeoutmgr.delayed_delivery import StoreStart
from timeoutmgr.errors import ConfigurationError, FeatureRefused
from timeoutmgr.handlers import Expiry
from timeoutmgr.instants import Micros
from timeoutmgr.message import Message, Outgoing
from timeoutmgr.outgoing import DelayRoute
from timeoutmgr.resilience.breakers import OutageBreaker, RateBreaker
from timeoutmgr.resilience.critical import CriticalErrors
from timeoutmgr.resilience.outages import SharedOutage
from timeoutmgr.resilience.silence import SilenceWatch
from timeoutmgr.telemetry import Telemetry
from timeoutmgr.transport.pump import Consumption

if TYPE_CHECKING:
    from timeoutmgr.config import EndpointSettings
    from timeoutmgr.database import Database


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


StoreDirectly: TypeAlias = Callable[
    [Sequence[Message], Transaction | None], Sequence[RepeatKind | None]
]
"""Stores messages that were routed to the manager past its queue, in the transaction given.

Returns of each what became of it if its id was used before; None for a new id. Raises IdInUse.
"""

Examine: TypeAlias = Callable[[Message, Transaction], RepeatKind | None]
"""Returns what would become of a message if it were stored; changes nothing. Raises IdInUse."""


class Installed(Protocol):
    """Something of a feature's own that installers create: tables, say."""

    def install(self) -> None:
        """Create what is missing; twice and concurrently is fine."""
        ...

    def check(self) -> None:
        """Raise SchemaMissing, with the command to run, where ``install`` is needed."""
        ...

    def ddl(self) -> str:
        """Return the statements that ``install`` would run where nothing is yet."""
        ...


class NativeDelays(Protocol):
    """The route into what the broker itself delays."""

    @property
    def falls_back(self) -> bool:
        """Whether what the broker cannot delay goes to the timeout manager's store."""
        ...

    def __call__(self, outgoing: Outgoing, due: Micros) -> Outgoing:
        """Return *outgoing* on its way; raise InvalidMessage for what cannot be delayed."""
        ...


MissingDestinations: TypeAlias = Callable[[TransportSession, Sequence[str]], list[str]]
"""Returns those of the queues that do not exist, and readies the others for delayed messages."""


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
    """A receiver on one of the endpoint's own queues.

    With *where_found* it drains what another feature has left behind: it consumes where its queue
    exists when the endpoint starts, and installers do not create that.
    """

    consumption: Consumption
    concurrency: int = 1
    where_found: bool = False

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
        self.breakers: list[OutageBreaker | RateBreaker] = []
        self.silences: list[SilenceWatch] = []
        self._outages: dict[str, SharedOutage] = {}
        self.store: TimeoutStore | None = None
        self.delayed: StoreStart | None = None
        self.stored_delays: DelayRoute | None = None
        self.native_delays: NativeDelays | None = None
        self.missing_destinations: MissingDestinations = _missing_queues
        self.manager_address: str | None = None
        self.store_directly: StoreDirectly | None = None
        self.examine: Examine | None = None
        self.dead_letters: DeadLetters | None = None
        self.expiry = Expiry()
        self.installed: list[Installed] = []
        self.inside_database: Database | None = None
        """Where ``store_directly`` stores, and ``examine`` looks."""

    @property
    def delays(self) -> DelayRoute | None:
        """The way of a delayed message: the broker's own, where there is one."""
        return self.native_delays or self.stored_delays

    @property
    def remembering_delays(self) -> DelayRoute | None:
        """The way of a delayed message to a store that remembers ids, if there is one."""
        return self.stored_delays if self.delayed is None else None

    @property
    def cancellable_delays(self) -> DelayRoute | None:
        """The way of a delayed message that can still be cancelled, if there is one."""
        native = self.native_delays
        return self.stored_delays if native is None or native.falls_back else None

    def add_satellite(self, satellite: Satellite) -> None:
        """Have *satellite* consume while the endpoint runs; installers create its queue."""
        self.satellites.append(satellite)

    def add_task(self, task: Task) -> None:
        """Have *task* run while the endpoint runs."""
        self.tasks.append(task)

    def outage_in(self, database: "Database | None") -> SharedOutage:
        """Return what breakers over *database* share; without one, an outage of its own each time.

        Queues and timeouts in one database share it, however each URL spells that.
        """
        if database is None:
            return SharedOutage()
        return self._outages.setdefault(server_of(database.url), SharedOutage())

    def breaker(
        self, name: str, wait: timedelta, sentence: str, outage: SharedOutage | None = None
    ) -> OutageBreaker:
        """Return a breaker that raises *sentence* as a critical error after *wait*.

        Not where another breaker over the same *outage* has done so.
        """
        shared = outage or SharedOutage()

        def trigger(error: BaseException) -> None:
            if not shared.is_reported(made):
                self.critical.raise_error(sentence, error)

        made = OutageBreaker(name, time_to_wait=wait, on_trigger=trigger, clock=self.clock)
        self.breakers.append(made)
        return made

    def watch_silence(
        self, database: "Database | None", breaker: OutageBreaker, wait: timedelta
    ) -> None:
        """Have *breaker* armed while *database* leaves calls unanswered; None hangs never."""
        if database is not None and not database.is_sqlite:
            self.silences.append(SilenceWatch(database, breaker, wait.total_seconds()))

    def rate_breaker(self, name: str, per_second: float, sentence: str) -> RateBreaker:
        """Return a breaker that raises *sentence* as a critical error above a rate of failures."""

        def trigger(error: BaseException) -> None:
            self.critical.raise_error(sentence, error)

        made = RateBreaker(name, per_second=per_second, on_trigger=trigger, clock=self.clock)
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
        self.stored_delays = route

    def route_natively(self, route: NativeDelays, missing: MissingDestinations) -> None:
        """Have delayed sends take *route* into the broker, whatever else could keep them.

        *missing* looks for their destinations.
        """
        self.native_delays = route
        self.missing_destinations = missing


def _missing_queues(session: TransportSession, queues: Sequence[str]) -> list[str]:
    return session.missing_queues(queues)


def check_prerequisites(features: Iterable[Feature], settings: "EndpointSettings") -> None:
    """Raise FeatureRefused with the sentence of the first prerequisite that does not hold."""
    for feature in features:
        for prerequisite in feature.prerequisites(settings):
            if not prerequisite.holds:
                raise FeatureRefused(f"feature {feature.name!r}: {prerequisite.sentence}")
