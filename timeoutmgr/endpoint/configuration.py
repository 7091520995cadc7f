"""Settings of an endpoint: collected by EndpointConfiguration, checked early, and frozen."""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast, get_args, overload

from timeoutmgr import plugins
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Clock, ModeName, Persistence, TransactionMode, Transport
from timeoutmgr.contracts.callables import check_callable, is_coroutine_function
from timeoutmgr.endpoint import canary
from timeoutmgr.endpoint.canary import CanarySettings
from timeoutmgr.endpoint.handled_classes import check_same_class, check_takes_one, class_of_handler
from timeoutmgr.endpoint.handlers import ANY, Body
from timeoutmgr.errors import (
    CombinationRefused,
    ConfigurationError,
    InvalidMessage,
    UnknownPart,
    UnknownSetting,
)
from timeoutmgr.features.delayed_delivery import DelayedDeliverySettings
from timeoutmgr.features.feature import Feature, ManagerDisabled
from timeoutmgr.message.classes import TypedMessageClass
from timeoutmgr.message.field_types import Kinds, check_kind, kinds_of
from timeoutmgr.message.ids import random_id
from timeoutmgr.message.message import first_type
from timeoutmgr.message.redaction import shown
from timeoutmgr.message.validation import Limits, check_destination, is_satellite_queue
from timeoutmgr.resilience.critical import CriticalAction, CriticalErrorHook
from timeoutmgr.resilience.recovery import RecoverabilitySettings
from timeoutmgr.sender.composer import SendMiddleware
from timeoutmgr.telemetry import Counters, Telemetry
from timeoutmgr.transport.queue_view import InstalledSatellites

if TYPE_CHECKING:
    from timeoutmgr.endpoint.async_context import (
        AnyHandler,
        AnyMiddleware,
        AnyTypedHandler,
        RegistersTyped,
    )
    from timeoutmgr.endpoint.list_handlers import ListHandler, TypedListHandler
    from timeoutmgr.recurrence.definition import CatchUp, CatchUpName, RecurringTimeout

DATA: Final = "TIMEOUTMGR_DATA"
"""Environment variable that names the embedded file, which holds queues and stores by default."""

MOST_HANDLER_BATCH: Final = 500
LONGEST_SHUTDOWN: Final = timedelta(days=365)
"""Upper limit of waits: a thread cannot wait as long as the longest timedelta."""
LIST: Final = "list"
"""Value of *batch* for a handler that gets a list of messages."""

