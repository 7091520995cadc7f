"""Eight mistakes of a user, each on a line that says so; type checkers find these lines alone."""

from collections.abc import AsyncIterator
from typing import Any

from timeoutmgr import Endpoint, EndpointConfiguration, HandlerContext

config = EndpointConfiguration("sales")


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


config.transaction_mode = "receive-only"  # mistake: mode
config.add_handler("Bill", lonely)  # mistake: arity
config.add_handler("Bill", later)  # mistake: asynchronous generator
