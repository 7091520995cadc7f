"""The Endpoint: install, start, stop, and send."""

import gc
import logging
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Self, Unpack, overload

from timeoutmgr.contracts import ConflictName, OnConflict
from timeoutmgr.endpoint import installation
from timeoutmgr.endpoint.assembly import AssembledEndpoint, assemble
from timeoutmgr.endpoint.configuration import EndpointConfiguration
from timeoutmgr.endpoint.handlers import NOT_GIVEN, chosen_options
from timeoutmgr.endpoint.runner import Runner
from timeoutmgr.endpoint.timeouts import Timeouts
from timeoutmgr.errors import (
    CombinationRefused,
    ConfigurationError,
    EndpointClosed,
    InvalidMessage,
    Unsupported,
)
from timeoutmgr.message.classes import NO_BODY, TypedMessage, type_and_body
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.labels import Labels
from timeoutmgr.message.routes import TIMEOUTS
from timeoutmgr.message.validation import check_destination
from timeoutmgr.resilience.after_fork import begin_anew_after_fork
from timeoutmgr.resilience.silence import hurrying
from timeoutmgr.sender.bulk import OnSent, send_many, store_many
from timeoutmgr.sender.composer import SendKeywords, SendOptions, Sent, ToSend, TypedSendKeywords
from timeoutmgr.sender.in_transaction import callers_connection, send_inside, time_in, wake_or_wait
from timeoutmgr.telemetry import HasSnapshot
from timeoutmgr.transport.queue_view import count_waiting

if TYPE_CHECKING:
    from timeoutmgr.contracts import DeliveryOptions
    from timeoutmgr.endpoint.recurrence import Recurring
    from timeoutmgr.sender.in_transaction import CallerSession

logger = logging.getLogger(__name__)


