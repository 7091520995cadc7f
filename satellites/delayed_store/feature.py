"""Delayed delivery through a delayed message store, as ``use_transport`` enables it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Final

from timeoutmgr.contracts import Clock, RaisesCriticalErrors, TransactionMode
from timeoutmgr.contracts.stores import DirectStorage
from timeoutmgr.features.delayed_delivery import DelayedDeliverySettings, StoreStart
from timeoutmgr.features.feature import USUAL, FeatureContext, FeatureSettings, Prerequisite
from timeoutmgr.features.markers import check_pair
from timeoutmgr.features.parts import FeatureParts, ManagerRoute, Satellite
from timeoutmgr.message.routes import DELAYED, TIMEOUTS, to_delayed_store
from timeoutmgr.resilience.breakers import OutageBreaker
from timeoutmgr.resilience.recovery import RecoverabilitySettings
from timeoutmgr.satellites.poller import Poller
from timeoutmgr.satellites.timeout_manager.sender_clocks import SenderClocks, report_clock_offset
from timeoutmgr.sender.sender import SessionPool
from timeoutmgr.transport.delivery_policy import Outage
from timeoutmgr.transport.pump import Consumption

from .adapter import Batches, DispatchDue, DrainLoop
from .receiver import StoreDelayed

STORE_SENTENCE: Final = "Failed to store delayed message"
FETCH_SENTENCE: Final = "Failed to fetch due delayed messages from the storage"
DISPATCH_SENTENCE: Final = "Failed to dispatch delayed messages to destination"
RECOVERY_SENTENCE: Final = "Failed to execute error handling for delayed message forwarding"
_INTERVAL: Final = timedelta(minutes=1)
_MEASURE_EVERY: Final = 60.0


@dataclass(frozen=True)
class DelayedDelivery:
    """The satellite on ``<endpoint>.timeouts`` and the due poller."""

    priority: int = field(default=USUAL, init=False, repr=False)

    settings: DelayedDeliverySettings
    name: str = field(default="delayed-delivery", init=False)

    def prerequisites(self, settings: FeatureSettings) -> Iterable[Prerequisite]:
        """Return the conditions of the feature."""
        yield Prerequisite(
            all(feature.name != "timeout-manager" for feature in settings.features),
            "TimeoutManager is enabled too, and a message can be delayed by one of them only. "
            "Disable the feature with config.disable_feature('timeout-manager'), or leave "
            "delayed_delivery out of use_transport.",
        )
        yield Prerequisite.no_external_manager(settings)

    def set_up(self, context: FeatureContext) -> FeatureParts:
        """Return the satellite, the poller and the route for delays."""
        ours, settings = self.settings, context.settings
        start = StoreStart(
            ours.store,
            settings.name,
            context.mode,
            install=settings.install,
            accept_loss=settings.accept_loss,
            check_pair=lambda: check_pair(settings),
        )
        if isinstance(ours.store, RaisesCriticalErrors):
            ours.store.use_critical_errors(context.critical.raise_error)
        batches = Batches(ours.store, context.clock, ours.batch)
        sessions = SessionPool(context.transport)
        poller = self._poller(context, start, batches, sessions)
        step = StoreDelayed(
            batches=batches,
            endpoint=settings.name,
            error_queue=settings.error_queue,
            attempts=ours.attempts,
            limits=settings.limits,
            clock=context.clock,
            telemetry=context.telemetry,
            ready=start.ready,
            wake=poller.wake,
            policy=context.delivery.forwarding,
            senders=SenderClocks(lambda: poller.offset, context.clock, context.telemetry),
        )
        breaker = context.breakers.over_outages(
            "DelayedStore",
            ours.time_to_trigger_store_circuit_breaker,
            STORE_SENTENCE,
            context.breakers.outage_in(ours.database),
        )
        address = settings.name + DELAYED
        left_by_a_manager = _satellite(
            settings.name + TIMEOUTS, step, ours, breaker, start, optional_queue=True
        )
        return FeatureParts(
            delayed=start,
            direct=DirectStorage(
                database=ours.database,
                store=step.store_directly,
                # Another connection, so skip the installers, which would wait for the caller.
                start=lambda: start.start(install=False),
            ),
            satellites=(_satellite(address, step, ours, breaker, start), left_by_a_manager),
            tasks=(poller,),
            manager=ManagerRoute(address, partial(to_delayed_store, address=address)),
        )

    def _poller(
        self, context: FeatureContext, start: StoreStart, batches: Batches, sessions: SessionPool
    ) -> Poller:
        ours, settings = self.settings, context.settings
        step = DispatchDue(
            batches=batches,
            endpoint=settings.name,
            error_queue=settings.error_queue,
            limits=settings.limits,
            mode=context.mode,
            attempts=ours.attempts,
            clock=context.clock,
            telemetry=context.telemetry,
            dispatch=context.breakers.over_outages(
                "DelayedDispatch",
                ours.time_to_trigger_dispatch_circuit_breaker,
                DISPATCH_SENTENCE,
                context.breakers.outage_in(settings.transport.database),
            ),
            recovery=context.breakers.over_rates(
                "DelayedRecovery", ours.maximum_recovery_failures_per_second, RECOVERY_SENTENCE
            ),
            policy=context.delivery.forwarding,
        )
        # With a shared transaction and a single writer, a second lane would only wait.
        is_one_writer = (
            context.mode is TransactionMode.TRANSACTION_SCOPE and not ours.capabilities.row_locks
        )
        wait = ours.time_to_trigger_fetch_circuit_breaker
        fetch = context.breakers.over_outages(
            "DelayedFetch", wait, FETCH_SENTENCE, context.breakers.outage_in(ours.database)
        )
        context.breakers.watch_silence(ours.database, fetch, wait)
        poller: Poller = Poller(
            DrainLoop(step, sessions=sessions, lanes=1 if is_one_writer else 2),
            # At least this often, so that an outage is noticed in time.
            interval=min(_INTERVAL, max(wait, timedelta(seconds=1))),
            sessions=sessions,
            fetch=fetch,
            ready=_Ready(start.ready, lambda: poller.measure_offset(), context.clock),
            clock=context.clock,
            telemetry=context.telemetry,
            on_clock_offset=lambda seconds: report_clock_offset(context.critical, seconds),
        )
        return poller


@dataclass(slots=True)
class _Ready:
    """Check that the store is ready; once a minute, compare its clock with this host's."""

    ready: Callable[[], None]
    measure: Callable[[], None]
    clock: Clock
    next: float = 0.0

    def __call__(self) -> None:
        self.ready()
        if self.clock.monotonic() >= self.next:
            self.next = self.clock.monotonic() + _MEASURE_EVERY
            self.measure()


def _satellite(
    queue: str,
    step: StoreDelayed,
    settings: DelayedDeliverySettings,
    breaker: OutageBreaker,
    start: StoreStart,
    *,
    optional_queue: bool = False,
) -> Satellite:
    return Satellite(
        consumption=Consumption(
            name="Delayed Message Processor",
            queue=queue,
            step=step,
            batch=settings.batch,
            policy=RecoverabilitySettings(immediate=settings.attempts, delayed=0),
            storage=Outage(breaker=breaker, probe=start.probe),
        ),
        optional_queue=optional_queue,
    )
