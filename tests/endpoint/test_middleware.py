"""Middleware: around the handlers of each message, and before each send."""

from __future__ import annotations

import asyncio
import logging
import queue
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.clock import FakeClock
from tests.support.forks import Forks
from tests.support.makers import a_composer, a_message, a_received
from tests.support.ports import FakeReceiver, FakeTransport
from timeoutmgr import (
    AsyncHandlerContext,
    Endpoint,
    EndpointConfiguration,
    HandlerContext,
    Limits,
    SendOptions,
    ToSend,
)
from timeoutmgr.contracts import TransactionMode
from timeoutmgr.endpoint.assembly import assemble
from timeoutmgr.endpoint.handlers import ANY, HandlerMiddleware, HandlerStep
from timeoutmgr.endpoint.middleware import AsyncCallNext, CallNext, await_through, run_through
from timeoutmgr.errors import (
    ConfigurationError,
    DestinationNotAllowed,
    HandlerFailed,
    InvalidMessage,
)
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.telemetry import Counters
from timeoutmgr.testing.inbox import Inbox
from timeoutmgr.transport.work import Work


class Harness:
    """Handlers of one endpoint in middleware, over a simulated transport; each notes its call."""

    def __init__(self, *middleware: HandlerMiddleware) -> None:
        self.noted: list[str] = []
        self.transport, self.telemetry = FakeTransport("billing"), Counters()
        clock = FakeClock()
        self.step = HandlerStep(
            queue="sales",
            handlers={ANY: [self.noting("first"), self.noting("second")]},
            composer=a_composer(clock),
            clock=clock,
            telemetry=self.telemetry,
            middleware=middleware,
        )

    def noting(self, name: str) -> Callable[[object, HandlerContext], None]:
        def handle(_body: object, context: HandlerContext) -> None:
            self.noted.append(name)
            context.send("billing", name, {})

        return handle

    def handle(self, *ids: str) -> Work:
        batch = [a_received(a_message(each)) for each in ids or ("m1",)]
        session = self.transport.session()
        receiver = FakeReceiver(self.transport, "sales")
        with Work(session, receiver, TransactionMode.RECEIVE_ONLY) as work:
            self.step(batch, work)
        return work


def test_the_first_added_middleware_is_the_outermost_around_all_handlers_of_a_message() -> None:
    def around(name: str) -> HandlerMiddleware:
        def middleware(context: HandlerContext, call_next: CallNext) -> None:
            harness.noted.append(f"{name} {context.message_id}")
            call_next()
            harness.noted.append(f"after {name}")

        return middleware

    harness = Harness(around("outer"), around("inner"))
    harness.handle("m1", "m2")

    each = ["first", "second", "after inner", "after outer"]
    assert harness.noted == ["outer m1", "inner m1", *each, "outer m2", "inner m2", *each]
    assert harness.telemetry.snapshot()["handled"] == 2


def test_an_error_passes_through_middleware_and_fails_the_message() -> None:
    seen: list[str] = []

    @contextmanager
    def scope() -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            seen.append(str(error))
            raise

    def middleware(_context: HandlerContext, call_next: CallNext) -> None:
        with scope():
            call_next()

    def failing(_body: object, context: HandlerContext) -> None:
        context.send("billing", "Lost", {})
        raise ValueError("no")

    harness = Harness(middleware)
    harness.step = replace(harness.step, handlers={ANY: [failing]})

    with pytest.raises(ValueError, match="no"):
        harness.handle()
    assert seen == ["no"]
    assert harness.transport.ids("billing") == []


def test_an_error_of_a_middleware_fails_its_message_alone() -> None:
    def middleware(context: HandlerContext, call_next: CallNext) -> None:
        call_next()
        if context.message_id == "m2":
            raise ValueError("no")

    harness = Harness(middleware)
    work = harness.handle("m1", "m2", "m3")

    assert [received.message.id for received, _error in work.failed] == ["m2"]
    assert len(harness.transport.ids("billing")) == 4


def test_a_message_whose_handlers_are_skipped_counts_as_handled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def duplicate(context: HandlerContext, _call_next: CallNext) -> None:
        context.send("billing", "Seen", {})

    harness = Harness(duplicate)
    with caplog.at_level(logging.DEBUG, "timeoutmgr.endpoint.middleware"):
        harness.handle()

    assert harness.noted == []
    assert len(harness.transport.ids("billing")) == 1
    assert harness.telemetry.snapshot()["handled"] == 1
    [record] = caplog.records
    assert (record.levelname, vars(record)["event"]) == ("DEBUG", "handlers_skipped")


def test_a_middleware_that_calls_next_twice_is_refused() -> None:
    def twice(_context: HandlerContext, call_next: CallNext) -> None:
        call_next()
        call_next()

    harness = Harness(twice)
    with pytest.raises(HandlerFailed, match="called call_next twice"):
        harness.handle()
    assert harness.noted == ["first", "second"], "the handlers were not called again"
    assert harness.transport.ids("billing") == []


