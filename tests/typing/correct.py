"""A program as a user writes it; type checkers find no mistake in it."""

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import msgspec
import pydantic
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, scoped_session

from timeoutmgr import (
    AsyncEndpoint,
    AsyncHandlerContext,
    BatchContext,
    CancelResult,
    CriticalErrorContext,
    DriverTransaction,
    Endpoint,
    EndpointConfiguration,
    HandlerContext,
    Limits,
    OnConflict,
    RecoverabilitySettings,
    SendOptions,
    Sent,
    ToSend,
    TransactionMode,
)
from timeoutmgr.endpoint.middleware import AsyncCallNext
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.testing import FakeContext, TimeoutKit

config = EndpointConfiguration("sales")
config.use_transport("sqlite:///sales.db", accept_loss=False)
config.use_persistence(SqlPersistence("sqlite:///sales.db"))
config.enable_feature(TimeoutManager(chunk=100))
config.transaction_mode = TransactionMode.TRANSACTION_SCOPE
config.transaction_mode = "receive_only"
config.limits = Limits(max_delay=timedelta(days=400))
config.recoverability = RecoverabilitySettings(immediate=2, delayed=1)


@config.handler("Bill")
def bill(message: dict[str, Any], context: HandlerContext) -> None:
    """Answer, remind, and forget older reminders."""
    context.clear_timeouts(message["order"])
    context.reply("Paid", {"order": message["order"]})
    context.send_local("Remind", message, delay=90, saga_id=message["order"])
    if context.delivery_count > 1 and context.saga_id is not None:
        context.send("audit", "Again", message, headers={"saga": context.saga_id})


@config.handler("Fetch", session=False)
async def fetch(message: dict[str, Any], context: HandlerContext) -> None:
    """Answer from a coroutine, which needs no session."""
    context.reply("Fetched", message)


@config.handler("Book")
async def book(message: dict[str, Any], context: AsyncHandlerContext) -> Sent:
    """Book in the transaction of the message."""
    await context.session.execute(text("INSERT INTO bookings VALUES (:id)"), message)
    return context.send_local("Booked", message, delay=5)


class Reminders:
    """Handlers that are methods."""

    def remind(self, message: object, context: HandlerContext) -> Sent:
        """Remind once more a day later."""
        return context.send_local("Remind", message, SendOptions(delay=5), delay=timedelta(days=1))


@dataclass(frozen=True)
class Overdue:
    """A typed message under a message type of its own."""

    message_type: ClassVar[str] = "billing.Overdue"
    order: str


class Paid(pydantic.BaseModel):
    """A typed message that pydantic converts."""

    order: str


class Shipped(msgspec.Struct):
    """A typed message that msgspec converts."""

    order: str


@config.handler(Overdue)
def overdue(message: Overdue, context: HandlerContext) -> None:
    """Send typed messages in each way that there is."""
    context.send("billing", Paid(order=message.order), delay=timedelta(days=1))
    context.send_local(Shipped(order=message.order), saga_id=message.order)
    context.reply(message, options=SendOptions(delay=5), message_id="reply")


@config.handler(Paid, batch=1)
def paid(message: Paid, context: HandlerContext) -> Sent:
    """Answer with the same."""
    return context.reply(message)


def any_struct(message: msgspec.Struct, _context: HandlerContext) -> None:
    """Take an object of each class of its kind."""
    print(message)


config.add_handler(Shipped, any_struct)


@dataclass(frozen=True)
class Reading:
    """A typed message that comes in lists."""

    celsius: int


@config.handler(Reading, batch="list")
def store(messages: list[Reading], context: BatchContext) -> None:
    """Write all, and send for one of them."""
    context.session.execute(text("INSERT INTO readings VALUES (:c)"), [{"c": messages[0].celsius}])
    context.contexts[0].send("billing", Paid(order=context.contexts[0].message_id))


@config.handler("Raw", batch="list")
def store_raw(messages: list[dict[str, Any]], context: BatchContext) -> None:
    """Take plain values."""
    print(messages, [own.message_type for own in context.contexts])


config.add_handler(Reading, store, batch="list")


def with_tenant(context: HandlerContext, call_next: Callable[[], None]) -> None:
    """Call the handlers of a known tenant."""
    if "tenant" in context.headers:
        call_next()


