"""The feature TimeoutManager: its satellites, its poller and its prerequisites."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial

from timeoutmgr._version import __version__
from timeoutmgr.contracts import (
    ExaminesIds,
    KeepsTimeouts,
    Persistence,
    RaisesCriticalErrors,
    Timeout,
    TimeoutStore,
    TransactionMode,
    WakesProcesses,
)
from timeoutmgr.contracts.callables import check_callable
from timeoutmgr.contracts.reports import PROCESS_VERSION
from timeoutmgr.contracts.stores import DirectStorage
from timeoutmgr.database.proof import require_durable
from timeoutmgr.database.row_moves import KeepsRows, Move, MovesRows
from timeoutmgr.errors import (
    ConfigurationError,
    SchemaMissing,
    StorageUnavailable,
    TransportUnavailable,
    WrongPair,
)
from timeoutmgr.features.feature import USUAL, FeatureContext, FeatureSettings, Prerequisite
from timeoutmgr.features.markers import check_pair
from timeoutmgr.features.parts import FeatureParts, ManagerRoute, Satellite
from timeoutmgr.message.field_types import check_field_types
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.message.routes import DELAYED, DISPATCHER, TIMEOUTS, to_timeout_manager
from timeoutmgr.message.validation import is_allowed
from timeoutmgr.resilience.breakers import OutageBreaker
from timeoutmgr.satellites.control import MOST_KEYS
from timeoutmgr.satellites.housekeeping import Housekeeping
from timeoutmgr.satellites.poller import LEAD, Poller, PollTimeouts
from timeoutmgr.sender.sender import SessionPool
from timeoutmgr.transport.delivery_policy import Outage
from timeoutmgr.transport.pump import Consumption

from .dispatcher import ORDERS, ORDERS_OF_ROWS, DispatchTimeouts
from .sender_clocks import SenderClocks, report_clock_offset
from .timeouts import StoreTimeouts
from .wakeups import OtherPollers

logger = logging.getLogger(__name__)

FETCH_SENTENCE = (
    "Repeated failures when fetching timeouts from storage, endpoint will be terminated."
)
STORE_SENTENCE = "Repeated failures when storing timeouts, endpoint will be terminated."
DISPATCH_SENTENCE = "Repeated failures when dispatching timeouts, endpoint will be terminated."
_MOVED = 5
"""Chunks in an order if the database moves the rows itself: a crash then repeats nothing, and the
statements of an order do not depend on its number of timeouts."""


@dataclass(frozen=True, kw_only=True)
class TimeoutManager:
    """Durable delayed delivery: store, poll, dispatch.

    *time_to_wait_before_critical_error* is how long an outage of storage or broker may last before
    the critical error hooks run; with zero they run at the first failure. The poller polls at least
    once in each *poll_interval* (or in that time of an outage, if it is shorter, so that an outage
    is noticed soon enough). A control message has up to *chunk* timeouts: a crash while a chunk is
    sent repeats at most that many. Where PostgreSQL moves the rows itself, a crash repeats none,
    and a control message has five times as many, up to 1,000. *store_batch* messages are stored in
    one transaction. *on_cancelled* is called with each timeout whose message arrives after a
    cancel, before the message is acknowledged; if it raises, the message is delivered again; after
    a crash before the call, the call is lost.
    """

    priority: int = field(default=USUAL, init=False, repr=False)

    time_to_wait_before_critical_error: timedelta = timedelta(minutes=2)
    poll_interval: timedelta = timedelta(minutes=1)
    chunk: int = 100
    store_batch: int = 100
    concurrency: int = 1
    on_cancelled: Callable[[Timeout], None] | None = None
    name: str = field(default="timeout-manager", init=False)

    def __post_init__(self) -> None:
        """Check every value."""
        check_field_types(self)
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
        for setting, size in (("chunk", self.chunk), ("store_batch", self.store_batch)):
            if not 1 <= size <= 1000:
                raise ConfigurationError(f"{setting} must be 1 to 1000 timeouts, got {size}")
        if self.on_cancelled is not None:
            check_callable(self.on_cancelled, "on_cancelled", ("timeout",))
        if self.concurrency < 1:
            raise ConfigurationError(f"concurrency must be at least 1, got {self.concurrency}")

    @property
    def interval(self) -> timedelta:
        """The time between two polls if no due time asks for a sooner poll."""
        wait = self.time_to_wait_before_critical_error
        return min(self.poll_interval, max(wait, timedelta(seconds=1)))

    def prerequisites(self, settings: FeatureSettings) -> Iterable[Prerequisite]:
        """Return the conditions of the feature."""
        yield Prerequisite(
            not settings.send_only,
            "Send only endpoints can't use the timeoutmanager since it requires receive "
            "capabilities. Use config.use_external_timeout_manager('<endpoint>.Timeouts').",
        )
        yield Prerequisite.no_external_manager(settings)
        yield Prerequisite(
            isinstance(settings.persistence, KeepsTimeouts),
            "The selected persistence doesn't have support for timeout storage. Select another "
            "persistence or disable the timeout manager feature using "
            "config.disable_feature('timeout-manager')",
        )

    def set_up(self, context: FeatureContext) -> FeatureParts:
        """Return the satellites, the poller and the route for delays."""
        settings, persistence = context.settings, context.settings.persistence
        assert persistence is not None, "a prerequisite"
        store = persistence.timeouts(
            settings.name,
            context.clock,
            atomic_dispatch=context.mode is TransactionMode.TRANSACTION_SCOPE,
        )
        if isinstance(store, RaisesCriticalErrors):
            store.use_critical_errors(context.critical.raise_error)
        address = settings.name + TIMEOUTS
        ready = Readiness(
            persistence,
            store,
            settings.install,
            accept_loss=settings.accept_loss,
            check_pair=lambda: check_pair(settings),
        )
        wait = self.time_to_wait_before_critical_error
        breakers = _breakers(context, wait)
        context.breakers.watch_silence(persistence.database, breakers.fetch, wait)
        dispatch = _dispatch_step(context, store)
        chunk = self.chunk if dispatch.move_many is None else min(self.chunk * _MOVED, MOST_KEYS)
        poller = self._poller(context, store, ready, breakers.fetch, chunk)
        others = self._other_pollers(context, store, poller)
        senders = SenderClocks(lambda: poller.offset, context.clock, context.telemetry)
        wake = partial(_wake_all, poller, others)
        storing = StoreTimeouts(
            store=store,
            limits=settings.limits,
            clock=context.clock,
            telemetry=context.telemetry,
            wake=wake,
            dispatch_now=dispatch.dispatch_now,
            on_cancelled=self.on_cancelled,
            senders=senders,
        )
        return FeatureParts(
            store=store,
            wake=wake,
            direct=DirectStorage(
                database=persistence.database,
                store=storing.store_directly,
                examine=storing.examine if isinstance(store, ExaminesIds) else None,
            ),
            satellites=self._satellites(settings.name, storing, dispatch, breakers, ready),
            tasks=(poller, others, _housekeeping(context, store, ready, poller, senders)),
            manager=ManagerRoute(address, partial(to_timeout_manager, address=address)),
        )

    def _poller(
        self,
        context: FeatureContext,
        store: TimeoutStore,
        ready: "Readiness",
        fetch: OutageBreaker,
        chunk: int,
    ) -> Poller:
        step = PollTimeouts(
            store=store,
            queue=context.settings.name + DISPATCHER,
            owner=context.owner,
            mode=context.mode,
            chunk=chunk,
            clock=context.clock,
            new_id=context.new_id,
            telemetry=context.telemetry,
            ahead=LEAD,
        )
        return Poller(
            step,
            interval=self.interval,
            sessions=SessionPool(context.transport),
            fetch=fetch,
            ready=ready,
            clock=context.clock,
            telemetry=context.telemetry,
            on_clock_offset=lambda seconds: report_clock_offset(context.critical, seconds),
        )

    def _other_pollers(
        self, context: FeatureContext, store: TimeoutStore, poller: Poller
    ) -> OtherPollers:
        return OtherPollers(
            store.wakeups(poller.poll_now) if isinstance(store, WakesProcesses) else None,
            endpoint=context.settings.name,
            interval=self.interval,
            now=lambda: context.clock.now() + (poller.offset or 0),
        )

    def _satellites(
        self,
        endpoint: str,
        storing_step: StoreTimeouts,
        dispatch: DispatchTimeouts,
        breakers: "_Breakers",
        ready: "Readiness",
    ) -> tuple[Satellite, ...]:
        storing = Consumption(
            name="Timeout Message Processor",
            queue=endpoint + TIMEOUTS,
            step=storing_step,
            batch=self.store_batch,
            storage=Outage(breaker=breakers.store, probe=ready.probe),
        )
        # Messages that a former delayed message store of this endpoint has not stored.
        left = replace(storing, queue=endpoint + DELAYED)
        dispatching = Consumption(
            name="Timeout Dispatcher Processor",
            queue=endpoint + DISPATCHER,
            step=dispatch,
            batch=ORDERS if dispatch.move_many is None else ORDERS_OF_ROWS,
            storage=Outage(breaker=breakers.dispatch_lock, probe=ready.probe),
            broker=breakers.dispatch,
        )
        return (
            Satellite(consumption=storing, concurrency=self.concurrency),
            Satellite(consumption=left, optional_queue=True),
            Satellite(consumption=dispatching, concurrency=self.concurrency),
        )


def _dispatch_step(context: FeatureContext, store: TimeoutStore) -> DispatchTimeouts:
    settings = context.settings
    return DispatchTimeouts(
        store=store,
        error_queue=settings.error_queue,
        limits=settings.limits,
        clock=context.clock,
        telemetry=context.telemetry,
        policy=context.delivery.forwarding,
        move_many=_mover(context, store),
        ahead=LEAD,
    )


def _wake_all(poller: Poller, others: OtherPollers, due: Micros) -> None:
    poller.wake(due)
    others.stored(due)


def _housekeeping(
    context: FeatureContext,
    store: TimeoutStore,
    ready: "Readiness",
    poller: Poller,
    senders: SenderClocks,
) -> Housekeeping:
    return Housekeeping(
        store,
        owner=context.owner,
        ready=ready,
        measure_offset=poller.measure_offset,
        state=lambda: {PROCESS_VERSION: __version__, **context.breakers.states, **senders.report()},
        telemetry=context.telemetry,
    )


def _mover(context: FeatureContext, store: TimeoutStore) -> Move | None:
    """Return the function that moves messages inside the database with both *store* and queues.

    None if they are not in one database, or if a policy must see each message.
    """
    sees_each = context.delivery.forwarding.sees_each_message
    in_one = context.mode is TransactionMode.TRANSACTION_SCOPE and not sees_each
    if not (in_one and isinstance(context.transport, KeepsRows) and isinstance(store, MovesRows)):
        return None
    rows = context.transport.message_rows()
    limits = context.settings.limits
    return None if rows is None else store.mover(rows, lambda name: is_allowed(name, limits))


@dataclass(frozen=True, slots=True)
class _Breakers:
    """A circuit breaker for each kind of failure, which only a success of the same kind disarms."""

    fetch: OutageBreaker
    dispatch_lock: OutageBreaker
    store: OutageBreaker
    dispatch: OutageBreaker


def _breakers(context: FeatureContext, wait: timedelta) -> _Breakers:
    persistence = context.settings.persistence
    stored = context.breakers.outage_in(None if persistence is None else persistence.database)
    queued = context.breakers.outage_in(context.settings.transport.database)
    return _Breakers(
        fetch=context.breakers.over_outages(
            "TimeoutStorageConnectivity", wait, FETCH_SENTENCE, stored
        ),
        dispatch_lock=context.breakers.over_outages("TimeoutLookUp", wait, FETCH_SENTENCE, stored),
        store=context.breakers.over_outages("TimeoutStorage", wait, STORE_SENTENCE, stored),
        dispatch=context.breakers.over_outages("TimeoutDispatch", wait, DISPATCH_SENTENCE, queued),
    )


@dataclass(slots=True)
class Readiness:
    """Check that the storage is installed; an endpoint may start while it is out of reach."""

    persistence: Persistence
    store: TimeoutStore
    install: bool
    accept_loss: bool = field(default=False, kw_only=True)
    check_pair: Callable[[], None] = field(default=lambda: None, kw_only=True)
    _checked: bool = field(default=False, init=False)

    def __call__(self) -> None:
        """Return if the storage has ever answered and is installed; or raise StorageUnavailable."""
        if not self._checked:
            self.probe()

    def probe(self) -> None:
        """Return if the storage answers now and is installed; or raise StorageUnavailable."""
        self.store.ping()
        if self._checked:
            return
        try:
            if self.install:
                self.persistence.install()
            self.persistence.check()
            require_durable(self.persistence.database, accept_loss=self.accept_loss)
            self.check_pair()
        except (SchemaMissing, WrongPair) as error:
            # The installer may be run while messages wait.
            raise StorageUnavailable(str(error)) from error
        except TransportUnavailable as error:
            logger.info(
                "endpoint %s compares store and broker later, the broker is away: %s",
                self.store.endpoint,
                on_one_line(error),
                extra={"event": "pair_unchecked", "endpoint": self.store.endpoint},
            )
            return
        self._checked = True
