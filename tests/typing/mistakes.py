"""Mistakes of a user, each on a line that says so; type checkers find these lines alone."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pydantic

from timeoutmgr import BatchContext, Endpoint, EndpointConfiguration, HandlerContext

config = EndpointConfiguration("sales")


@dataclass
class Overdue:
    """A typed message."""

    order: str


class Paid(pydantic.BaseModel):
    """Another typed message."""

    order: str


def lonely(message: dict[str, Any]) -> None:
    """Take no context."""
    print(message)


async def later(message: dict[str, Any], context: HandlerContext) -> AsyncIterator[None]:
    """Send nothing: a call only makes a generator."""
    context.reply("Paid", message)
    yield


def bill(message: dict[str, Any], context: HandlerContext) -> None:
    """Send with mistakes."""
    context.send("billing", "Paid", message, dleay=3)  # mistake: keyword
    context.reply("Paid", message, headers={"attempt": 1})  # mistake: header


def remind(endpoint: Endpoint) -> None:
    """Send with mistakes."""
    endpoint.send("billing", "Bill", {}, delay="5s")  # mistake: delay
    endpoint.send_local("Remind", {}, deliver_at="tomorrow")  # mistake: due time
    endpoint.timeouts.cancel(None)  # mistake: id
    endpoint.timeouts.count(saga="42")  # mistake: keyword of a selection
    endpoint.timeouts.count(due_before="2026-12-24")  # mistake: time of a selection


@config.handler(Overdue)  # mistake: class of the body
def overdue(message: Paid, context: HandlerContext) -> None:
    """Take another message than is announced."""
    context.send("billing", message, dleay=3)  # mistake: keyword of a typed send
    context.send("billing", "Bill")  # mistake: no body


def paid(message: Overdue, context: HandlerContext) -> None:
    """Take a message of a class."""
    context.reply("Paid", message.order)


@config.handler(Overdue, batch="list")  # mistake: one message
def listed(message: Overdue, context: BatchContext) -> None:
    """Take one message of a list."""
    print(message, context)


def all_paid(messages: list[Paid], context: BatchContext) -> None:
    """Take a list."""
    context.reply("Paid", messages[0].order)  # mistake: no message of a list


def typed(endpoint: Endpoint) -> None:
    """Send with mistakes."""
    endpoint.send("billing", Overdue("A7"), delay="5s")  # mistake: delay of a typed send
    endpoint.send_local(object())  # mistake: not a message


config.add_middleware(bill)  # mistake: a handler
config.add_middleware(later)  # mistake: an asynchronous handler
config.add_send_middleware(lonely)  # mistake: not a function of a ToSend
config.add_handler(Paid, paid)  # mistake: class of the body
config.add_handler(Paid, all_paid)  # mistake: a list without batch
config.add_handler(Overdue, all_paid, batch="list")  # mistake: class of the list
config.add_handler("Bill", bill, batch="all")  # mistake: batch
config.transaction_mode = "receive-only"  # mistake: mode
config.add_handler("Bill", lonely)  # mistake: arity
config.add_handler("Bill", later)  # mistake: asynchronous generator