def test_a_middleware_that_returns_something_to_run_is_refused() -> None:
    def lazy(_context: HandlerContext, call_next: CallNext) -> Any:
        return (each for each in [call_next])

    with pytest.raises(HandlerFailed, match="returned a generator"):
        Harness(lazy).handle()


async def generator(_context: HandlerContext, _call_next: CallNext) -> AsyncIterator[None]:
    """Run nothing when it is called."""
    yield


async def coroutine(_message: ToSend) -> ToSend:
    """Run nothing when it is called."""
    return _message


def lonely(_context: HandlerContext) -> None:
    """Take no call_next."""


@pytest.mark.parametrize("wrong", [generator, lonely, "shop.ops:tenant"])
def test_a_middleware_that_a_call_would_not_run_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="a middleware"):
        EndpointConfiguration("sales").add_middleware(wrong)


@pytest.mark.parametrize("wrong", [coroutine, "shop.ops:tenant"])
def test_a_send_middleware_that_a_call_would_not_run_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="a send middleware"):
        EndpointConfiguration("sales").add_send_middleware(wrong)


@dataclass(frozen=True)
class Bill:
    order: str


def tenant(message: ToSend) -> ToSend:
    """Add the header of the tenant."""
    options = message.options
    return replace(message, options=replace(options, headers={**options.headers, "tenant": "acme"}))


@pytest.fixture
def config(tmp_path: Path) -> EndpointConfiguration:
    config = EndpointConfiguration("sales")
    config.use_transport(f"sqlite:///{tmp_path / 'sales.db'}")
    config.use_persistence(f"sqlite:///{tmp_path / 'sales.db'}")
    config.enable_feature(TimeoutManager())
    return config


def test_each_send_passes_the_middleware(
    config: EndpointConfiguration,
) -> None:
    seen: list[str] = []

    def count(message: ToSend) -> ToSend:
        seen.append(message.message_type)
        return message

    inbox = Inbox()
    config.add_send_middleware(tenant)
    config.add_send_middleware(count)
    config.add_handler("Told", inbox)

    @config.handler(Bill)
    def bill(_message: Bill, context: HandlerContext) -> None:
        context.send("sales", "Told", 1)
        context.send_local("Told", 2, delay=0.001)
        context.reply("Told", 3)

    with Endpoint(config) as endpoint:
        endpoint.send("sales", Bill("A7"), headers={"own": "1"})
        endpoint.send_local("Told", 4, delay=timedelta(milliseconds=1))
        endpoint.send_many([ToSend("sales", "Told", 5)])
        arrived = inbox.wait_for(5)

    assert sorted(seen) == ["Bill", *["Told"] * 5]
    assert {each.headers["tenant"] for each in arrived} == {"acme"}


def test_send_middleware_runs_in_the_order_of_its_registration(
    config: EndpointConfiguration,
) -> None:
    def named(name: str) -> Callable[[ToSend], ToSend]:
        return lambda message: replace(message, message_type=message.message_type + name)

    inbox = Inbox()
    config.add_handler(ANY, inbox)
    for name in ("a", "b"):
        config.add_send_middleware(named(name))
    with Endpoint(config) as endpoint:
        endpoint.send_local("x", {})
        [arrival] = inbox.wait_for(1)

    assert arrival.headers["NServiceBus.EnclosedMessageTypes"] == "xab"


def test_the_checks_of_a_message_come_after_the_middleware(config: EndpointConfiguration) -> None:
    config.limits = Limits(refused_destinations=("secret",))
    config.add_send_middleware(lambda message: replace(message, destination="secret"))
    endpoint = Endpoint(config)
    with pytest.raises(DestinationNotAllowed):
        endpoint.send("billing", "Bill", {})
    endpoint.close()


@pytest.mark.parametrize("returned", [None, SendOptions()])
def test_a_send_middleware_that_returns_no_message_is_refused(
    config: EndpointConfiguration, returned: Any
) -> None:
    config.add_send_middleware(lambda _message: returned)
    endpoint = Endpoint(config)
    with pytest.raises(InvalidMessage, match="return the ToSend"):
        endpoint.send("billing", "Bill", {})
    endpoint.close()


async def remind(_body: object, _context: AsyncHandlerContext) -> None:
    """Remind on the loop."""


async def awaiting(_context: AsyncHandlerContext, call_next: AsyncCallNext) -> None:
    await call_next()


def calling(_context: HandlerContext, call_next: CallNext) -> None:
    call_next()


@pytest.mark.parametrize(
    ("middleware", "at_once"), [([], True), ([calling], False), ([awaiting, awaiting], True)]
)
def test_plain_middleware_waits_for_coroutine_handlers_and_awaited_middleware_does_not(
    middleware: list[Any], at_once: bool
) -> None:
    config = EndpointConfiguration("sales")
    config.transaction_mode = "receive_only"
    config.add_handler("Remind", remind)
    for each in middleware:
        config.add_middleware(each)
    [handlers] = assemble(config.settings()).satellites

    assert (handlers.consumption.concurrent is not None) is at_once