Registered = TypeVar("Registered", bound="AnyHandler")
RegisteredList = TypeVar("RegisteredList", bound="ListHandler")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSettings:
    """The final settings of an endpoint, made by ``EndpointConfiguration.settings``."""

    name: str
    transport: Transport
    persistence: Persistence | None
    features: tuple[Feature, ...]
    handlers: "dict[str, tuple[AnyHandler, ...]]"
    handled_alone: frozenset[str]
    """Message types whose messages are settled one at a time."""
    message_classes: dict[str, TypedMessageClass]
    """Classes of messages that handlers get as objects, by message type."""
    handled_in_lists: frozenset[str]
    """Message types whose handlers get a list of messages."""
    without_session: frozenset[str]
    """Message types whose coroutine handlers never use ``context.session``."""
    hooks: tuple[CriticalErrorHook, ...]
    critical_action: CriticalAction
    transaction_mode: TransactionMode | None
    accept_loss: bool
    send_only: bool
    error_queue: str
    external_timeout_manager: str | None
    recoverability: RecoverabilitySettings | None
    limits: Limits
    concurrency: int
    handler_batch: int
    async_concurrency: int
    shutdown_timeout: timedelta
    check_destinations: bool
    install: bool
    clock: Clock
    telemetry: Telemetry
    new_id: Callable[[], str] = field(repr=False)
    delayed_delivery: DelayedDeliverySettings | None = None
    manager_disabled: ManagerDisabled = ManagerDisabled.NOT_SAID
    recurring: "tuple[RecurringTimeout, ...]" = ()
    middleware: "tuple[AnyMiddleware, ...]" = ()
    send_middleware: tuple[SendMiddleware, ...] = ()
    canary: CanarySettings | None = None

    def __post_init__(self) -> None:
        """Check every value."""
        check_endpoint_name(self.name)
        try:
            check_destination(self.error_queue, Limits())
        except InvalidMessage as error:
            raise ConfigurationError(f"error_queue: {error}") from error
        self._check_retries()
        self._check_recurring()
        numbers = {"concurrency": self.concurrency, "async_concurrency": self.async_concurrency}
        for name, number in numbers.items():
            if number < 1:
                raise ConfigurationError(f"{name} must be at least 1, got {number}")
        if not 1 <= self.handler_batch <= MOST_HANDLER_BATCH:
            raise ConfigurationError(
                f"handler_batch must be from 1 to {MOST_HANDLER_BATCH}, got {self.handler_batch}"
            )
        if not timedelta(0) <= self.shutdown_timeout <= LONGEST_SHUTDOWN:
            raise ConfigurationError(
                "shutdown_timeout must not be negative, and at most "
                f"{LONGEST_SHUTDOWN.days} days, got {self.shutdown_timeout}"
            )
        self._check_error_queue()
        self._check_middleware()
        if self.send_only and self.handlers:
            raise ConfigurationError(
                f"endpoint {self.name!r} is send-only and has handlers for "
                f"{', '.join(sorted(self.handlers))}; a send-only endpoint receives nothing"
            )

    def _check_error_queue(self) -> None:
        """Refuse the endpoint's own queue: each failed message would come back from it."""
        if self.error_queue == self.input_queue and not self.send_only:
            raise ConfigurationError(
                f"error_queue {self.error_queue!r} is the endpoint's own queue, from which it "
                "would receive its failed messages again without end; name another queue, such "
                f'as "error" or "{self.name}.error"'
            )

    def _check_retries(self) -> None:
        """Refuse delayed retries that exceed the endpoint's own limit of delays."""
        if self.recoverability is None or self.limits.max_delay is None:
            return
        longest = self.recoverability.increase * self.recoverability.delayed
        if longest > self.limits.max_delay:
            raise ConfigurationError(
                f"the last delayed retry waits {longest}, which is more than limits.max_delay "
                f"({self.limits.max_delay}); raise that, or lower recoverability.increase "
                "or delayed"
            )

    def _check_recurring(self) -> None:
        """Refuse schedules whose next run exceeds the endpoint's own limit of delays."""
        limit, now = self.limits.max_delay, self.clock.now()
        for each in self.recurring:
            if limit is not None and (longest := each.occurrences.longest_wait(now)) > limit:
                raise ConfigurationError(
                    f"recurring {each.name!r}: a run is stored {longest} ahead, which is more than "
                    f"limits.max_delay ({limit}); raise that, or have it run more often"
                )

    def _check_middleware(self) -> None:
        """Refuse middleware that cannot wrap every handler."""
        if self.middleware and self.handled_in_lists:
            raise ConfigurationError(
                "middleware runs around the handlers of one message, and the handlers of "
                f"{', '.join(sorted(self.handled_in_lists))} get lists (batch='list'); call the "
                "function of the middleware inside these handlers, or register them without batch"
            )
        if not self.awaits_middleware:
            return
        others: list[object] = [each for found in self.handlers.values() for each in found]
        for each in (*self.middleware, *others):
            if not is_coroutine_function(cast("Callable[..., object]", each)):
                raise ConfigurationError(
                    "middleware that is a coroutine function runs on the loop of coroutine "
                    f"handlers, beside coroutine functions alone, got {each!r:.80}; make all "
                    "handlers and middleware of the endpoint coroutine functions, or the "
                    "middleware a plain function"
                )

    @property
    def awaits_middleware(self) -> bool:
        """Whether the middleware consists of coroutine functions."""
        return any(map(is_coroutine_function, self.middleware))

    @property
    def installed_persistence(self) -> Persistence | None:
        """The persistence whose tables are needed; None if its timeout manager is disabled."""
        return self.persistence if self.manager_disabled is ManagerDisabled.NOT_SAID else None

    @property
    def input_queue(self) -> str:
        """The queue of the endpoint's own handlers."""
        return self.name


