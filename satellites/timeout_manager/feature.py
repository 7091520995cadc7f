"""The Timeout Manager as an endpoint feature: two satellites, one poller, their prerequisites."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta

from timeoutmgr.config import EndpointSettings
from timeoutmgr.contracts import (
    ExaminesIds,
    KeepsRows,
    Move,
    MovesRows,
    Persistence,
    TimeoutStore,
    TransactionMode,
)
from timeoutmgr.database.durability import require_durable
from timeoutmgr.errors import (
    ConfigurationError,
    SchemaMissing,
    StorageUnavailable,
    TransportUnavailable,
    WrongPair,
)
from timeoutmgr.features import FeatureContext, Prerequisite, Satellite
from timeoutmgr.markers import check_pair
from timeoutmgr.redaction import on_one_line
from timeoutmgr.resilience.breakers import OutageBreaker
from timeoutmgr.routing import DELAYED, DISPATCHER, TIMEOUTS, to_timeout_manager
from timeoutmgr.sending import SessionPool
from timeoutmgr.transport.pump import Consumption, Outage
from timeoutmgr.validation import is_allowed

from .clocks import report_clock_offset
from .dispatcher import ORDERS, DispatchTimeouts
from .housekeeping import Housekeeping
from .poller import LEAD, Poller, PollTimeouts
from .sender_clocks import SenderClocks
from .timeouts import StoreTimeouts

logger = logging.getLogger(__name__)

FETCH_SENTENCE = (
    "Repeated failures when fetching timeouts from storage, endpoint will be terminated."
)
STORE_SENTENCE = "Repeated failures when storing timeouts, endpoint will be terminated."
DISPATCH_SENTENCE = "Repeated failures when dispatching timeouts, endpoint will be terminated."


@dataclass(frozen=True, kw_only=True)
class TimeoutManager:
    """Durable delayed delivery: store, poll, dispatch.

    *time_to_wait_before_critical_error* is how long an outage of storage or broker may last
    before the critical error hooks are told; zero tells them at the first failure. The poller
    looks each *poll_interval* at the latest (or that wait, if it is shorter, so that an outage is
    noticed in time). *chunk* timeouts travel in one control message: a crash while a chunk is
    sent repeats at most that many. *store_batch* messages are stored in one transaction.
    """

    time_to_wait_before_critical_error: timedelta = timedelta(minutes=2)
    poll_interval: timedelta = timedelta(minutes=1)
    chunk: int = 100
    store_batch: int = 100
    concurrency: int = 1
    name: str = field(default="timeout-manager", init=False)

    def __post_init__(self) -> None:
        """Check every value."""
        if self.time_to_wait_before_critical_error < timedelta(0):
            raise ConfigurationError(
                "time_to_wait_before_critical_error must not be negative, got "
                f"{self.time_to_wait_before_critical_error}"
            )
        if not timedelta(0) < self.poll_interval <= timedelta(minutes=1):
            raise ConfigurationError(
                "poll_interval is more than zero and at most one minute, got "
                f"{self.poll_interval}; it also bounds how late an outage is noticed"
            )
        for setting in ("chunk", "store_batch"):
            if not 1 <= getattr(self, setting) <= 1000:
                raise ConfigurationError(
                    f"{setting} is 1 to 1000 timeouts, got {getattr(self, setting)}"
                )
        if self.concurrency < 1:
            raise ConfigurationError(f"concurrency must be at least 1, got {self.concurrency}")

    @property
    def interval(self) -> timedelta:
        """How often the poller looks when no due time asks for it sooner."""
        wait = self.time_to_wait_before_critical_error
        return min(self.poll_interval, max(wait, timedelta(seconds=1)))

    def prerequisites(self, settings: EndpointSettings) -> Iterable[Prerequisite]:
        """Return what must hold."""
        yield Prerequisite(
            not settings.send_only,
            "Send only endpoints can't use the timeoutmanager since it requires receive "
            "capabilities. Use config.use_external_timeout_manager('<endpoint>.Timeouts').",
        )
        yield Prerequisite(
            settings.external_timeout_manager is None,
            "A user configured timeoutmanager address has been found and this endpoint will send "
            "timeouts to that endpoint. Use one of the two.",
        )
        yield Prerequisite(
            settings.persistence is not None and hasattr(settings.persistence, "timeouts"),
            "The selected persistence doesn't have support for timeout storage. Select another "
            "persistence or disable the timeout manager feature using "
            "config.disable_feature('timeout-manager')",
        )

    def set_up(self, context: FeatureContext) -> None:
        """Hand the satellites, the poller and the route for delays to the endpoint."""
        settings = context.settings
        persistence = settings.persistence
        assert persistence is not None, "a prerequisite"
        store = persistence.timeouts(
            settings.name,
            context.clock,
            atomic_dispatch=context.mode is TransactionMode.TRANSACTION_SCOPE,
        )
        address, control = settings.name + TIMEOUTS, settings.name + DISPATCHER
        ready = Readiness(
            persistence,
            store,
            settings.install,
            accept_loss=settings.accept_loss,
            check_pair=lambda: check_pair(settings),
        )
        wait = self.time_to_wait_before_critical_error
        breakers = _breakers(context, wait)
        context.watch_silence(persistence.database, breakers.fetch, wait)

        dispatch = DispatchTimeouts(
            store=store,
            error_queue=settings.error_queue,
            limits=settings.limits,
            clock=context.clock,
            telemetry=context.telemetry,
            dead_letters=context.dead_letters,
            move_many=_mover(context, store),
            ahead=LEAD,
        )
        poller = Poller(
            PollTimeouts(
                store=store,
                queue=control,
                owner=context.owner,
                mode=context.mode,
                chunk=self.chunk,
                clock=context.clock,
                new_id=context.new_id,
                telemetry=context.telemetry,
                ahead=LEAD,
            ),
            interval=self.interval,
            sessions=SessionPool(context.transport),
            fetch=breakers.fetch,
            ready=ready,
            clock=context.clock,
            telemetry=context.telemetry,
            on_clock_offset=lambda seconds: report_clock_offset(context.critical, seconds),
        )
        senders = SenderClocks(lambda: poller.offset, context.clock, context.telemetry)
        storing_step = StoreTimeouts(
            store=store,
            limits=settings.limits,
            clock=context.clock,
            telemetry=context.telemetry,
            wake=poller.wake,
            dispatch_now=dispatch.dispatch_now,
            senders=senders,
        )

        context.store = store
        context.store_directly = storing_step.store_directly
        context.examine = storing_step.examine if isinstance(store, ExaminesIds) else None
        context.inside_database = persistence.database
        storing = Consumption(
            name="Timeout Message Processor",
            queue=address,
            step=storing_step,
            batch=self.store_batch,
            storage=Outage(breaker=breakers.store, probe=ready.probe),
        )
        context.add_satellite(Satellite(consumption=storing, concurrency=self.concurrency))
        # What a delayed message store of this endpoint has left unstored.
        left = replace(storing, queue=settings.name + DELAYED)
        context.add_satellite(Satellite(consumption=left, where_found=True))
        context.add_satellite(
            Satellite(
                consumption=Consumption(
                    name="Timeout Dispatcher Processor",
                    queue=control,
                    step=dispatch,
                    batch=ORDERS,
                    storage=Outage(breaker=breakers.look_up, probe=ready.probe),
                    broker=breakers.dispatch,
                ),
                concurrency=self.concurrency,
            )
        )
        context.add_task(poller)
        context.add_task(
            Housekeeping(
                store,
                owner=context.owner,
                ready=ready,
                measure_offset=poller.measure_offset,
                state=lambda: {
                    **{each.name: each.state.value for each in context.breakers},
                    **senders.report(),
                },
                telemetry=context.telemetry,
            )
        )
        context.route_delays(
            address, lambda outgoing, due: to_timeout_manager(outgoing, due, address)
        )


def _mover(context: FeatureContext, store: TimeoutStore) -> Move | None:
    """Return what moves messages inside the database that holds both *store* and queues.

    None where there is none, or where the dead-letter queues must see each message.
    """
    in_one = context.mode is TransactionMode.TRANSACTION_SCOPE and context.dead_letters is None
    if not (in_one and isinstance(context.transport, KeepsRows) and isinstance(store, MovesRows)):
        return None
    rows = context.transport.message_rows()
    limits = context.settings.limits
    return None if rows is None else store.mover(rows, lambda name: is_allowed(name, limits))


@dataclass(frozen=True, slots=True)
class _Breakers:
    """One for each way to fail: each is disarmed only by what it is about."""

    fetch: OutageBreaker
    look_up: OutageBreaker
    store: OutageBreaker
    dispatch: OutageBreaker


def _breakers(context: FeatureContext, wait: timedelta) -> _Breakers:
    persistence = context.settings.persistence
    stored = context.outage_in(None if persistence is None else persistence.database)
    queued = context.outage_in(context.settings.transport.database)
    return _Breakers(
        fetch=context.breaker("TimeoutStorageConnectivity", wait, FETCH_SENTENCE, stored),
        look_up=context.breaker("TimeoutLookUp", wait, FETCH_SENTENCE, stored),
        store=context.breaker("TimeoutStorage", wait, STORE_SENTENCE, stored),
        dispatch=context.breaker("TimeoutDispatch", wait, DISPATCH_SENTENCE, queued),
    )


class Readiness:
    """Whether the storage is there with its tables; an endpoint may start while it is away."""

    def __init__(
        self,
        persistence: Persistence,
        store: TimeoutStore,
        install: bool,
        *,
        accept_loss: bool = False,
        check_pair: Callable[[], None] = lambda: None,
    ) -> None:
        self._persistence = persistence
        self._accept_loss = accept_loss
        self._store = store
        self._install = install
        self._check_pair = check_pair
        self._checked = False

    def __call__(self) -> None:
        """Return if the storage answers and is installed; raise StorageUnavailable if not."""
        if self._checked:
            return
        self.probe()

    def probe(self) -> None:
        """Return if the storage answers now; raise StorageUnavailable if not."""
        self._store.ping()
        if self._checked:
            return
        try:
            if self._install:
                self._persistence.install()
            self._persistence.check()
            require_durable(self._persistence.database, accept_loss=self._accept_loss)
            self._check_pair()
        except (SchemaMissing, WrongPair) as error:
            # Later it may be there: somebody runs the installer while messages wait.
            raise StorageUnavailable(str(error)) from error
        except TransportUnavailable as error:
            logger.info(
                "store and broker are not compared while the broker is away: %s",
                on_one_line(error),
            )
            return
        self._checked = True
