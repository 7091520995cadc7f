"""A program as a user writes it; type checkers find no mistake in it."""

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from timeoutmgr import (
    AsyncEndpoint,
    AsyncHandlerContext,
    CancelResult,
    CriticalErrorContext,
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
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.satellites import TimeoutManager

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


def stopped(context: CriticalErrorContext) -> None:
    """Print the error by which the endpoint ends."""
    print(context.error)


config.add_handler("Remind", Reminders().remind)
config.add_handler("Ping", lambda _message, _context: print("ping"))
config.define_critical_error_action(stopped)


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


async def remind_from_a_loop(endpoint: AsyncEndpoint, session: AsyncSession) -> list[str]:
    """Send and list, awaiting each call."""
    await endpoint.send("billing", "Bill", {}, delay=timedelta(hours=1), on_conflict="replace")
    await endpoint.send_local("Remind", {}, session=session, saga_id="7")
    await endpoint.send_many([ToSend("billing", "Bill", {})])
    return [one.id async for one in endpoint.timeouts.list(limit=10)]


if __name__ == "__main__":
    with Endpoint(config) as sales:
        sales.wait(timeout=60)