_SETTABLE: Final = frozenset(
    {
        *("name", "transaction_mode", "error_queue", "critical_error_action", "canary"),
        *("recoverability", "limits", "concurrency", "handler_batch", "async_concurrency"),
        *("shutdown_timeout", "check_destinations", "install", "clock", "telemetry", "new_id"),
    }
)
"""The attributes of an EndpointConfiguration; all other settings are set by methods."""
_OTHER_KINDS: Final[dict[str, Kinds]] = {
    "transaction_mode": (TransactionMode, str, NoneType),
    "critical_error_action": (CriticalAction, str),
}
"""Types of attributes that also take the name of a member."""


class EndpointConfiguration:
    """Collects the settings of an endpoint.

    ::

        config = EndpointConfiguration("sales")
        config.use_transport("amqp://guest:guest@localhost//")
        config.use_persistence("postgresql+psycopg://localhost/sales")
        config.enable_feature(TimeoutManager())

    Without a transport, queues and timeouts are in one embedded file, ``./timeoutmgr.db`` or the
    file that the environment variable TIMEOUTMGR_DATA names. With any other transport a timeout
    manager needs an explicit persistence.
    """

    _is_frozen = False

    def __init__(self, name: str) -> None:
        self.name: Final = check_endpoint_name(name)
        self.transaction_mode: TransactionMode | ModeName | None = None
        """None: ``transaction_scope`` if the parts share a database, otherwise ``receive_only``."""
        self.error_queue = "error"
        self.critical_error_action: CriticalAction | str = CriticalAction.STOP
        self.canary: CanarySettings | None = None
        """How often a canary timeout is sent to prove that the endpoint delivers; None: never."""
        self.recoverability: RecoverabilitySettings | None = None
        """None: the default, without delayed retries if nothing can delay them."""
        self.limits = Limits()
        self.concurrency = max(2, os.cpu_count() or 1)
        self.handler_batch = 100
        """Maximum messages that a thread handles per commit; a crash repeats at most these."""
        self.async_concurrency = 100
        """Maximum coroutine handlers that run at once; a crash repeats at most as many messages."""
        self.shutdown_timeout = timedelta(seconds=20)
        """Time that a stop gives to coroutine handlers before it cancels them."""
        self.check_destinations = True
        """Whether the destination of a delayed message must exist when it is sent."""
        self.install = True
        """Whether the start creates missing queues and tables."""
        self.clock: Clock = SystemClock()
        self.telemetry: Telemetry = Counters()
        self.new_id: Callable[[], str] = random_id
        self._accept_loss = False
        self._send_only = False
        self._transport: Transport | None = None
        self._delayed_delivery: DelayedDeliverySettings | None = None
        self._persistence: Persistence | None = None
        self._features: dict[str, Feature] = {}
        self._handlers: dict[str, list[AnyHandler]] = {}
        self._handled_alone: set[str] = set()
        self._handled_in_lists: set[str] = set()
        self._classes: dict[str, TypedMessageClass] = {}
        self._middleware: list[AnyMiddleware] = []
        self._send_middleware: list[SendMiddleware] = []
        self._with_session: set[str] = set()
        self._hooks: list[CriticalErrorHook] = []
        self._recurring: dict[str, RecurringTimeout] = {}
        self._external: str | None = None
        self._manager_disabled = ManagerDisabled.NOT_SAID

    def freeze(self) -> None:
        """Refuse changes from now on: an endpoint was made, and would not notice them."""
        if not self._is_frozen:
            self._is_frozen = True

    if not TYPE_CHECKING:  # a visible __setattr__ would make type checkers accept every attribute

        def __setattr__(self, name: str, value: object) -> None:
            self._check_open()
            if not name.startswith("_"):
                self._check_setting(name, value)
            super().__setattr__(name, value)

    def _check_setting(self, name: str, value: object) -> None:
        """Raise UnknownSetting for a misspelt setting, and ConfigurationError for a wrong type."""
        if name == "name" and "name" in vars(self):
            raise ConfigurationError(f"endpoint {self.name!r} keeps its name; got {value!r:.80}")
        if name not in _SETTABLE and name in vars(type(self)):
            raise ConfigurationError(f"{name} is called, and not assigned: config.{name}(...)")
        if name not in _SETTABLE:
            known = [*sorted(_SETTABLE), *(one for one in dir(self) if not one.startswith("_"))]
            near = get_close_matches(name, known, n=1)
            raise UnknownSetting(name, "EndpointConfiguration", near[0] if near else None, known)
        kinds = _OTHER_KINDS.get(name) or kinds_of(EndpointSettings).get(name)
        if kinds is not None:
            check_kind(name, value, kinds)

    def _check_open(self) -> None:
        if self._is_frozen:
            raise ConfigurationError(
                f"endpoint {self.name!r} was made of this configuration, and does not see later "
                "changes; add handlers and settings before Endpoint(config)"
            )

    def use_transport(
        self,
        transport: str | Transport,
        *,
        delayed_delivery: DelayedDeliverySettings | None = None,
        **options: Any,
    ) -> None:
        """Use *transport*: a URL, or an object that implements the contract.

        A database's URL means the SQL queue in that database, any other URL a transport of kombu. A
        transport that may lose messages (Redis, memory) needs ``accept_loss=True``. With
        *delayed_delivery* delayed messages are kept in its store, without a timeout manager.
        """
        if not isinstance(delayed_delivery, DelayedDeliverySettings | None):
            raise ConfigurationError(
                "delayed_delivery is a DelayedDeliverySettings with the store, got "
                f"{delayed_delivery!r:.80}"
            )
        self._delayed_delivery = delayed_delivery
        self._accept_loss |= bool(options.get("accept_loss", False))
        if not isinstance(transport, str):
            _check_part(transport, options, "Transport")
            self._transport = transport
            return
        self._transport = transport_from_url(transport, **options)

    def use_persistence(self, persistence: str | Persistence, **options: Any) -> None:
        """Use *persistence*: a URL, a name, or an object that implements the contract."""
        self._accept_loss |= bool(options.get("accept_loss", False))
        if not isinstance(persistence, str):
            _check_part(persistence, options, "Persistence")
            self._persistence = persistence
            return
        self._persistence = persistence_from_url(persistence, **options)

    def accept_loss(self) -> None:
        """Allow transports, stores and server settings that may lose messages."""
        self._accept_loss = True

    def enable_feature(self, feature: Feature) -> None:
        """Enable *feature*; it replaces an enabled feature of the same name."""
        self._check_open()
        if isinstance(feature, type):
            raise ConfigurationError(
                f"enable_feature takes a feature, got the class {feature.__name__}; "
                f"call it: enable_feature({feature.__name__}())"
            )
        try:
            self._features[feature.name] = feature
        except AttributeError:
            raise ConfigurationError(
                f"enable_feature takes a feature, such as TimeoutManager(), got {feature!r:.80}; "
                "names of features are for settings files"
            ) from None

    def disable_feature(self, name: str) -> None:
        """Disable the feature *name*, if it is enabled."""
        self._check_open()
        self._features.pop(name, None)

    def disable_timeout_manager(self, *, force: bool = False) -> None:
        """Use native delayed delivery without a timeout manager.

        For an endpoint that always had native delayed delivery, or whose store is empty. The start
        is refused while timeouts are pending, unless *force* leaves them undelivered.
        """
        self.disable_feature("timeout-manager")
        self._manager_disabled = ManagerDisabled.FORCED if force else ManagerDisabled.ONCE_DRAINED

    def send_only(self) -> None:
        """Make the endpoint send messages and receive none."""
        self._send_only = True

    def use_external_timeout_manager(self, address: str) -> None:
        """Send delayed messages to the timeout manager at *address* (``<endpoint>.Timeouts``)."""
        if not isinstance(address, str) or not address.strip():
            raise ConfigurationError(
                f"the timeout manager's address is a queue name, got {address!r}"
            )
        if self._external is not None and self._external != address:
            raise ConfigurationError(
                "Another feature has already set the timeout manager address "
                f"({self._external!r}); {address!r} would be the second. Leave one out."
            )
        self._external = address

    def define_critical_error_action(self, hook: CriticalErrorHook) -> None:
        """Call *hook* with each critical error; several hooks run in order of registration.

        Raises ConfigurationError for a coroutine function, a generator function, and a function
        that does not take one context.
        """
        self._check_open()
        check_callable(hook, "a critical error hook", ("context",))
        self._hooks.append(hook)

    def add_middleware(self, middleware: "AnyMiddleware") -> None:
        """Call *middleware* around the handlers of each message; the first added is the outermost.

        The function gets the HandlerContext and ``call_next``, which it calls at most once. Without
        the call no handler runs, and the message counts as handled. It runs in the message's
        transaction, and its error is a failure of the message. A coroutine function, which awaits
        ``call_next()``, is for endpoints whose handlers are all coroutine functions.
        """
        self._check_open()
        check_callable(middleware, "a middleware", ("context", "call_next"), may_await=True)
        self._middleware.append(middleware)

    def add_send_middleware(self, middleware: SendMiddleware) -> None:
        """Send what *middleware* returns for each message; the first added sees it first.

        The function gets a ToSend, and returns it or another. All checks of a message follow it. An
        error that it raises is raised by the send.
        """
        self._check_open()
        check_callable(middleware, "a send middleware", ("message",))
        self._send_middleware.append(middleware)

    @overload
    def handler(
        self,
        message_type: str = ANY,
        *,
        batch: Literal[1] | None = None,
        session: Literal[False] | None = None,
    ) -> "Callable[[Registered], Registered]": ...

    @overload
    def handler(
        self,
        message_type: type[Body],
        *,
        batch: Literal[1] | None = None,
        session: Literal[False] | None = None,
    ) -> "RegistersTyped[Body]": ...

    @overload
    def handler(
        self, message_type: str = ANY, *, batch: Literal["list"]
    ) -> "Callable[[RegisteredList], RegisteredList]": ...

    @overload
    def handler(
        self, message_type: type[Body], *, batch: Literal["list"]
    ) -> "Callable[[TypedListHandler[Body]], TypedListHandler[Body]]": ...

    def handler(
        self, message_type: Any = ANY, *, batch: Any = None, session: Literal[False] | None = None
    ) -> Any:
        """Return a decorator that registers a function as a handler of *message_type*.

        The function gets the decoded body and a HandlerContext; a coroutine function gets an
        AsyncHandlerContext. If *message_type* is a class (a dataclass, a model of pydantic, a
        msgspec.Struct) the body is an object of the class.

        With *batch* 1 each message of the type is settled alone, for a handler that ends its
        transaction itself, such as by DDL on MySQL. With *batch* "list" the function gets all
        messages of the type in a batch, as a list, and a BatchContext. With *session* False a
        coroutine function uses no ``context.session``: it runs beside others in each mode.
        """
        if inspect.isroutine(message_type):
            raise ConfigurationError(
                "handler is called with a message type, as in @config.handler('PaymentOverdue'); "
                f"got the function {message_type!r:.80}"
            )

        def register(handler: Any) -> Any:
            self.add_handler(message_type, handler, batch=batch, session=session)
            return handler

        return register

    @overload
    def add_handler(
        self,
        message_type: str,
        handler: "AnyHandler",
        *,
        batch: Literal[1] | None = None,
        session: Literal[False] | None = None,
    ) -> None: ...

    @overload
    def add_handler(
        self,
        message_type: type[Body],
        handler: "AnyTypedHandler[Body]",
        *,
        batch: Literal[1] | None = None,
        session: Literal[False] | None = None,
    ) -> None: ...

    @overload
    def add_handler(
        self, message_type: str, handler: "ListHandler", *, batch: Literal["list"]
    ) -> None: ...

    @overload
    def add_handler(
        self, message_type: type[Body], handler: "TypedListHandler[Body]", *, batch: Literal["list"]
    ) -> None: ...

    def add_handler(
        self,
        message_type: Any,
        handler: Any,
        *,
        batch: Any = None,
        session: Literal[False] | None = None,
    ) -> None:
        """Call *handler* with each message of *message_type*, after the handlers added before it.

        Raises ConfigurationError for a generator function, for a function that does not take a
        message and a context, for a class that no library converts, and for a class whose message
        type has handlers that do not get objects of the class.
        """
        self._check_open()
        found = None
        if not isinstance(message_type, str):
            found = class_of_handler(message_type)
            message_type = found.name
        _check_matches(message_type)
        role = f"a handler of {message_type!r:.80}"
        check_callable(handler, role, ("message", "context"), may_await=True)
        self._check_batch(message_type, handler, batch)
        if found is not None and batch != LIST:
            check_takes_one(handler, found)
        if session is not None and (session or not is_coroutine_function(handler)):
            raise ConfigurationError(
                f"session of {role} is left out, or False for a coroutine function (async def) "
                f"that uses no context.session; got {session!r:.80} with {handler!r:.80}"
            )
        if message_type in self._handlers:
            check_same_class(message_type, self._classes.get(message_type), found)
        if found is not None:
            self._classes[message_type] = found
        self._handlers.setdefault(message_type, []).append(handler)
        if batch == 1:
            self._handled_alone.add(message_type)
        if batch == LIST:
            self._handled_in_lists.add(message_type)
        if session is None:
            self._with_session.add(message_type)

    def _check_batch(self, message_type: str, handler: Any, batch: object) -> None:
        """Raise ConfigurationError unless all handlers of *message_type* have the same *batch*."""
        if batch not in (None, 1, LIST):
            raise ConfigurationError(
                f"batch of a handler is 1, 'list', or left out for handler_batch; got {batch!r:.80}"
            )
        if batch == LIST and is_coroutine_function(handler):
            raise ConfigurationError(
                f"a handler of {message_type!r:.80} with batch='list' is a plain function, got the "
                "coroutine function "
                f"{handler!r:.80}; coroutine functions get one message each, many at once"
            )
        others = message_type in self._handlers
        if others and (batch == LIST) != (message_type in self._handled_in_lists):
            raise ConfigurationError(
                f"a handler of {message_type!r:.80} gets a list and another gets one message; "
                "register all handlers of a message type with batch='list', or none"
            )

    def recurring(
        self,
        name: str,
        message_type: str,
        body: object,
        *,
        every: str | timedelta,
        destination: str | None = None,
        catch_up: "CatchUp | CatchUpName" = "one",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send a message at each occurrence of *every*, once for all processes together.

        *every* is a text, such as ``1 day at 06:00 Europe/Berlin``, or a timedelta; *catch_up* is
        the policy for missed occurrences. Without *destination* the message goes to the endpoint
        itself. Needs TimeoutManager. Raises ConfigurationError for a wrong value or a used *name*.
        """
        from timeoutmgr.recurrence.definition import RecurringTimeout

        self._check_open()
        made = RecurringTimeout(
            name=name,
            message_type=message_type,
            body=body,
            every=every,
            destination=destination,
            catch_up=catch_up,
            headers=headers or {},
        )
        if name in self._recurring:
            raise ConfigurationError(f"two recurring timeouts are called {name!r}; rename one")
        self._recurring[name] = made

    def settings(self) -> EndpointSettings:
        """Return the collected settings, frozen; raise ConfigurationError for a wrong value."""
        if self._is_disabled:
            self._check_disabled()
        if not isinstance(self.clock, Clock):
            raise ConfigurationError(
                f"clock is an object with now and monotonic, got {self.clock!r:.80}"
            )
        if not isinstance(self.telemetry, Telemetry):
            raise ConfigurationError(
                f"telemetry is an object with count and value, got {self.telemetry!r:.80}"
            )
        transport = self._transport or transport_from_url(embedded_url())
        return EndpointSettings(
            name=self.name,
            transport=transport,
            persistence=self._persistence or self._default_persistence(),
            features=(*self._features.values(), *self._enabled_otherwise()),
            handlers={kind: tuple(found) for kind, found in self._handlers.items()}
            | ({} if self.canary is None else {canary.MESSAGE_TYPE: (self._discard,)}),
            handled_alone=frozenset(self._handled_alone),
            handled_in_lists=frozenset(self._handled_in_lists),
            message_classes=dict(self._classes),
            without_session=frozenset(self._handlers.keys() - self._with_session),
            hooks=tuple(self._hooks),
            critical_action=_member(
                CriticalAction, self.critical_error_action, "critical_error_action"
            ),
            transaction_mode=None
            if self.transaction_mode is None
            else _member(TransactionMode, self.transaction_mode, "transaction_mode"),
            accept_loss=self._accept_loss,
            send_only=self._send_only,
            error_queue=self.error_queue,
            external_timeout_manager=self._external,
            recoverability=self.recoverability,
            limits=self.limits.of_endpoint(
                self.name, self.error_queue, InstalledSatellites(transport)
            ),
            concurrency=self.concurrency,
            handler_batch=self.handler_batch,
            async_concurrency=self.async_concurrency,
            shutdown_timeout=self.shutdown_timeout,
            check_destinations=self.check_destinations,
            install=self.install,
            clock=self.clock,
            telemetry=self.telemetry,
            new_id=self.new_id,
            delayed_delivery=self._delayed_delivery,
            manager_disabled=self._manager_disabled,
            recurring=tuple(self._recurring.values()),
            middleware=tuple(self._middleware),
            send_middleware=tuple(self._send_middleware),
            canary=self.canary,
        )

    @property
    def _discard(self) -> "AnyHandler":
        is_awaited = any(map(is_coroutine_function, self._middleware))
        return canary.discard_on_loop if is_awaited else canary.discard

    def _enabled_otherwise(self) -> list[Feature]:
        if self._delayed_delivery is None:
            return []
        part = plugins.load(plugins.PARTS, "delayed-delivery")
        return [cast(Feature, part(self._delayed_delivery))]

    @property
    def is_embedded(self) -> bool:
        """Whether the queues rest in the embedded file, where timeouts may rest unnamed."""
        if self._transport is None:
            return True
        database = self._transport.database
        path = None if database is None else database.path
        return path is not None and path.resolve() == embedded_path().resolve()

    def _default_persistence(self) -> Persistence | None:
        if self._is_disabled and embedded_path().exists():
            return persistence_from_url(embedded_url())
        if "timeout-manager" not in self._features:
            return None
        if self.is_embedded:
            return persistence_from_url(embedded_url())
        if self._send_only or self._external is not None:
            return None  # the feature itself is refused, with its own error
        raise _unnamed(self._transport)

    def _check_disabled(self) -> None:
        if "timeout-manager" in self._features:
            raise ConfigurationError(
                "the timeout manager is both disabled and enabled; leave out "
                "disable_timeout_manager() or the feature"
            )
        if "native-delayed-delivery" not in self._features:
            raise ConfigurationError(
                "disable_timeout_manager is for an endpoint with native delayed delivery; enable "
                "NativeDelayedDelivery, or use disable_feature('timeout-manager')"
            )

    @property
    def _is_disabled(self) -> bool:
        return self._manager_disabled is not ManagerDisabled.NOT_SAID


def embedded_url() -> str:
    """Return the URL of the embedded file."""
    return f"sqlite:///{embedded_path()}"


def embedded_path() -> Path:
    """Return the embedded file, which need not exist."""
    return Path(os.environ.get(DATA) or "timeoutmgr.db")


def _unnamed(transport: Transport | None) -> CombinationRefused:
    assert transport is not None, "the embedded file needs no persistence that is named"
    if transport.database is not None:
        url = transport.database.describe()
    elif transport.capabilities.name == "memory":
        url = "memory"
    else:
        url = "postgresql+psycopg://localhost/timeoutmgr"
    return CombinationRefused(
        f"a timeout manager without a persistence beside {transport.describe()}",
        "its timeouts would rest in a file of each host, and no host would see them all",
        f'Add persistence = "{url}" (or the URL of another database) to the settings file, or '
        f'config.use_persistence("{url}") to the code',
    )


def transport_from_url(url: str, **options: Any) -> Transport:
    """Return the transport for *url*: our SQL queue for a database, otherwise kombu."""
    plain = url.removeprefix("timeoutmgr+")
    scheme = _scheme(plain)
    if plugins.knows(plugins.TRANSPORTS, scheme):
        options.pop("accept_loss", None)
        part = plugins.load(plugins.TRANSPORTS, scheme)
        return cast(Transport, _known_options(part, options)(plain, **options))
    from timeoutmgr.transport.kombu_transport import KombuTransport

    return cast(Transport, _known_options(KombuTransport, options)(url, **options))


def persistence_from_url(url: str, **options: Any) -> Persistence:
    """Return the persistence for *url*, or for a bare name."""
    name = _scheme(url) if "://" in url else url
    if name in _NO_STORE:
        raise UnknownPart(plugins.PERSISTENCE, name, None, plugins.names(plugins.PERSISTENCE))
    part = plugins.load(plugins.PERSISTENCE, name)
    if name == "memory":
        return cast(Persistence, _known_options(part, options)(**options))
    options.pop("accept_loss", None)
    _known_options(part, options)
    return cast(Persistence, part(url, **options))


_NO_STORE: Final = ("oracle",)
"""Databases that no persistence here supports; an error must not suggest a similar name."""


def check_endpoint_name(name: str) -> str:
    """Return *name* if it is a valid endpoint name; otherwise raise ConfigurationError."""
    longest = 199 - len(".TimeoutsDispatcher")
    if not isinstance(name, str) or not 0 < len(name.encode("utf-8", "surrogatepass")) <= longest:
        raise ConfigurationError(
            f"an endpoint's name is 1 to {longest} bytes of UTF-8, got {name!r:.80}"
        )
    if not name.isprintable() or name.startswith("amq.") or is_satellite_queue(name):
        raise ConfigurationError(
            f"an endpoint cannot be called {name!r}: names are printable and belong to neither "
            "the broker (amq.) nor a satellite (.Timeouts, .TimeoutsDispatcher, .timeouts)"
        )
    return name


def _known_options(part: Callable[..., Any], options: Mapping[str, Any]) -> Callable[..., Any]:
    """Return *part*; raise UnknownSetting for an option that *part* does not take."""
    parameters = inspect.signature(part).parameters
    takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    known = sorted(name for name, one in parameters.items() if one.kind is one.KEYWORD_ONLY)
    for key in options:
        if not takes_all and key not in parameters:
            near = get_close_matches(key, known, n=1) or _inside_settings(part, known, key)
            raise UnknownSetting(
                key, f"the options of {part.__name__}", next(iter(near), None), known
            )
    return part


def _inside_settings(part: Callable[..., Any], known: Sequence[str], key: str) -> list[str]:
    """Return how code sets *key*, which a settings file has beside the options of *part*."""
    if "settings" not in known:
        return []
    kinds = get_args(inspect.signature(part, eval_str=True).parameters["settings"].annotation)
    having = [one for one in kinds if is_dataclass(one) and key in {of.name for of in fields(one)}]
    return [f"settings={one.__name__}({key}=...)" for one in having if isinstance(one, type)]


def _scheme(url: str) -> str:
    return url.partition("://")[0].partition("+")[0]


def _check_matches(message_type: str) -> None:
    """Raise ConfigurationError for a message type that no received message can have."""
    read = first_type(message_type)
    if not read:
        raise ConfigurationError(f"a message type is a name, got {message_type!r:.80}")
    if read != message_type:
        raise ConfigurationError(
            f"no message has the type {message_type!r:.80}: a type is read without outer spaces, "
            f"and up to a comma or semicolon; register the handler for {read!r:.80}, or give the "
            "type another name"
        )


Member = TypeVar("Member", TransactionMode, CriticalAction)


def _member(kind: type[Member], value: str, setting: str) -> Member:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(repr(member.value) for member in kind)
        raise ConfigurationError(f"{setting} takes {known}, got {value!r}") from None


def _check_part(given: object, options: Mapping[str, Any], contract: str) -> None:
    """Raise ConfigurationError unless *given* is an object of *contract*, without *options*.

    It may be None, for example from an environment variable that is not set.
    """
    kind = contract.lower()
    if isinstance(given, type) or not hasattr(given, "capabilities"):
        raise ConfigurationError(
            f"use_{kind} takes a URL, or an object of the contract {contract}; got {shown(given)}"
        )
    extra = sorted(set(options) - {"accept_loss"})
    if extra:
        raise ConfigurationError(
            f"options {', '.join(extra)} were given with an object that is a {kind} already; pass "
            "them to its constructor"
        )
