"""Spans across the delay: the real API and SDK, and real steps of the product."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from opentelemetry import baggage, propagate, trace
from opentelemetry import context as otel_context
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace import Tracer as SdkTracer
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, StatusCode

from tests.deadletter.scene import Scene
from tests.deadletter.test_expiry import DEAD
from tests.support.unprintable import Unprintable
from timeoutmgr import (
    DelayedDeliverySettings,
    EndpointConfiguration,
    HandlerContext,
    RecoverabilitySettings,
)
from timeoutmgr.contrib.opentelemetry import NEW_TRACE, trace_messages
from timeoutmgr.endpoint.endpoint import Endpoint
from timeoutmgr.errors import ConfigurationError, TransportUnavailable
from timeoutmgr.message.message import Message
from timeoutmgr.native import NativeDelayedDelivery
from timeoutmgr.persistence import SqlDelayedMessageStore
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.telemetry import ObservesOperations, Operation
from timeoutmgr.testing import Inbox, TimeoutKit

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


class Traced:
    """An endpoint whose spans a test reads."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.config = EndpointConfiguration("shop")
        self.config.recoverability = RecoverabilitySettings(
            immediate=1, delayed=1, increase=timedelta(seconds=10)
        )
        self.config.enable_feature(TimeoutManager())
        self.handled: list[HandlerContext] = []

    def kit(self, **options: Any) -> TimeoutKit:
        self.config.add_handler("Hello", self.note)
        trace_messages(self.config, provider=self.provider, **options)
        return TimeoutKit(self.config, raises=False)

    def note(self, _message: Any, context: HandlerContext) -> None:
        self.handled.append(context)

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]


def trace_id(span: ReadableSpan) -> int:
    assert span.context is not None
    found: int = span.context.trace_id
    return found


def place_of(context: SpanContext | None) -> tuple[int, int]:
    """Return the trace and the span, wherever they came from."""
    assert context is not None
    return context.trace_id, context.span_id