def add_tenant(message: ToSend) -> ToSend:
    """Add a header."""
    options = replace(message.options, headers={**message.options.headers, "tenant": "acme"})
    return replace(message, options=options)


async def with_tenant_awaited(context: AsyncHandlerContext, call_next: AsyncCallNext) -> None:
    """Await the handlers of a known tenant, with the session of the message."""
    await context.session.execute(text("SELECT 1"))
    await call_next()


config.add_middleware(with_tenant)
EndpointConfiguration("billing").add_middleware(with_tenant_awaited)
config.add_send_middleware(add_tenant)


def remind_typed(endpoint: Endpoint, orders: list[str], session: Session) -> None:
    """Send typed messages in each way that an endpoint has."""
    endpoint.send("billing", Overdue("A7"), delay=timedelta(hours=1), session=session)
    endpoint.send_local(Paid(order="A7"), options=SendOptions(delay=5), headers={"tenant": "a"})
    endpoint.send_many(ToSend.of("billing", Overdue(order)) for order in orders)


def stopped(context: CriticalErrorContext) -> None:
    """Print the error by which the endpoint ends."""
    print(context.error)


config.add_handler("Remind", Reminders().remind)
config.recurring("report", "Ping", {}, every="1 day at 06:00 Europe/Berlin", catch_up="all")
config.add_handler("Ping", lambda _message, _context: print("ping"))
config.define_critical_error_action(stopped)


def in_transactions(
    endpoint: Endpoint, scoped: scoped_session[Session], plain: sqlite3.Connection
) -> None:
    """Send in transactions of a scoped session, and of a driver's own connection."""
    endpoint.send_local("Bill", {}, session=scoped)
    endpoint.send_local("Bill", {}, session=plain)
    calls: list[Callable[[], None]] = []
    whole = DriverTransaction(connection=plain, after_commit=calls.append)
    endpoint.send_local("Bill", {}, session=whole)


def remind(endpoint: Endpoint, orders: list[str], session: Session) -> CancelResult | None:
    """Send in each way that there is; cancel what was sent first."""
    first = endpoint.send("billing", "Bill", {"order": orders[0]}, delay=timedelta(hours=1))
    endpoint.send_local("Remind", b"raw", deliver_at=datetime.now(UTC), content_type="text/plain")
    endpoint.send("billing", "Bill", {}, session=session, message_id="one", cancellable=True)
    endpoint.send("billing", "Bill", {}, delay=0.5, message_id="two", on_conflict="replace")
    endpoint.send("billing", "Bill", {}, delay=1, message_id="2", on_conflict=OnConflict.KEEP)
    options = SendOptions(delay=60, time_to_be_received=timedelta(minutes=5))
    endpoint.send_many(ToSend("billing", "Bill", order, options) for order in orders)
    for pending in endpoint.timeouts.list(due_before=datetime.now(UTC), limit=10):
        endpoint.timeouts.reschedule(pending.id, delay=timedelta(minutes=1))
    return None if first.id is None else endpoint.timeouts.cancel(first.id)


def test_reminder(timeouts: TimeoutKit) -> None:
    """Use the testing kit, as a test does."""
    timeouts.send_local("Remind", {}, delay=timedelta(days=14), saga_id="A7")
    timeouts.assert_scheduled("Remind", saga="A7", due=timedelta(days=14))
    timeouts.advance(days=14, hours=1)
    assert timeouts.sent(destination="billing")[0].type == "Bill"
    context = FakeContext("Remind", {"order": "A7"}, saga_id="A7")
    bill(context.body, context)


async def remind_from_a_loop(endpoint: AsyncEndpoint, session: AsyncSession) -> list[str]:
    """Send and list, awaiting each call."""
    await endpoint.send("billing", "Bill", {}, delay=timedelta(hours=1), on_conflict="replace")
    await endpoint.send_local("Remind", {}, session=session, saga_id="7")
    await endpoint.send_many([ToSend("billing", "Bill", {})])
    return [one.id async for one in endpoint.timeouts.list(limit=10)]


if __name__ == "__main__":
    with Endpoint(config) as sales:
        sales.wait(timeout=60)
