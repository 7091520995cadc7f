"""OpenTelemetry: spans of sends, satellites and handlers, linked across the delay.

Uses only the API; the program provides the SDK. Needs the extra: ``pip install
'timeoutmgr[tracing]'``. ``trace_messages(config)`` is the only change.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from opentelemetry import context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    Tracer,
    TracerProvider,
)
from opentelemetry.util.types import AttributeValue

from timeoutmgr._version import __version__
from timeoutmgr.contracts.callables import is_coroutine_function
from timeoutmgr.endpoint.configuration import EndpointConfiguration
from timeoutmgr.endpoint.handlers import HandlerContext
from timeoutmgr.errors import ConfigurationError, text_of
from timeoutmgr.message import headers
from timeoutmgr.message.instants import Micros, instant_of
from timeoutmgr.message.message import Message
from timeoutmgr.resilience.recovery import delayed_retries
from timeoutmgr.sender.composer import ToSend
from timeoutmgr.telemetry import (
    Addressed,
    Dispatched,
    HasSnapshot,
    ObservesLateness,
    Operation,
    Telemetry,
    count_each_of,
    during_of,
)

logger = logging.getLogger(__name__)

SYSTEM: Final = "timeoutmgr"
NEW_TRACE: Final = "NServiceBus.OpenTelemetry.StartNewTrace"
"""Header with which NServiceBus asks a receiver to begin a trace."""


def trace_messages(
    config: EndpointConfiguration,
    *,
    provider: TracerProvider | None = None,
    join_traces: bool = False,
) -> None:
    """Create a span for each send and each handled message of *config*.

    A send creates a span ``create <destination>``, whose context travels in the message headers:
    ``traceparent``, and whatever else the program propagates. A message that already has a
    ``traceparent`` keeps it. Its handlers run in a span ``process <endpoint>``: after a delay in a
    new trace that is linked to the send, or with *join_traces* in the trace of the send.

    Each batch that the endpoint stores creates a span ``process <endpoint>.Timeouts``, each due
    batch that it sends a span ``send <destination>``, and each batch that it acknowledges a span
    ``settle <queue>``. Each of these begins a trace, with a link to the send of each message.

    Set the telemetry of *config* and register all handlers first; spans of coroutine functions are
    awaited. Raises ConfigurationError if *config* is already traced; and for handlers of lists,
    when the settings are checked.
    """
    settings = config.settings()
    if any(isinstance(each, _Sends) for each in settings.send_middleware):
        raise ConfigurationError(
            f"endpoint {config.name!r} is traced already, and a second trace_messages would double "
            "each span; call it once"
        )
    spans = _Spans(trace.get_tracer(SYSTEM, __version__, provider), config.name)
    config.add_send_middleware(_Sends(spans))
    received = _Handling(spans, config.name, join_traces)
    config.telemetry = _Satellites(config.telemetry, spans, config.name)
    found = [each for every in settings.handlers.values() for each in every]
    awaits = bool(found) and all(map(is_coroutine_function, found))
    config.add_middleware(received.handle_awaited if awaits else received.handle)


@dataclass(slots=True)
class _Spans:
    """Starts and ends the spans of an endpoint; an error of the program's SDK fails no message."""

    tracer: Tracer
    endpoint: str
    has_failed: bool = False

    @contextmanager
    def span(self, name: str, **options: Any) -> Iterator[Span]:
        """Yield a span for the time of the body; if the SDK raises, the span around it goes on."""
        around = trace.get_current_span(options.get("context")).get_span_context()
        span: Span = trace.NonRecordingSpan(around)
        with self.tried():
            span = self.tracer.start_span(name, **options)
        try:
            yield span
        except Exception as error:
            self._note(span, error)
            raise
        finally:
            with self.tried():
                span.end()

    def _note(self, span: Span, error: Exception) -> None:
        """Record *error* in *span*; if the error's text raises, record it without text."""
        name = type(error).__qualname__
        with self.tried():
            span.set_attribute("error.type", name)
            span.set_status(StatusCode.ERROR, f"{name}: {text_of(error)}")
            with suppress(Exception):  # of the text, which the SDK asks for
                span.record_exception(error)

    def propagated(self, given: Mapping[str, str], around: Context) -> Context:
        """Return *around* with the context that the sender propagated in the headers *given*.

        If a propagator raises because of a malformed header, *around* is returned as it is.
        """
        with self.tried():
            return propagate.extract(given, context=around)
        return around

    @contextmanager
    def tried(self) -> Iterator[None]:
        """Log the first error of the block with its traceback, and suppress errors."""
        try:
            yield
        except Exception:
            if not self.has_failed:
                self.has_failed = True
                logger.exception(
                    "tracing of endpoint %.80r fails, messages go on without some of their spans; "
                    "its later errors are not logged",
                    self.endpoint,
                    extra={"event": "tracing_failed", "endpoint": self.endpoint},
                )


@dataclass(frozen=True, slots=True)
class _Sends:
    spans: _Spans

    def __call__(self, message: ToSend) -> ToSend:
        given = message.options.headers
        if "traceparent" in given:
            return message
        attributes = _about("create", str(message.destination))
        if message.options.message_id is not None:
            attributes["messaging.message.id"] = message.options.message_id
        name = f"create {message.destination}"
        carrier = dict(given)
        with (
            self.spans.span(name, kind=SpanKind.PRODUCER, attributes=attributes) as span,
            self.spans.tried(),
        ):
            propagate.inject(carrier, trace.set_span_in_context(span))
        return replace(message, options=replace(message.options, headers=carrier))


