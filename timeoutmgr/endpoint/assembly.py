"""From settings to the parts of an endpoint, checked together. No I/O."""

import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from timeoutmgr.answers import Answering
from timeoutmgr.clearing import Clearing
from timeoutmgr.config import EndpointSettings
from timeoutmgr.contracts import ChoosesClock, TransactionMode
from timeoutmgr.database import Database, one_connection_serves
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.features import FeatureContext, Satellite, check_prerequisites
from timeoutmgr.handlers import HandlerStep, retry_later
from timeoutmgr.outgoing import Composer
from timeoutmgr.resilience.breakers import OutageBreaker
from timeoutmgr.resilience.critical import CriticalErrors
from timeoutmgr.resilience.recovery import RecoverabilitySettings
from timeoutmgr.routing import manager_endpoint, timeout_id, to_timeout_manager
from timeoutmgr.sending import Sender, SessionPool
from timeoutmgr.transport.capabilities import check_combination, default_mode
from timeoutmgr.transport.pump import Consumption

BROKER_SENTENCE: Final = (
    "Repeated failures when communicating with the broker, endpoint will be terminated."
)
_BROKER_WAIT: Final = timedelta(minutes=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """An endpoint, assembled and not started."""

    settings: EndpointSettings
    mode: TransactionMode
    context: FeatureContext
    composer: Composer
    satellites: tuple[Satellite, ...]
    pool: SessionPool
    sender: Sender
    broker: OutageBreaker

    @property
    def queues(self) -> list[str]:
        """The queues that the enabled features need, and no others."""
        own = [] if self.settings.send_only else [self.settings.input_queue]
        needed = [each for each in self.satellites if not each.where_found]
        consumed = [*own, *(satellite.consumption.queue for satellite in needed)]
        return [*dict.fromkeys([*consumed, self.settings.error_queue])] if consumed else []

    @property
    def databases(self) -> list[Database]:
        """The databases of queues and timeouts, each once."""
        stores = (self.settings.persistence, self.settings.delayed_delivery)
        candidates = [self.settings.transport.database]
        candidates += [store.database for store in stores if store is not None]
        return list({id(each): each for each in candidates if each is not None}.values())

    @property
    def servers(self) -> list[Answering]:
        """The databases, and the broker, whose answers this process waits for."""
        transport = self.settings.transport
        broker = [transport] if isinstance(transport, Answering) else []
        return [*self.databases, *broker]

    def close_storage(self) -> None:
        """Let go of the connections to where timeouts are stored; closing twice is fine."""
        if self.settings.persistence is not None:
            self.settings.persistence.close()
        delayed = self.settings.delayed_delivery
        close = getattr(delayed.store, "close", None) if delayed is not None else None
        if close is not None:
            close()


def assemble(settings: EndpointSettings) -> Parts:
    """Return the parts; raise ConfigurationError for what cannot work or keep the promises."""
    mode = _mode(settings)
    check_prerequisites(settings.features, settings)
    context = FeatureContext(
        settings=settings,
        transport=settings.transport,
        mode=mode,
        persistence=settings.persistence,
        clock=settings.clock,
        new_id=settings.new_id,
        telemetry=settings.telemetry,
        critical=CriticalErrors(settings.hooks, settings.critical_action),
        owner=uuid.uuid4().hex,
    )
    # Dead letters first: other features hand what they cannot deliver to them.
    for feature in sorted(
        settings.features, key=lambda one: not getattr(one, "sets_up_first", False)
    ):
        feature.set_up(context)
    external = settings.external_timeout_manager
    if external is not None:
        context.route_delays(
            external, lambda outgoing, due: to_timeout_manager(outgoing, due, external)
        )
    composer = _composer(settings, context)
    pool = SessionPool(settings.transport)
    sender = Sender(
        pool,
        settings.clock,
        context.dead_letters,
        context.missing_destinations,
        has_clock=settings.transport.database is not None and not composer.goes_by_host,
    )
    satellites = list(context.satellites)
    if not settings.send_only and settings.handlers:
        satellites.append(_handlers(settings, context, composer, sender))
    queues = settings.transport.database
    outage = context.outage_in(queues)
    broker = context.breaker("Broker", _BROKER_WAIT, BROKER_SENTENCE, outage)
    context.watch_silence(queues, broker, _BROKER_WAIT)
    return Parts(
        settings=settings,
        mode=mode,
        context=context,
        composer=composer,
        satellites=tuple(satellites),
        pool=pool,
        sender=sender,
        broker=broker,
    )


def _mode(settings: EndpointSettings) -> TransactionMode:
    # Where delayed messages are stored; a persistence beside it takes no part then.
    store = settings.delayed_delivery or settings.persistence
    queue = settings.transport
    together = (
        store is not None
        and store.database is not None
        and queue.database is not None
        and one_connection_serves(store.database.url, queue.database.url)
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


def _composer(settings: EndpointSettings, context: FeatureContext) -> Composer:
    manager = manager_endpoint(context.manager_address or settings.name)
    return Composer(
        endpoint=settings.name,
        clearing=Clearing(
            endpoint=settings.name,
            address=context.manager_address,
            is_native=context.native_delays is not None,
            is_listed=context.delayed is None,
        ),
        reply_to=None if settings.send_only else settings.input_queue,
        limits=settings.limits,
        clock=settings.clock,
        new_id=settings.new_id,
        timeout_id_of=lambda message_id: timeout_id(manager, message_id),
        delays=context.delays,
        cancellable_delays=context.cancellable_delays,
        remembering_delays=context.remembering_delays,
        dead_letters=context.dead_letters,
        goes_by_host=isinstance(context.store, ChoosesClock) and context.store.goes_by_host,
    )


def _handlers(
    settings: EndpointSettings, context: FeatureContext, composer: Composer, sender: Sender
) -> Satellite:
    delays = context.delays
    policy = settings.recoverability or RecoverabilitySettings()
    if delays is None and settings.recoverability is not None and policy.delayed:
        raise ConfigurationError(
            f"{policy.delayed} delayed retries are configured and no feature can delay a message; "
            "enable TimeoutManager, or on RabbitMQ NativeDelayedDelivery, or set "
            "recoverability.delayed to 0"
        )
    return Satellite(
        consumption=Consumption(
            name="Handlers",
            queue=settings.input_queue,
            step=HandlerStep(
                queue=settings.input_queue,
                handlers=settings.handlers,
                composer=composer,
                clock=settings.clock,
                telemetry=settings.telemetry,
                require_queues=sender.require_queues
                if settings.check_destinations
                else lambda _queues: None,
                dead_letters=context.dead_letters,
                expiry=context.expiry,
            ),
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
        ),
        concurrency=settings.concurrency,
    )
