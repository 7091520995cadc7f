"""Handlers of lists: what is in the list, what is refused, and the program of the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.clock import FakeClock
from tests.support.makers import a_composer, a_message, a_received
from tests.support.ports import FakeReceiver, FakeTransport
from timeoutmgr import BatchContext, EndpointConfiguration, HandlerContext
from timeoutmgr.contracts import TransactionMode
from timeoutmgr.endpoint.list_handlers import ListHandlerStep
from timeoutmgr.errors import ConfigurationError, MessageRejected, StorageUnavailable
from timeoutmgr.message.classes import message_class
from timeoutmgr.message.instants import to_wire
from timeoutmgr.message.message import Received
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.telemetry import Counters
from timeoutmgr.testing import FakeContext, TimeoutKit
from timeoutmgr.transport.batch_progress import LONG_HANDLING, BatchProgress
from timeoutmgr.transport.work import Work


@dataclass(frozen=True)
class Paid:
    order: str


class Harness:
    """Handlers of lists for ``Paid`` and ``Due``, and a handler of single messages for the rest."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.transport = FakeTransport("billing")
        self.doing: Callable[[list[Any], BatchContext], None] = lambda _messages, _context: None
        clock = FakeClock()
        handlers: Any = {"Paid": [self._listed], "Due": [self._listed], "*": [self._single]}
        self.step = ListHandlerStep(
            queue="sales",
            handlers=handlers,
            composer=a_composer(clock),
            clock=clock,
            telemetry=Counters(),
            message_classes={"Paid": message_class(Paid)},
            lists=frozenset({"Paid", "Due"}),
        )

    def work(
        self,
        progress: BatchProgress | None = None,
        mode: TransactionMode = TransactionMode.RECEIVE_ONLY,
    ) -> Work:
        session = self.transport.session()
        return Work(session, FakeReceiver(self.transport, "sales"), mode, progress)

    def handle(self, *batch: Received) -> dict[str, Exception]:
        """Handle *batch*; return the errors of its failed messages."""
        with self.work() as work:
            self.step(batch, work)
        return {received.message.id: error for received, error in work.failed}

    def _listed(self, messages: list[Any], context: BatchContext) -> None:
        self.calls.append(messages)
        self.doing(messages, context)

    def _single(self, message: object, context: HandlerContext) -> None:
        self.calls.append(context.message_id)


def paid(name: str, body: bytes | None = None, /, **given: str) -> Received:
    body = b'{"order": "%s"}' % name.encode() if body is None else body
    return a_received(a_message(name, body, enclosed_message_types="Paid", **given))


def other(name: str, kind: str = "Other") -> Received:
    return a_received(a_message(name, b'"%s"' % name.encode(), enclosed_message_types=kind))


def test_a_list_has_all_messages_of_its_type_in_their_order_after_the_single_messages() -> None:
    harness = Harness()

    harness.handle(paid("A"), other("1"), other("B", "Due"), paid("C"), other("2"), paid("D"))

    assert harness.calls == ["1", "2", [Paid("A"), Paid("C"), Paid("D")], ["B"]]


def test_a_message_that_does_not_fit_is_rejected_and_its_neighbours_are_handled() -> None:
    harness = Harness()

    failed = harness.handle(paid("A"), paid("B", b'{"order": 5}'), paid("C"))

    assert harness.calls == [[Paid("A"), Paid("C")]]
    assert list(failed) == ["B"]
    assert isinstance(failed["B"], MessageRejected)


def test_an_expired_message_is_not_in_the_list() -> None:
    harness = Harness()
    expired = paid("B", time_sent=to_wire(0), time_to_be_received="00:00:01")

    failed = harness.handle(paid("A"), expired)

    assert (harness.calls, failed) == ([[Paid("A")]], {})


def test_a_list_of_no_message_is_no_call() -> None:
    harness = Harness()

    harness.handle(paid("A", b"{"), paid("B", b"{"))

    assert harness.calls == []


def test_an_outage_fails_all_messages_of_the_list_without_another_call() -> None:
    harness = Harness()

    def be_away(_messages: list[Any], _context: BatchContext) -> None:
        raise StorageUnavailable("away")

    harness.doing = be_away
    failed = harness.handle(paid("A"), paid("B"))

    assert (len(harness.calls), list(failed)) == (1, ["A", "B"])