@dataclass(frozen=True, slots=True)
class _Handling:
    spans: _Spans
    endpoint: str
    join_traces: bool

    def handle(self, message: HandlerContext, call_next: Callable[[], None]) -> None:
        """Call the handlers in a span."""
        with self._span(message):
            call_next()

    async def handle_awaited(
        self, message: HandlerContext, call_next: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Await the handlers in a span."""
        with self._span(message):
            await call_next()

    @contextmanager
    def _span(self, message: HandlerContext) -> Iterator[Span]:
        given = message.headers
        created = self.spans.propagated(given, context.get_current())
        creation = trace.get_current_span(created).get_span_context()
        is_delayed = headers.RELATED_TO_TIMEOUT in given
        begins = given.get(NEW_TRACE, "").lower() == "true" or (is_delayed and not self.join_traces)
        around = trace.set_span_in_context(trace.INVALID_SPAN, created) if begins else created
        with (
            _attached(around),
            self.spans.span(
                f"process {self.endpoint}",
                kind=SpanKind.CONSUMER,
                attributes=_attributes(self.endpoint, message.message),
                links=[Link(creation)] if begins and creation.is_valid else (),
            ) as span,
            _attached(trace.set_span_in_context(span)),
        ):
            yield span


class _Satellites:
    """A telemetry that creates spans for stores and sends, and passes everything on to *behind*."""

    def __init__(self, behind: Telemetry, spans: _Spans, endpoint: str) -> None:
        self._behind = behind
        self._during_behind = during_of(behind)
        self._count_each_behind = count_each_of(behind)
        self._spans = spans
        self._endpoint = endpoint

    def count(self, event: str, amount: int = 1) -> None:
        """Pass it on."""
        self._behind.count(event, amount)

    def count_each(self, event: str, values: Iterable[str]) -> None:
        """Pass it on if it is counted."""
        self._count_each_behind(event, values)

    def value(self, name: str, value: float) -> None:
        """Pass it on."""
        self._behind.value(name, value)

    def late(self, at: Micros, sent: Iterable[Dispatched]) -> None:
        """Pass it on if it is observed."""
        if isinstance(self._behind, ObservesLateness):
            self._behind.late(at, sent)

    def snapshot(self) -> Mapping[str, float]:
        """Return the snapshot of the telemetry behind, if it has any."""
        return self._behind.snapshot() if isinstance(self._behind, HasSnapshot) else {}

    @contextmanager
    def during(self, operation: Operation, messages: Iterable[Addressed]) -> Iterator[None]:
        """Make the spans of *operation*: one if it stores, otherwise one for each queue."""
        given = list(messages)
        with ExitStack() as stack:
            stack.enter_context(self._during_behind(operation, given))
            if operation is Operation.STORE:
                name, queue = "process", f"{self._endpoint}.Timeouts"
                stored = [message for _, message in given]
                stack.enter_context(self._span(name, queue, SpanKind.CONSUMER, stored))
            elif operation is Operation.CONFIRM:
                for queue, sent in _by_queue(given).items():
                    stack.enter_context(self._span("send", queue, SpanKind.CLIENT, sent))
            elif operation is Operation.SETTLE:
                for queue, settled in _by_queue(given).items():
                    stack.enter_context(self._span("settle", queue, SpanKind.CLIENT, settled))
            yield

    @contextmanager
    def _span(
        self, name: str, queue: str, kind: SpanKind, messages: Sequence[Message]
    ) -> Iterator[None]:
        # Not the current span: the next batch begins before this batch ends.
        with self._spans.span(
            f"{name} {queue}",
            context=Context(),
            kind=kind,
            attributes=_batch_attributes(name, queue, messages),
            links=[Link(each) for each in map(self._creation, messages) if each.is_valid],
        ):
            yield

    def _creation(self, message: Message) -> SpanContext:
        """Return the context in which *message* was created; it is not valid if there is none."""
        created = self._spans.propagated(message.headers, Context())
        return trace.get_current_span(created).get_span_context()


def _by_queue(messages: Iterable[Addressed]) -> Mapping[str, Sequence[Message]]:
    found: defaultdict[str, list[Message]] = defaultdict(list)
    for queue, message in messages:
        found[queue].append(message)
    return found


def _about(operation: str, destination: str) -> dict[str, AttributeValue]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": destination,
    }


def _batch_attributes(
    name: str, queue: str, messages: Sequence[Message]
) -> dict[str, AttributeValue]:
    found = _about(name, queue) | {"messaging.batch.message_count": len(messages)}
    if len(messages) == 1:
        found["messaging.message.id"] = messages[0].id
    return found


@contextmanager
def _attached(around: Context) -> Iterator[None]:
    """Make *around*, with the baggage of the sender, the current context."""
    token = context.attach(around)
    try:
        yield
    finally:
        context.detach(token)


def _attributes(endpoint: str, message: Message) -> dict[str, AttributeValue]:
    given = message.headers
    found = _about("process", endpoint)
    found["messaging.message.id"] = message.id
    found["timeoutmgr.delayed_retries"] = delayed_retries(message)
    conversation = given.get(headers.CONVERSATION_ID)
    if conversation is not None:
        found["messaging.message.conversation_id"] = conversation
    sent, due, dispatched = (
        instant_of(given, name, None)
        for name in (headers.TIME_SENT, headers.DELIVER_AT, headers.DISPATCHED_AT)
    )
    if sent is not None and due is not None:
        found["timeoutmgr.delay"] = (due - sent) / 1_000_000
    if due is not None and dispatched is not None:
        found["timeoutmgr.lateness"] = (dispatched - due) / 1_000_000
    return found