def test_a_delayed_message_is_handled_in_a_new_trace_with_a_link_to_its_send() -> None:
    traced = Traced()
    kit = traced.kit()
    with traced.provider.get_tracer("test").start_as_current_span("request"):
        kit.send_local("Hello", 1, delay=timedelta(days=14), message_id="m1")
    kit.advance(days=14)

    [sent], [handled], [request] = map(traced.spans, ("create shop", "process shop", "request"))
    assert trace_id(sent) == trace_id(request)
    assert (sent.kind, handled.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert handled.parent is None
    assert trace_id(handled) != trace_id(sent)
    [link] = handled.links
    assert place_of(link.context) == place_of(sent.context)
    assert handled.attributes is not None
    assert handled.attributes["messaging.message.id"] == "m1"
    assert handled.attributes["messaging.system"] == "timeoutmgr"
    assert handled.attributes["timeoutmgr.delay"] == 14 * 86_400
    assert handled.attributes["timeoutmgr.lateness"] == 0.0
    assert handled.attributes["timeoutmgr.delayed_retries"] == 0


@pytest.mark.parametrize("delay", [None, timedelta(seconds=5)])
def test_a_message_is_handled_in_the_trace_of_its_send_if_there_is_no_delay_or_if_asked(
    delay: timedelta | None,
) -> None:
    traced = Traced()
    kit = traced.kit(join_traces=delay is not None)
    kit.send_local("Hello", 1, delay=delay)
    kit.advance(seconds=5)

    [sent], [handled] = map(traced.spans, ("create shop", "process shop"))
    assert place_of(handled.parent) == place_of(sent.context)
    assert not handled.links


def test_a_send_of_a_handler_is_a_child_of_its_span() -> None:
    traced = Traced()

    @traced.config.handler("First")
    def first(message: Any, context: HandlerContext) -> None:
        context.send_local("Hello", message, delay=1)

    kit = traced.kit()
    kit.send_local("First", 1)
    kit.advance(seconds=1)

    process_first, process_hello = traced.spans("process shop")
    assert traced.spans("create shop")[1].parent == process_first.context
    assert process_hello.links[0].context.trace_id == trace_id(process_first)


def test_traceparent_survives_store_and_delayed_retry_and_a_failure_is_an_error() -> None:
    traced = Traced()

    @traced.config.handler("Fragile")
    def fragile(_message: Any, context: HandlerContext) -> None:
        traced.note(_message, context)
        if len(traced.handled) == 1:
            raise ValueError("not yet")

    kit = traced.kit()
    given = {"traceparent": PARENT, "tracestate": "vendor=1", "baggage": "tenant=acme"}
    kit.send_local("Fragile", 1, delay=timedelta(seconds=5), headers=given)
    kit.advance(minutes=1)

    assert traced.spans("create shop") == []  # the message had a context of its own
    failed, succeeded = traced.spans("process shop")
    assert [trace_id_of_link(span) for span in (failed, succeeded)] == [TRACE, TRACE]
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.attributes is not None
    assert failed.attributes["error.type"] == "ValueError"
    assert succeeded.attributes is not None
    assert succeeded.attributes["timeoutmgr.delayed_retries"] == 1
    for context in traced.handled:
        assert {name: context.headers[name] for name in given} == given


def trace_id_of_link(span: ReadableSpan) -> str:
    [link] = span.links
    return trace.format_trace_id(link.context.trace_id)


def test_traceparent_is_in_the_copy_of_the_error_queue() -> None:
    traced = Traced()

    @traced.config.handler("Broken")
    def broken(_message: Any, _context: HandlerContext) -> None:
        raise ValueError("never")

    kit = traced.kit()
    kit.send_local("Broken", 1, delay=timedelta(seconds=5), headers={"traceparent": PARENT})
    kit.advance(minutes=1)

    [failure] = kit.errors
    assert failure.message.headers["traceparent"] == PARENT


def test_nservicebus_request_for_a_new_trace_is_honoured() -> None:
    traced = Traced()
    kit = traced.kit()
    kit.send_local("Hello", 1, headers={"traceparent": PARENT, NEW_TRACE: "True"})
    kit.drain()

    [handled] = traced.spans("process shop")
    assert handled.parent is None
    assert trace_id_of_link(handled) == TRACE


def test_baggage_reaches_the_handler_across_the_delay() -> None:
    traced = Traced()
    seen: list[object] = []

    @traced.config.handler("Priced")
    def priced(_message: Any, _context: HandlerContext) -> None:
        seen.append(baggage.get_baggage("tenant"))

    kit = traced.kit()
    token = otel_context.attach(baggage.set_baggage("tenant", "acme"))
    try:
        kit.send_local("Priced", 1, delay=timedelta(seconds=5))
    finally:
        otel_context.detach(token)
    kit.advance(seconds=5)

    assert seen == ["acme"]


def test_a_header_that_no_tracer_wrote_fails_no_message() -> None:
    traced = Traced()
    kit = traced.kit()
    kit.send_local("Hello", 1, delay=1, headers={"traceparent": "nonsense"})
    kit.advance(seconds=1)

    [handled] = traced.spans("process shop")
    assert not handled.links
    assert len(traced.handled) == 1


def test_a_header_of_which_a_propagator_raises_fails_no_message(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(propagate, "extract", _extract_by_jaeger)
    traced = Traced()
    kit = traced.kit()
    for delay in (None, timedelta(seconds=5)):
        kit.send_local("Hello", 1, delay=delay, headers={"uber-trace-id": "no:number:in:it"})
    kit.advance(seconds=5)

    assert len(traced.handled) == 2
    assert kit.errors == []
    [logged] = [one for one in caplog.records if "tracing" in one.getMessage()]
    assert logged.exc_info is not None
    assert isinstance(logged.exc_info[1], ValueError)


def _extract_by_jaeger(carrier: Mapping[str, str], context: otel_context.Context) -> Any:
    """As ``JaegerPropagator`` of OpenTelemetry reads it, which raises for other characters."""
    trace_id, _span, _parent, _flags = carrier.get("uber-trace-id", "1:1:1:1").split(":")
    int(trace_id, 16)
    return context


class UnsettableSpan(trace.NonRecordingSpan):
    """A span of another SDK, which refuses each status."""

    def set_status(self, *_given: Any, **_options: Any) -> None:
        raise OSError("no status")


def test_a_span_that_refuses_a_status_leaves_the_error_of_a_batch_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    traced = Traced()
    span = UnsettableSpan(trace.INVALID_SPAN_CONTEXT)
    monkeypatch.setattr(SdkTracer, "start_span", lambda *_given, **_options: span)
    traced.kit()
    telemetry = traced.config.telemetry
    assert isinstance(telemetry, ObservesOperations)

    with (
        pytest.raises(TransportUnavailable),
        telemetry.during(Operation.CONFIRM, [("shop", Message(id="a"))]),
    ):
        raise TransportUnavailable("away")


def test_coroutine_handlers_run_in_their_spans() -> None:
    traced = Traced()
    current: list[int] = []

    @traced.config.handler("Awaited")
    async def awaited(_message: Any, _context: Any) -> None:
        current.append(trace.get_current_span().get_span_context().span_id)

    trace_messages(traced.config, provider=traced.provider)
    kit = TimeoutKit(traced.config, raises=False)
    kit.send_local("Awaited", 1, delay=1)
    kit.advance(seconds=1)

    [handled] = traced.spans("process shop")
    assert handled.context is not None
    assert current == [handled.context.span_id]


def test_a_batch_that_is_stored_and_a_batch_that_is_sent_are_linked_to_the_send() -> None:
    traced = Traced()
    kit = traced.kit()
    with traced.provider.get_tracer("test").start_as_current_span("request"):
        kit.send_local("Hello", 1, delay=timedelta(days=14), message_id="m1")
    kit.advance(days=14)

    [created] = traced.spans("create shop")
    [stored], [sent] = traced.spans("process shop.Timeouts"), traced.spans("send shop")
    assert (stored.kind, sent.kind) == (SpanKind.CONSUMER, SpanKind.CLIENT)
    assert len({trace_id(span) for span in (created, stored, sent)}) == 3
    for span in (stored, sent):
        assert span.parent is None
        assert [place_of(link.context) for link in span.links] == [place_of(created.context)]
        assert span.attributes is not None
        assert span.attributes["messaging.message.id"] == "m1"
        assert span.attributes["messaging.batch.message_count"] == 1


def test_each_batch_that_is_acknowledged_makes_a_span_with_a_link_to_the_send() -> None:
    traced = Traced()
    kit = traced.kit()
    kit.send_local("Hello", 1, delay=timedelta(days=14))
    kit.advance(days=14)

    [created] = traced.spans("create shop")
    for queue in ("shop.Timeouts", "shop"):
        [settled] = traced.spans(f"settle {queue}")
        assert (settled.kind, settled.parent) == (SpanKind.CLIENT, None)
        assert [place_of(link.context) for link in settled.links] == [place_of(created.context)]
        assert settled.attributes is not None
        assert settled.attributes["messaging.operation.type"] == "settle"


def test_a_batch_makes_a_span_for_each_destination_with_a_link_for_each_traced_message() -> None:
    traced = Traced()
    traced.kit()
    telemetry = traced.config.telemetry
    assert isinstance(telemetry, ObservesOperations)
    batch = [
        ("billing", Message(id="a", headers={"traceparent": PARENT})),
        ("shipping", Message(id="b")),
        ("billing", Message(id="c", headers={"traceparent": PARENT})),
    ]

    with (
        pytest.raises(TransportUnavailable),
        telemetry.during(Operation.CONFIRM, batch),
        telemetry.during(Operation.HANDLER, batch),  # has a span of its own
    ):
        raise TransportUnavailable("the broker is away")

    shipping, billing = traced.exporter.get_finished_spans()
    assert (billing.name, shipping.name) == ("send billing", "send shipping")
    assert [len(span.links) for span in (billing, shipping)] == [2, 0]
    for span in (billing, shipping):
        assert span.status.status_code is StatusCode.ERROR
        assert span.attributes is not None
        assert span.attributes["error.type"] == "TransportUnavailable"


class Broken(SpanProcessor):
    """A processor of the program's own, whose collector is away."""

    def __init__(self, step: str) -> None:
        setattr(self, step, self.fail)

    def fail(self, *_given: Any, **_options: Any) -> None:
        raise OSError("no collector")


@pytest.mark.parametrize("step", ["on_start", "on_end"])
def test_a_span_processor_that_raises_fails_no_message_and_is_logged_once(
    step: str, caplog: pytest.LogCaptureFixture
) -> None:
    traced = Traced()
    traced.provider.add_span_processor(Broken(step))
    kit = traced.kit()
    context = otel_context.attach(propagate.extract({"traceparent": PARENT}))
    for delay in (None, timedelta(seconds=5)):
        kit.send_local("Hello", 1, delay=delay)
    otel_context.detach(context)
    kit.advance(timedelta(seconds=5))

    assert [one.headers["traceparent"][3:35] for one in traced.handled] == [TRACE, TRACE]
    [logged] = [one for one in caplog.records if "tracing" in one.getMessage()]
    assert logged.exc_info is not None
    assert isinstance(logged.exc_info[1], OSError)


def test_an_error_whose_text_raises_ends_a_handler_and_a_batch_as_itself() -> None:
    traced = Traced()

    @traced.config.handler("Broken")
    def broken(_message: Any, _context: HandlerContext) -> None:
        raise Unprintable

    kit = traced.kit()
    kit.send_local("Broken", 1)
    kit.drain()
    telemetry = traced.config.telemetry
    assert isinstance(telemetry, ObservesOperations)
    with (
        pytest.raises(Unprintable),
        telemetry.during(Operation.CONFIRM, [("shop", Message(id="a"))]),
    ):
        raise Unprintable

    for span in (traced.spans("process shop")[0], traced.spans("send shop")[-1]):
        assert span.status.status_code is StatusCode.ERROR
        assert span.status.description == "Unprintable: <Unprintable: its text raised RuntimeError>"
        assert span.attributes is not None
        assert span.attributes["error.type"] == "Unprintable"


def test_an_endpoint_is_traced_once() -> None:
    traced = Traced()
    trace_messages(traced.config, provider=traced.provider)

    with pytest.raises(ConfigurationError, match="'shop' is traced already"):
        trace_messages(traced.config, provider=traced.provider)


def test_the_telemetry_of_a_traced_endpoint_goes_on_counting() -> None:
    traced = Traced()
    kit = traced.kit()
    kit.send_local("Hello", 1, delay=1)
    kit.advance(seconds=1)

    counted = kit.endpoint.snapshot()

    assert (counted["timeouts_stored"], counted["handled"]) == (1, 1)


def test_traceparent_survives_a_new_due_time() -> None:
    traced = Traced()
    kit = traced.kit()
    kit.send_local("Hello", 1, delay=timedelta(hours=1), headers={"traceparent": PARENT})
    kit.drain()
    timeouts = kit.endpoint.timeouts
    [stored] = timeouts.list()
    timeouts.reschedule(stored.id, delay=timedelta(hours=2))
    kit.advance(hours=2)

    [context] = traced.handled
    assert context.headers["traceparent"] == PARENT


def test_traceparent_is_in_a_dead_letter(sqlite_url: str, unique: str) -> None:
    with ExitStack() as stack:
        scene = Scene(sqlite_url, stack)
        scene.transport.install()
        sales = scene.endpoint(unique, f"{unique}-n1", {})
        sales.send(
            "nowhere",
            "Hello",
            1,
            delay=timedelta(milliseconds=50),
            headers={"traceparent": PARENT},
            delivery=DEAD,
        )
        [copy] = scene.until_dead(f"{unique}-n1")

    assert copy.message.headers["traceparent"] == PARENT


def _stored(config: EndpointConfiguration, url: str) -> None:
    config.use_transport(url)
    config.use_persistence(url)
    config.enable_feature(TimeoutManager())


def _delayed(config: EndpointConfiguration, url: str) -> None:
    store = SqlDelayedMessageStore(url)
    config.use_transport(url, delayed_delivery=DelayedDeliverySettings(store))


def _native(config: EndpointConfiguration, url: str) -> None:
    config.use_transport(url)
    config.enable_feature(NativeDelayedDelivery())


@pytest.mark.parametrize(
    ("place", "configure"),
    [
        pytest.param("postgres_url", _stored, id="moved in PostgreSQL"),
        pytest.param("sqlite_url", _stored, id="stored in SQLite"),
        pytest.param("sqlite_url", _delayed, id="delayed message store"),
        pytest.param("rabbitmq_url", _native, id="delay levels of RabbitMQ"),
    ],
)
def test_traceparent_survives_each_way_of_a_delay(
    request: pytest.FixtureRequest,
    unique: str,
    place: str,
    configure: Callable[[EndpointConfiguration, str], None],
) -> None:
    config, inbox, traced = EndpointConfiguration(unique), Inbox(), Traced()
    configure(config, request.getfixturevalue(place))
    config.add_handler("Hello", inbox)
    trace_messages(config, provider=traced.provider)
    with Endpoint(config) as endpoint:
        endpoint.send_local("Hello", 1, delay=timedelta(milliseconds=50))
        [arrived] = inbox.wait_for(1)

    [sent] = traced.spans(f"create {unique}")
    assert arrived.headers["traceparent"].split("-")[1] == trace.format_trace_id(trace_id(sent))