class _Run:
    """The runner of an endpoint, with its lock and the event of its end."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.runner: Runner | None = None
        self.latest: Runner | None = None
        """The latest runner, including while it starts or stops."""
        self.stopped = threading.Event()
        begin_anew_after_fork(self)

    def after_fork(self) -> None:
        """Forget the runner, whose threads are the parent's: this process has no run.

        Another thread of the parent may have acquired the locks.
        """
        has_ended = self.runner is not None or self.stopped.is_set()
        self.lock, self.stopped = threading.RLock(), threading.Event()
        self.runner = self.latest = None
        if has_ended:
            self.stopped.set()


class Endpoint:
    """A named participant with an input queue. Thread-safe.

    An endpoint freezes its configuration: later handlers and settings are refused.

    ``with Endpoint(config) as endpoint`` installs missing queues and tables, starts, and stops at
    the end. An endpoint can send before its start.
    """

    def __init__(self, config: EndpointConfiguration) -> None:
        if not isinstance(config, EndpointConfiguration):
            raise ConfigurationError(
                f"an endpoint is made of an EndpointConfiguration, got {config!r:.80}; begin with "
                'config = EndpointConfiguration("sales")'
            )
        self._parts = assemble(config.settings())
        self._outlet = self._outlet_inside = self._parts.outlet
        config.freeze()
        self._run = _Run()
        self._is_closed = False
        self._on_watch: list[Callable[[], None]] = []

    @property
    def name(self) -> str:
        """The endpoint's name, and its input queue's."""
        return self._parts.settings.name

    @property
    def parts(self) -> AssembledEndpoint:
        """The parts of the endpoint, for programs that monitor it; read-only."""
        return self._parts

    @property
    def critical_error(self) -> tuple[str, BaseException] | None:
        """The first critical error, if any."""
        return self._parts.critical.raised

    @property
    def timeouts(self) -> Timeouts:
        """The pending timeouts of this endpoint's own timeout manager."""
        store = self._parts.features.store
        if self._parts.features.delayed is not None:
            raise ConfigurationError(
                f"endpoint {self.name!r} has a delayed message store, which cannot list or change "
                "its messages; use TimeoutManager to list or change timeouts"
            )
        if store is None and self._parts.features.native_delays is not None:
            raise Unsupported(
                "listing, cancelling or rescheduling with native delayed delivery",
                "the broker holds the messages, and reports only their number in each level",
                "See `timeoutmgr status`; for messages to be cancelled, enable TimeoutManager "
                "too and send with cancellable=True and fallback_to_store",
            )
        if store is None:
            raise ConfigurationError(
                f"endpoint {self.name!r} keeps no timeouts itself; enable TimeoutManager here, or "
                "ask the endpoint that manages its timeouts"
            )
        transport, queue = self._parts.settings.transport, self.name + TIMEOUTS
        return Timeouts(
            store,
            self._wake,
            lambda: count_waiting(transport, queue),
            lambda: installation.schema_expected(self._parts),
            self._require_destination,
            self._parts.settings.clock,
        )

    def _require_destination(self, queue: str) -> None:
        """Raise DestinationNotAllowed or Unroutable unless a timeout may go to *queue*."""
        settings = self._parts.settings
        check_destination(queue, settings.limits)
        if settings.check_destinations:
            self._parts.sender.require_queues([queue])

    @property
    def recurring(self) -> "Recurring":
        """The recurring timeouts of this endpoint, including those of its other configurations.

        Raises CombinationRefused if no store here keeps them.
        """
        from timeoutmgr.endpoint.recurrence import RecurringCalls, recurring_of

        calls = RecurringCalls(
            wake=self._wake,
            send=lambda queue, kind, body, options: self._send(queue, kind, body, options, None),
            schema_expected=lambda: installation.schema_expected(self._parts),
        )
        parts = self._parts
        return recurring_of(parts.settings, parts.features, parts.composer, calls)

    def install(self, *, new_marker: bool = False) -> list[str]:
        """Create queues and tables that are missing; return the endpoint's queues.

        With *new_marker* store and broker get a new common marker: for an endpoint that was moved
        to another broker or store on purpose, and that runs in no process.
        """
        return installation.install(self._parts, new_marker=new_marker)

    def purge(self, *, satellites: bool = False) -> Mapping[str, int]:
        """Remove all messages of the input queue; return their number by queue.

        With *satellites* the queues of the satellites are purged too: timeouts that wait to be
        stored are lost. Stored timeouts stay. Raises CombinationRefused while a process of the
        endpoint is alive, this endpoint included. A process that starts at the same moment is not
        seen.
        """
        from timeoutmgr.endpoint.purge import purge

        with self._run.lock:
            if self._run.runner is not None:
                raise CombinationRefused(
                    "a purge in a started fleet", "this endpoint runs", "Purge before the start."
                )
            return purge(self._parts, satellites=satellites)

    def start(self) -> None:
        """Start receiving; idempotent. Raises ConfigurationError or TransportUnavailable."""
        with self._run.lock:
            if self._run.runner is not None and not self._run.runner.is_stopped:
                return
            self._end_runner()  # of a stop that a signal interrupted
            self._run.stopped.clear()
            self._is_closed = False
            try:
                installation.prepare(self._parts)
                self._run.runner = self._started()
            except BaseException:
                self._run.stopped.set()
                raise
            fields = {"event": "endpoint_started", "endpoint": self.name}
            logger.info("endpoint %s runs (%s)", self.name, self._parts.mode.value, extra=fields)
        self._parts.critical.started(self.stop)

    def stop(self) -> None:
        """Stop, and return when all threads have ended.

        Allowed before the start, twice, and in any thread. In a coroutine handler, and in a handler
        while another thread stops the endpoint, it returns at once: the stop waits for the handler.
        """
        self._end(self._stop)

    def close(self) -> None:
        """Stop, and close every connection; each later send raises EndpointClosed.

        Running handlers and hooks end first, and may still send. In a handler it may return at
        once, as ``stop``.
        """
        self._end(self._close)

    def _end(self, end: Callable[[], bool]) -> None:
        coroutines = self._parts.coroutines
        if coroutines is None or not coroutines.is_here():
            with hurrying(self._parts.servers):
                if end():
                    return
        threading.Thread(target=self._end, args=(end,), name="timeoutmgr-stop").start()

    def _close(self) -> bool:
        if not self._stop():
            return False
        self._parts.critical.join(10.0)
        self._is_closed = True
        self._parts.pool.close()
        self._parts.settings.transport.close()
        self._parts.close_storage()
        return True

    def _stop(self) -> bool:
        """Stop; return False, with nothing done, if another thread is at it and waits for this."""
        self._parts.critical.stopped()
        latest = self._run.latest
        if not self._run.lock.acquire(blocking=not (latest and latest.is_here())):
            return False
        try:
            self._end_runner()
        finally:
            self._run.lock.release()
        self._run.stopped.set()
        return True

    def _end_runner(self) -> None:
        """Stop the runner, if any; a KeyboardInterrupt leaves the rest to the next call."""
        if self._run.runner is not None:
            self._run.runner.stop()
            self._run.runner = None
            fields = {"event": "endpoint_stopped", "endpoint": self.name}
            logger.info("endpoint %s is stopped", self.name, extra=fields)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the endpoint is stopped; return False if *timeout* seconds pass before."""
        return self._run.stopped.wait(timeout)

    def run(self) -> None:
        """Start, run until SIGTERM, SIGINT or a critical error stops it, then close.

        For the main thread only. The former signal handlers are restored at the end. During the run
        the garbage collector ignores objects that existed at the start.
        """
        # Not the run's event: this thread may hold its lock when the signal handler runs.
        asked = threading.Event()
        with _on_signals(asked.set), self, lasting_objects():
            while not asked.is_set() and not self._run.stopped.wait(0.2):
                pass

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()  # Python does not call __exit__ now
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @overload
    def send(
        self,
        destination: str,
        message: TypedMessage,
        /,
        *,
        session: "CallerSession | None" = None,
        **given: Unpack[TypedSendKeywords],
    ) -> Sent: ...

    @overload
    def send(
        self,
        destination: str,
        message_type: str,
        body: object,
        options: SendOptions | None = None,
        *,
        session: "CallerSession | None" = None,
        **given: Unpack[SendKeywords],
    ) -> Sent: ...

    def send(
        self,
        destination: str,
        message_type: str | TypedMessage,
        body: object = NO_BODY,
        options: SendOptions | None = None,
        *,
        session: "CallerSession | None" = None,
        delay: timedelta | float | None = NOT_GIVEN,
        deliver_at: datetime | None = NOT_GIVEN,
        saga_id: str | None = NOT_GIVEN,
        headers: Mapping[str, str] = NOT_GIVEN,
        message_id: str | None = NOT_GIVEN,
        content_type: str | None = NOT_GIVEN,
        time_to_be_received: timedelta | None = NOT_GIVEN,
        delivery: "DeliveryOptions | None" = NOT_GIVEN,
        cancellable: bool = NOT_GIVEN,
        on_conflict: OnConflict | ConflictName | None = NOT_GIVEN,
        labels: Labels = NOT_GIVEN,
    ) -> Sent:
        """Send a message, delayed if ``delay`` or ``deliver_at`` is given.

        An object of a dataclass, a model of pydantic or a msgspec.Struct, in place of
        *message_type* and *body*, gives both.

        A ``delay`` counts by the clock of the database that holds the queues, or that *session* is
        in, and otherwise by this host's clock. A keyword overrides the same field of *options*.
        When this returns the message is durable; with *session* it becomes durable with the
        caller's own commit. A *session* is SQLAlchemy's, or a driver's connection (psycopg,
        PyMySQL, mysqlclient, sqlite3) whose transaction is open.

        Raises InvalidMessage (nothing was sent; IdInUse with ``on_conflict="error"``), Unroutable,
        TransportUnavailable, or DeliveryUnknown: then send again with the same ``message_id``.
        Raises SchemaMissing before `timeoutmgr install`, and EndpointClosed after ``close``.
        """
        chosen = chosen_options(options, locals())
        return self._send(destination, message_type, body, chosen, session)

    def _send(
        self,
        destination: str,
        message_type: str | TypedMessage,
        body: object,
        options: SendOptions,
        session: "CallerSession | None",
    ) -> Sent:
        self._check_open()
        if not isinstance(message_type, str) or body is NO_BODY:
            message_type, body = type_and_body(message_type, body)
        return self._send_named(ToSend(destination, message_type, body, options), session)

    def _send_named(self, message: ToSend, session: "CallerSession | None") -> Sent:
        inside = nullcontext() if session is None else callers_connection(self._outlet, session)
        with inside as connection:
            composed = self._parts.composer.compose(
                message.destination,
                message.message_type,
                message.body,
                message.options,
                stored=connection is not None,
                delay_clock=self._parts.sender.now
                if connection is None
                else lambda: time_in(self._outlet_inside, connection),
            )
            with installation.schema_expected(self._parts):
                if connection is not None:
                    return send_inside(self._outlet_inside, composed, connection)
                queue = composed.final_queue if self._parts.settings.check_destinations else None
                self._parts.sender.send(
                    [composed.outgoing], finally_for=[] if queue is None else [queue]
                )
            return composed.sent

    @overload
    def send_local(
        self,
        message: TypedMessage,
        /,
        *,
        session: "CallerSession | None" = None,
        **given: Unpack[TypedSendKeywords],
    ) -> Sent: ...

    @overload
    def send_local(
        self,
        message_type: str,
        body: object,
        options: SendOptions | None = None,
        *,
        session: "CallerSession | None" = None,
        **given: Unpack[SendKeywords],
    ) -> Sent: ...

    def send_local(
        self,
        message_type: str | TypedMessage,
        body: object = NO_BODY,
        options: SendOptions | None = None,
        *,
        session: "CallerSession | None" = None,
        delay: timedelta | float | None = NOT_GIVEN,
        deliver_at: datetime | None = NOT_GIVEN,
        saga_id: str | None = NOT_GIVEN,
        headers: Mapping[str, str] = NOT_GIVEN,
        message_id: str | None = NOT_GIVEN,
        content_type: str | None = NOT_GIVEN,
        time_to_be_received: timedelta | None = NOT_GIVEN,
        delivery: "DeliveryOptions | None" = NOT_GIVEN,
        cancellable: bool = NOT_GIVEN,
        on_conflict: OnConflict | ConflictName | None = NOT_GIVEN,
        labels: Labels = NOT_GIVEN,
    ) -> Sent:
        """Send to this endpoint's own queue; otherwise as ``send``."""
        chosen = chosen_options(options, locals())
        if self._parts.settings.send_only:
            raise InvalidMessage(f"endpoint {self.name!r} is send-only: it has no queue of its own")
        return self._send(self.name, message_type, body, chosen, session)

    def send_many(self, messages: Iterable[ToSend], *, on_sent: OnSent | None = None) -> int:
        """Send many messages, in confirm windows; return how many.

        *messages* is iterated only as far as it is sent. *on_sent* is called with the accepted
        messages of each window, in order: use it to save your position, or the ids for a cancel.
        When this returns all messages are durable.

        Raises BulkInterrupted, which holds the drawn messages that the broker has not confirmed.
        """
        self._check_open()
        return send_many(self._outlet, messages, on_sent)

    def store_many(self, messages: Iterable[ToSend], *, on_sent: OnSent | None = None) -> int:
        """Store many delayed messages, bypassing the queue; return how many.

        For imports: it bypasses ``<endpoint>.Timeouts``, with the same checks, ids and history, at
        the speed of the database's bulk insert. It needs this endpoint's own TimeoutManager, and
        otherwise works like ``send_many``.
        """
        self._check_open()
        return store_many(self._outlet, messages, on_sent)

    def clear_timeouts(self, saga_id: str) -> None:
        """Ask the endpoint's own or external timeout manager to cancel a saga's timeouts.

        The order goes through the manager's queue, and applies to timeouts that were sent before
        it; ``timeouts.cancel_saga`` acts at once. In a handler use ``context.clear_timeouts``,
        which clears nothing if the handler fails.
        """
        self._check_open()
        order = self._parts.composer.clear(saga_id).outgoing()
        with installation.schema_expected(self._parts):
            self._parts.sender.send([order])

    def on_watch(self, action: Callable[[], None]) -> None:
        """Call *action* about every second while the endpoint runs."""
        self._on_watch.append(action)

    @property
    def ended_pumps(self) -> tuple[str, ...]:
        """The queues of pumps that ended by themselves, while a critical error ends nothing."""
        runner = self._run.runner
        return () if runner is None else runner.ended_pumps

    def snapshot(self) -> dict[str, float | str]:
        """Return the counters of this process and the state of its breakers."""
        telemetry = self._parts.settings.telemetry
        counted = telemetry.snapshot() if isinstance(telemetry, HasSnapshot) else {}
        states = self._parts.breakers.states.items()
        return {**counted, **{f"breaker_{name}": state for name, state in states}}

    def _check_open(self) -> None:
        if self._is_closed:
            raise EndpointClosed(self.name)

    def _wake(self, due: Micros) -> None:
        if self._parts.features.manager_address is not None:
            wake_or_wait(self._parts.outlet, due)

    def _started(self) -> Runner:
        runner = self._run.latest = Runner(self._parts, self._watch)
        try:
            runner.start()
        except BaseException:
            runner.stop()
            raise
        return runner

    def _watch(self) -> None:
        for action in self._on_watch:
            action()


@contextmanager
def lasting_objects() -> Iterator[None]:
    """Exempt the present objects from garbage collection, in a process that only runs an endpoint.

    During a drain the interpreter searches all objects for garbage once in some thousand messages.
    The hundred thousand objects of imported modules are never garbage, and their search took an
    eighth of the worker's processor time.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def _on_signals(action: Callable[[], None]) -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: action()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
