"""``context.clear_timeouts``: an order that shares the fate of the handler that gave it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.endpoint.test_handlers import Harness, bill
from tests.support.clock import START
from tests.support.makers import SECOND
from timeoutmgr import ToSend
from timeoutmgr.contracts import TransactionMode
from timeoutmgr.endpoint.handlers import HandlerContext
from timeoutmgr.errors import ConfigurationError, InvalidMessage, Unsupported
from timeoutmgr.message import headers
from timeoutmgr.message.instants import to_wire
from timeoutmgr.message.message import Message
from timeoutmgr.message.routes import Clearing, timeout_id

ATOMIC = TransactionMode.SENDS_ATOMIC_WITH_RECEIVE
RECEIVE = TransactionMode.RECEIVE_ONLY
DAY = timedelta(days=1)


def orders(harness: Harness) -> list[Message]:
    """Return the orders to clear that reached the manager."""
    at_manager = harness.transport.messages("sales.Timeouts")
    return [each for each in at_manager if headers.CLEAR_TIMEOUTS in each.headers]


def kept(order: Message) -> list[str]:
    found: list[str] = json.loads(order.body) if order.body else []
    return found


@pytest.mark.behaviour(30)
@pytest.mark.parametrize("mode", [RECEIVE, ATOMIC])
def test_a_clear_leaves_with_the_sends_of_its_handler(mode: TransactionMode) -> None:
    def clear(_body: object, context: HandlerContext) -> None:
        context.send("billing", "Bill", 1)
        context.clear_timeouts("order-7")
        assert orders(harness) == []

    harness = Harness(Bill=[clear])
    harness.handle(bill(), mode)

    [order] = orders(harness)
    assert order.headers[headers.SAGA_ID] == "order-7"
    assert order.headers[headers.TIME_SENT] == to_wire(START)
    together = "send in transaction" if mode is ATOMIC else "send"
    journal = harness.transport.journal
    sends = [line for line in journal if line.startswith("send")]
    assert sends == [f"{together} billing confirmed", f"{together} sales.Timeouts confirmed"]


@pytest.mark.behaviour(30)
@pytest.mark.parametrize("mode", [RECEIVE, ATOMIC])
def test_a_handler_that_fails_clears_nothing(mode: TransactionMode) -> None:
    def clear_and_fail(_body: object, context: HandlerContext) -> None:
        context.clear_timeouts("order-7")
        raise RuntimeError("a bug")

    harness = Harness(Bill=[clear_and_fail])
    with pytest.raises(RuntimeError):
        harness.handle(bill(), mode)

    assert orders(harness) == []


def begin_anew(_body: object, context: HandlerContext) -> None:
    context.send("billing", "Before", 1, delay=DAY, saga_id="order-7", message_id="before")
    context.clear_timeouts("order-7")
    context.send("billing", "After", 1, delay=DAY, saga_id="order-7", message_id="after")
    context.send("billing", "Other", 1, delay=DAY, saga_id="order-8", message_id="other")
    context.send("billing", "At once", 1, saga_id="order-7", message_id="at once")


def test_a_clear_keeps_the_later_sends_of_its_handler() -> None:
    harness = Harness(Bill=[begin_anew])

    harness.handle(bill())

    assert [kept(order) for order in orders(harness)] == [[timeout_id("sales", "after")]]


def test_a_handler_that_runs_again_gives_a_later_order_that_keeps_the_same() -> None:
    def clear_and_remind(_body: object, context: HandlerContext) -> None:
        context.clear_timeouts("order-7")
        context.send("billing", "Reminder", 1, delay=DAY, saga_id="order-7")

    harness = Harness(Bill=[clear_and_remind])
    for _ in range(2):
        harness.handle(bill(time_sent=to_wire(START)))
        harness.clock.advance(1)

    first, again = orders(harness)
    sent = [each.headers[headers.TIME_SENT] for each in (first, again)]
    assert sent == [to_wire(START), to_wire(START + SECOND)]
    assert kept(first) == kept(again) != []
    assert first.id == again.id


@pytest.mark.parametrize("saga", ["a\0b", "a\nb", "x" * 201])
def test_a_malformed_saga_id_is_refused_where_the_handler_gives_it(saga: str) -> None:
    harness = Harness()

    with pytest.raises(InvalidMessage, match="a saga id is printable text of 1 to 200"):
        harness.step.composer.clear(saga)


def test_an_empty_saga_id_is_refused_where_the_handler_gives_it() -> None:
    harness = Harness(Bill=[lambda _body, context: context.clear_timeouts("")])

    with pytest.raises(InvalidMessage, match="Invalid saga id specified"):
        harness.handle(bill())


@pytest.mark.parametrize(
    ("clearing", "error", "sentence"),
    [
        (Clearing(endpoint="sales", is_native=True), Unsupported, "native delayed delivery"),
        (Clearing(endpoint="sales"), ConfigurationError, "nothing to clear"),
        (
            Clearing(endpoint="sales", address="sales.timeouts", is_listed=False),
            ConfigurationError,
            "nothing to clear",
        ),
    ],
)
def test_an_order_that_no_manager_takes_is_refused(
    clearing: Clearing, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        clearing.order("order-7", START, "m1")


def test_a_timeout_whose_saga_middleware_names_is_kept_from_an_earlier_clear() -> None:
    def clear_and_remind(_body: object, context: HandlerContext) -> None:
        context.clear_timeouts("order-7")
        context.send("billing", "Remind", {}, delay=DAY, message_id="after")

    def join_saga(message: ToSend) -> ToSend:
        return replace(message, options=replace(message.options, saga_id="order-7"))

    harness = Harness(Bill=[clear_and_remind])
    composer = replace(harness.step.composer, middleware=[join_saga])
    harness.step = replace(harness.step, composer=composer)
    harness.handle(bill())

    assert [kept(order) for order in orders(harness)] == [[timeout_id("sales", "after")]]