def test_a_send_has_the_same_id_whatever_the_neighbours() -> None:
    harness = Harness()

    def send(messages: list[Any], context: BatchContext) -> None:
        for message, own in zip(messages, context.contexts, strict=True):
            own.send("billing", "Booked", {"order": message.order})

    harness.doing = send
    sent = to_wire(FakeClock().now())
    harness.handle(paid("A", time_sent=sent), paid("B", time_sent=sent))
    together = harness.transport.ids("billing")
    harness.handle(paid("B", time_sent=sent))

    assert harness.transport.ids("billing")[2:] == together[1:]
    assert len(set(together)) == 2


def test_a_send_of_a_list_after_its_handler_is_an_error_for_each_of_its_messages() -> None:
    harness, seen = Harness(), list[BatchContext]()
    harness.doing = lambda _messages, context: seen.append(context)
    harness.handle(paid("A"), paid("B"))

    for context in seen[0].contexts:
        with pytest.raises(RuntimeError, match="handler of this context has ended"):
            context.send("billing", "Booked", {})


def test_messages_behind_a_slow_list_are_given_back_meanwhile() -> None:
    harness, seconds = Harness(), [0.0]
    given: list[Received] = []
    batch, behind = [paid("A"), paid("B")], [other("C")]
    progress = BatchProgress(batch, lambda: seconds[0], behind)

    def release(waiting: Sequence[Received]) -> int:
        given.extend(waiting)
        return len(waiting)

    def be_slow(_messages: list[Any], _context: BatchContext) -> None:
        seconds[0] += LONG_HANDLING
        progress.give_back(release)

    harness.doing = be_slow
    with harness.work(progress) as work:
        harness.step(batch, work)

    assert given == behind


def test_a_list_whose_turns_end_early_has_the_messages_that_were_begun() -> None:
    harness = Harness()
    batch = [paid("A"), paid("B"), paid("C")]
    ticks = iter(range(100))
    progress = BatchProgress(batch, lambda: float(next(ticks)))

    with harness.work(progress) as work:
        harness.step(batch, work)

    assert harness.calls == [[Paid("A")]]
    assert [each.message.id for each in progress.begun] == ["A"]


def many(_messages: list[Any], _context: BatchContext) -> None:
    """Take a list."""


def one(_message: Any, _context: HandlerContext) -> None:
    """Take one message."""


async def coroutine(_messages: Any, _context: Any) -> None:
    """Take what there is, on a loop."""


def untold(_messages: list[Paid], _context: BatchContext) -> None:
    """Take a list, registered without saying so."""


@pytest.mark.parametrize(
    ("register", "error"),
    [
        (lambda config: config.add_handler("Paid", coroutine, batch="list"), "plain function"),
        (lambda config: config.add_handler("Paid", one, batch="lists"), "batch of a handler"),
        (lambda config: config.add_handler(Paid, untold), "batch='list'"),
        (
            lambda config: (
                config.add_handler("Paid", one),
                config.add_handler("Paid", many, batch="list"),
            ),
            "gets a list and another gets one",
        ),
        (
            lambda config: (
                config.add_handler("Paid", many, batch="list"),
                config.add_handler("Paid", one, batch=1),
            ),
            "gets a list and another gets one",
        ),
        (
            lambda config: (
                config.add_handler("Paid", many, batch="list"),
                config.add_middleware(lambda _context, call_next: call_next()),
                config.settings(),
            ),
            "middleware runs around",
        ),
    ],
)
def test_a_handler_that_cannot_get_lists_is_refused_at_the_door(
    register: Callable[[Any], None], error: str
) -> None:
    with pytest.raises(ConfigurationError, match=error):
        register(EndpointConfiguration("sales"))


def test_a_testing_kit_and_fake_contexts_call_a_handler_of_lists() -> None:
    config = EndpointConfiguration("sales")
    config.enable_feature(TimeoutManager())

    @config.handler(Paid, batch="list")
    def book(messages: list[Paid], context: BatchContext) -> None:
        for message, own in zip(messages, context.contexts, strict=True):
            own.send("billing", "Booked", {"order": message.order})

    with closing(TimeoutKit(config)) as kit:
        kit.send_local(Paid("A7"))
        kit.drain()
        assert [one.body for one in kit.sent(destination="billing")] == [{"order": "A7"}]

    contexts = [FakeContext("Paid", {"order": name}) for name in ("A", "B")]
    book([Paid("A"), Paid("B")], BatchContext(contexts))
    assert [one.body for fake in contexts for one in fake.sent] == [{"order": "A"}, {"order": "B"}]
