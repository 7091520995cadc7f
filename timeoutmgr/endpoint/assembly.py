"""Assembly of an endpoint's parts from its settings, with checks of the combination. No I/O."""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from timeoutmgr.contracts import ChoosesClock, SharedDatabase, TransactionMode
from timeoutmgr.contracts.answers import Answering
from timeoutmgr.contracts.callables import is_coroutine_function
from timeoutmgr.database import as_database, one_connection_serves
from timeoutmgr.endpoint import canary
from timeoutmgr.endpoint.canary import CanarySettings
from timeoutmgr.endpoint.configuration import EndpointSettings
from timeoutmgr.endpoint.handlers import Handler, HandlerMiddleware, HandlerStep, retry_later
from timeoutmgr.errors import ConfigurationError, FeatureRefused, SchemaMissing
from timeoutmgr.features.breakers import Breakers
from timeoutmgr.features.feature import Feature, FeatureContext, check_prerequisites
from timeoutmgr.features.parts import FeatureParts, ManagerRoute, Satellite, merged, missing_schema
from timeoutmgr.message.message import Expiry
from timeoutmgr.message.routes import Clearing, manager_endpoint, timeout_id, to_timeout_manager
from timeoutmgr.resilience.after_fork import begin_anew_after_fork
from timeoutmgr.resilience.breakers import OutageBreaker
from timeoutmgr.resilience.critical import CriticalErrors
from timeoutmgr.resilience.recovery import RecoverabilitySettings
from timeoutmgr.sender.composer import Composer, SendOptions
from timeoutmgr.sender.sender import Outlet, Sender, SessionPool
from timeoutmgr.telemetry import Counters
from timeoutmgr.transport.capabilities import check_combination, default_mode
from timeoutmgr.transport.pump import Consumption

if TYPE_CHECKING:
    from timeoutmgr.endpoint.coroutine_parts import CoroutineParts
    from timeoutmgr.endpoint.coroutines import HandlerCoroutines