def plain(_body: object, _context: HandlerContext) -> None:
    """Remind in a thread."""


@pytest.mark.parametrize(
    ("handlers", "middleware"), [([plain], [awaiting]), ([remind], [awaiting, calling])]
)
def test_awaited_middleware_beside_plain_functions_is_refused(
    handlers: list[Any], middleware: list[Any]
) -> None:
    config = EndpointConfiguration("sales")
    for number, each in enumerate(handlers):
        config.add_handler(f"Remind{number}", each)
    for each in middleware:
        config.add_middleware(each)

    with pytest.raises(ConfigurationError, match="beside coroutine functions alone"):
        config.settings()


@dataclass(frozen=True)
class Named:
    message_id: str = "m1"


def awaited(*middleware: Any) -> list[str]:
    """Await *middleware* around a handler; return what was noted."""

    async def handle() -> None:
        await asyncio.sleep(0)
        NOTED.append("handled")

    NOTED.clear()
    asyncio.run(await_through(middleware, Named(), handle))
    return NOTED


NOTED: list[str] = []


@pytest.mark.parametrize("calls", [True, False])
def test_a_child_of_a_middleware_calls_no_handler_and_ends_where_it_leaves_it(calls: bool) -> None:
    def fork(_context: Named, call_next: CallNext) -> None:
        if not forks() or calls:
            call_next()

    async def fork_awaited(_context: Named, call_next: AsyncCallNext) -> None:
        if not forks() or calls:
            await call_next()

    async def handle() -> None:
        forks.refuse_child()

    with Forks() as forks:
        run_through([fork], Named(), forks.refuse_child)
        asyncio.run(await_through([fork_awaited], Named(), handle))

    assert forks.codes() == [0, 0]


def test_the_first_added_awaited_middleware_is_the_outermost() -> None:
    def around(name: str) -> Any:
        async def middleware(_context: Named, call_next: AsyncCallNext) -> None:
            NOTED.append(name)
            await call_next()
            NOTED.append(f"after {name}")

        return middleware

    noted = awaited(around("outer"), around("inner"))

    assert noted == ["outer", "inner", "handled", "after inner", "after outer"]


async def awaiting_twice(_context: Named, call_next: AsyncCallNext) -> None:
    await call_next()
    await call_next()


async def forgetting(_context: Named, call_next: AsyncCallNext) -> None:
    call_next()  # type: ignore[unused-coroutine]  # the mistake


async def not_waiting(_context: Named, call_next: AsyncCallNext) -> None:
    task = asyncio.create_task(call_next())
    await asyncio.sleep(0)
    NOTED.append(f"{task.done()}")


@pytest.mark.parametrize(
    ("middleware", "error", "noted"),
    [
        (awaiting_twice, "called call_next twice", ["handled"]),
        (forgetting, "did not await its call_next", []),
        (not_waiting, "did not await its call_next", ["False", "handled"]),
    ],
)
def test_a_middleware_that_does_not_await_its_call_next_once_fails_its_message(
    middleware: Any, error: str, noted: list[str]
) -> None:
    with pytest.raises(HandlerFailed, match=error):
        awaited(middleware)
    assert noted == NOTED


def test_an_awaited_middleware_may_skip_the_handlers(caplog: pytest.LogCaptureFixture) -> None:
    async def skip(_context: Named, _call_next: AsyncCallNext) -> None:
        pass

    with caplog.at_level(logging.DEBUG, "timeoutmgr.endpoint.middleware"):
        assert awaited(skip) == []
    [record] = caplog.records
    assert vars(record)["event"] == "handlers_skipped"


@pytest.mark.parametrize("mode", ["receive_only", "transaction_scope"])
def test_awaited_middleware_is_around_all_handlers_of_each_message(
    sqlite_url: str, mode: Any
) -> None:
    """Two messages run at once without a transaction, one after the other within."""
    config = EndpointConfiguration("sales")
    config.use_transport(sqlite_url)
    config.transaction_mode = mode
    tenant: ContextVar[str] = ContextVar("tenant")
    inbox: queue.Queue[tuple[str, str]] = queue.Queue()

    async def with_tenant(context: AsyncHandlerContext, call_next: AsyncCallNext) -> None:
        tenant.set(context.headers["tenant"])
        await call_next()
        inbox.put(("left", tenant.get()))

    async def note(_body: object, context: AsyncHandlerContext) -> None:
        await asyncio.sleep(0)
        inbox.put((context.message_type, tenant.get()))

    config.add_middleware(with_tenant)
    config.add_handler("Note", note)
    config.add_handler("Note", note)
    with Endpoint(config) as endpoint:
        for name in ("acme", "beta"):
            endpoint.send_local("Note", {}, headers={"tenant": name})
        noted = [inbox.get(timeout=30) for _ in range(6)]

    for name in ("acme", "beta"):
        mine = [what for what, whose in noted if whose == name]
        assert mine == ["Note", "Note", "left"]