BROKER_SENTENCE: Final = (
    "Repeated failures when communicating with the broker, endpoint will be terminated."
)
_BROKER_WAIT: Final = timedelta(minutes=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class AssembledEndpoint:
    """The assembled parts of an endpoint, not started."""

    settings: EndpointSettings
    mode: TransactionMode
    owner: str
    """The name of this process as owner of claims and leases."""
    critical: CriticalErrors
    breakers: Breakers
    features: FeatureParts
    composer: Composer
    satellites: tuple[Satellite, ...]
    pool: SessionPool
    sender: Sender
    broker: OutageBreaker
    coroutines: "HandlerCoroutines | None" = None
    """The coroutines of the handlers; None if no handler is a coroutine function."""

    @property
    def queues(self) -> list[str]:
        """The queues that the enabled features need."""
        own = [] if self.settings.send_only else [self.settings.input_queue]
        needed = [each for each in self.satellites if not each.optional_queue]
        consumed = [*own, *(satellite.consumption.queue for satellite in needed)]
        return [*dict.fromkeys([*consumed, self.settings.error_queue])] if consumed else []

    @property
    def databases(self) -> list[SharedDatabase]:
        """The databases of queues, timeouts and features, without duplicates."""
        stores = (self.settings.persistence, self.settings.delayed_delivery)
        candidates = [self.settings.transport.database, *self.features.databases]
        candidates += [store.database for store in stores if store is not None]
        return list({id(each): each for each in candidates if each is not None}.values())

    @property
    def servers(self) -> list[Answering]:
        """The databases, and the broker, whose answers this process waits for."""
        transport = self.settings.transport
        broker = [transport] if isinstance(transport, Answering) else []
        return [*self.databases, *broker]

    @property
    def outlet(self) -> Outlet:
        """The parts with which a program sends."""
        settings, features = self.settings, self.features
        return Outlet(
            endpoint=settings.name,
            transport=settings.transport,
            clock=settings.clock,
            new_id=settings.new_id,
            check_destinations=settings.check_destinations,
            composer=self.composer,
            sender=self.sender,
            manager_address=features.manager_address,
            direct=features.direct,
            policy=features.policies.sending,
            missing_schema=self.missing_schema,
        )

    def missing_schema(self, error: Exception) -> SchemaMissing | None:
        """Return which tables *error* is about, if they are missing or too old; None otherwise."""
        settings = self.settings
        return missing_schema(
            error, settings.transport, settings.installed_persistence, self.features.installed
        )

    def close_storage(self) -> None:
        """Close the connections to the timeout storage; closing twice is fine."""
        for each in (self.settings.persistence, self.settings.delayed_delivery):
            if each is not None:
                each.close()


def assemble(settings: EndpointSettings) -> AssembledEndpoint:
    """Return the parts of an endpoint.

    Raises ConfigurationError for settings that cannot work or keep the promises.
    """
    mode = mode_of(settings)
    check_prerequisites(settings.features, settings)
    if isinstance(settings.telemetry, Counters):
        begin_anew_after_fork(settings.telemetry)
    critical = CriticalErrors(settings.hooks, settings.critical_action)
    breakers = Breakers(critical, settings.clock)
    owner = uuid.uuid4().hex
    features = _set_up(
        settings.features,
        FeatureContext(
            settings=settings,
            mode=mode,
            new_id=settings.new_id,
            telemetry=settings.telemetry,
            critical=critical,
            breakers=breakers,
            owner=owner,
        ),
        _external(settings),
    )
    composer = _composer(settings, features)
    if settings.recurring:
        from timeoutmgr.endpoint.recurrence import with_recurring

        features = with_recurring(settings, features, composer)
    pool = SessionPool(settings.transport)
    sender = Sender(
        pool,
        settings.clock,
        features.policies.sending,
        features.missing_destinations,
        has_clock=settings.transport.database is not None and not composer.goes_by_host,
    )
    if settings.canary is not None:
        features = _with_canary(settings, settings.canary, features, composer, sender, critical)
    satellites = features.satellites
    awaited = _coroutines(settings, mode, sender)
    if not settings.send_only and settings.handlers:
        handled = _handlers(settings, mode, features, composer, sender, awaited, critical)
        satellites = (*satellites, handled)
    queues = settings.transport.database
    broker = breakers.over_outages(
        "Broker", _BROKER_WAIT, BROKER_SENTENCE, breakers.outage_in(queues)
    )
    breakers.watch_silence(queues, broker, _BROKER_WAIT)
    return AssembledEndpoint(
        settings=settings,
        mode=mode,
        owner=owner,
        critical=critical,
        breakers=breakers,
        features=features,
        composer=composer,
        satellites=satellites,
        pool=pool,
        sender=sender,
        broker=broker,
        coroutines=None if awaited is None else awaited.coroutines,
    )


def _set_up(
    features: Iterable[Feature], context: FeatureContext, external: FeatureParts
) -> FeatureParts:
    """Return the parts of *features*, set up by priority; a feature sees the parts before it."""
    parts: dict[str, FeatureParts] = {}
    for feature in sorted(features, key=lambda feature: feature.priority):
        found = merged(parts)
        context = replace(context, delivery=found.policies, stored_delays=found.stored_delays)
        parts[feature.name] = feature.set_up(context)
    return merged({**parts, "external timeout manager": external})


def _external(settings: EndpointSettings) -> FeatureParts:
    """Return the route to the external timeout manager that the settings name, if any."""
    address = settings.external_timeout_manager
    if address is None:
        return FeatureParts()
    return FeatureParts(manager=ManagerRoute(address, partial(to_timeout_manager, address=address)))


def mode_of(settings: EndpointSettings) -> TransactionMode:
    """Return the transaction mode; raise CombinationRefused for parts that cannot keep it."""
    # The place where delayed messages are stored: a persistence beside it then plays no role.
    store = settings.delayed_delivery or settings.persistence
    queue = settings.transport
    together = (
        store is not None
        and store.database is not None
        and queue.database is not None
        and one_connection_serves(as_database(store.database).url, as_database(queue.database).url)
    )
    mode = settings.transaction_mode or default_mode(
        queue.capabilities, together, store is not None
    )
    check_combination(
        queue.capabilities,
        store.capabilities if store is not None else None,
        mode,
        same_database=together,
        accept_loss=settings.accept_loss,
    )
    return mode


def _composer(settings: EndpointSettings, features: FeatureParts) -> Composer:
    manager = manager_endpoint(features.manager_address or settings.name)
    return Composer(
        endpoint=settings.name,
        clearing=Clearing(
            endpoint=settings.name,
            address=features.manager_address,
            is_native=features.native_delays is not None,
            is_listed=features.delayed is None,
        ),
        reply_to=None if settings.send_only else settings.input_queue,
        limits=settings.limits,
        clock=settings.clock,
        new_id=settings.new_id,
        timeout_id_of=lambda message_id: timeout_id(manager, message_id),
        delays=features.delays,
        cancellable_delays=features.cancellable_delays,
        remembering_delays=features.remembering_delays,
        policy=features.policies.sending,
        middleware=settings.send_middleware,
        goes_by_host=isinstance(features.store, ChoosesClock) and features.store.goes_by_host,
    )


def _coroutines(
    settings: EndpointSettings, mode: TransactionMode, sender: Sender
) -> "CoroutineParts | None":
    """Return the parts that run coroutine handlers; without such handlers, import no asyncio."""
    every = (handler for found in settings.handlers.values() for handler in found)
    if not any(is_coroutine_function(handler) for handler in every):
        return None
    from timeoutmgr.endpoint.coroutine_parts import CoroutineParts

    return CoroutineParts(settings, mode, sender)


def _with_canary(
    settings: EndpointSettings,
    ours: CanarySettings,
    features: FeatureParts,
    composer: Composer,
    sender: Sender,
    critical: CriticalErrors,
) -> FeatureParts:
    """Return *features* with the task of the canary; raise FeatureRefused without a store."""
    if features.store is None or features.native_delays is not None:
        raise FeatureRefused(
            f"endpoint {settings.name!r} has a canary and no timeout manager that its delays go "
            "to; enable TimeoutManager, or take the canary out"
        )

    def send(delay: timedelta) -> str:
        options = SendOptions(delay=delay)
        composed = composer.compose(
            settings.input_queue, canary.MESSAGE_TYPE, {}, options, delay_clock=sender.now
        )
        sender.send([composed.outgoing])
        timeout_id = composed.sent.id
        assert timeout_id is not None, "the timeout manager keeps it"
        return timeout_id

    task = canary.Canary(ours, settings.name, features.store, send, critical, settings.telemetry)
    return replace(features, tasks=(*features.tasks, task))


def _check_retries(settings: EndpointSettings, mode: TransactionMode, *, can_delay: bool) -> None:
    """Raise ConfigurationError for delayed retries that are configured but impossible."""
    asked = settings.recoverability
    if asked is None or not asked.delayed:
        return
    if not can_delay:
        raise ConfigurationError(
            f"{asked.delayed} delayed retries are configured and no feature can delay a message; "
            "enable TimeoutManager, or on RabbitMQ NativeDelayedDelivery, or set "
            "recoverability.delayed to 0"
        )
    if mode is TransactionMode.NONE:
        raise ConfigurationError(
            f"{asked.delayed} delayed retries are configured, and in transaction_mode none a "
            "message has left its queue before it is handled, so that no retry is possible; choose "
            "another mode, or set recoverability.delayed to 0"
        )


def _step_class(settings: EndpointSettings) -> Callable[..., HandlerStep]:
    if not settings.handled_in_lists:
        return HandlerStep
    from timeoutmgr.endpoint.list_handlers import ListHandlerStep

    return partial(ListHandlerStep, lists=settings.handled_in_lists)


def _handlers(
    settings: EndpointSettings,
    mode: TransactionMode,
    features: FeatureParts,
    composer: Composer,
    sender: Sender,
    awaited: "CoroutineParts | None",
    critical: CriticalErrors,
) -> Satellite:
    delays = features.delays
    policy = settings.recoverability or RecoverabilitySettings()
    _check_retries(settings, mode, can_delay=delays is not None)
    step = _step_class(settings)(
        queue=settings.input_queue,
        handlers=cast("Mapping[str, Sequence[Handler]]", settings.handlers)
        if awaited is None
        else awaited.handlers,
        composer=composer,
        clock=settings.clock,
        telemetry=settings.telemetry,
        require_queues=sender.require_queues
        if settings.check_destinations
        else lambda _queues: None,
        policy=features.policies.handling,
        expiry=features.expiry or Expiry(),
        alone=settings.handled_alone,
        message_classes=settings.message_classes,
        middleware=()
        if settings.awaits_middleware
        else cast("Sequence[HandlerMiddleware]", settings.middleware),
        raise_critical=critical.raise_error,
    )
    return Satellite(
        consumption=Consumption(
            name="Handlers",
            queue=settings.input_queue,
            step=step,
            # Without a transaction a crash loses what it received: one message at most.
            batch=1 if mode is TransactionMode.NONE else settings.handler_batch,
            is_paced=True,
            split=step.split,
            policy=policy,
            retry_later=None
            if delays is None
            else lambda message: retry_later(
                message,
                queue=settings.input_queue,
                settings=policy,
                delays=delays,
                clock=settings.clock,
                delay_clock=sender.now,
            ),
            concurrent=None if awaited is None else awaited.concurrent(step),
        ),
        concurrency=settings.concurrency,
    )
