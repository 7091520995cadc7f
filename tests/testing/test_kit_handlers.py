"""Handlers in the testing kit: failures, retries, transactions, inline sends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta

import pytest
from sqlalchemy import (
    Column,
    Connection,
    Engine,
    MetaData,
    String,
    Table,
    event,
    func,
    insert,
    select,
)
from sqlalchemy.orm import Session

from tests.testing.kit import START, Shop
from timeoutmgr import (
    AsyncHandlerContext,
    EndpointConfiguration,
    HandlerContext,
    Limits,
    RecoverabilitySettings,
    ToSend,
    TransactionMode,
)
from timeoutmgr.contracts import ModeName, Timeout
from timeoutmgr.endpoint.middleware import CallNext
from timeoutmgr.errors import (
    ConfigurationError,
    DeliveryFailed,
    MessageRejected,
    TransportUnavailable,
)
from timeoutmgr.message.instants import to_micros
from timeoutmgr.message.message import Message
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.testing import TimeoutKit
from timeoutmgr.testing.kit import worker

TABLES = MetaData()
NOTES = Table("notes", TABLES, Column("text", String(20)))


def failing(shop: Shop) -> None:
    """Add a handler that writes, sends, and then fails."""

    def write_and_fail(body: str, context: HandlerContext) -> None:
        context.session.execute(insert(NOTES).values(text=body))
        context.send("billing", "Bill", body)
        shop.noted.append((body, shop.kit.now))
        raise LookupError(f"no {body}")

    shop.config.add_handler("Fail", write_and_fail)


def test_an_error_of_a_handler_is_raised_and_its_effects_are_undone() -> None:
    shop = Shop()
    failing(shop)
    kit = shop.open(database=TABLES)
    kit.send_local("Fail", "A7", delay=60)
    kit.send_local("Note", "behind", delay=61)

    with pytest.raises(LookupError, match="no A7"):
        kit.advance(minutes=2)

    assert kit.sent() == []
    assert count(kit.engine) == 0
    [failure] = kit.errors
    assert (failure.message.type, failure.message.destination) == ("Fail", "sales")
    assert isinstance(failure.exception, LookupError)
    kit.advance(minutes=2)
    assert shop.bodies == ["A7", "behind"]


def test_a_commit_that_fails_undoes_the_sends_and_the_receipt(memory: Engine) -> None:
    commits: list[bool] = []

    def fail_the_first(_connection: Connection) -> None:
        commits.append(not commits)
        if commits[-1]:
            raise LookupError("a deferred constraint does not hold")

    shop = Shop()

    @shop.config.handler("Order")
    def order(body: str, context: HandlerContext) -> None:
        context.send("billing", "Bill", body)

    event.listen(memory, "commit", fail_the_first)
    kit = shop.open(database=memory)
    kit.send_local("Order", "A7")

    with pytest.raises(LookupError, match="deferred constraint"):
        kit.drain()

    assert kit.sent() == []
    assert [failure.message.body for failure in kit.errors] == ["A7"]


def test_retries_are_as_configured_and_go_by_the_kits_clock() -> None:
    shop = Shop()
    failing(shop)
    shop.config.recoverability = RecoverabilitySettings(
        immediate=3, delayed=2, increase=timedelta(minutes=1)
    )
    kit = shop.open(raises=False, database=TABLES)
    kit.send_local("Fail", "A7")

    kit.advance(minutes=3)

    instants = [at - START for _body, at in shop.noted]
    assert instants == [timedelta(minutes=minutes) for minutes in (0, 0, 0, 1, 1, 1, 3, 3, 3)]
    assert [type(failure.exception) for failure in kit.errors] == [LookupError]
    assert kit.sent() == []


def test_messages_of_one_id_keep_their_own_exceptions() -> None:
    shop = Shop()

    @shop.config.handler("Fail")
    def fail(body: str, _context: HandlerContext) -> None:
        raise LookupError(f"no {body}")

    shop.config.recoverability = RecoverabilitySettings(immediate=1, delayed=0)
    kit = shop.open(raises=False)
    for body in ("A7", "A8"):
        kit.send_local("Fail", body, message_id="same")
    kit.drain()

    shown = [(failure.message.body, str(failure.exception)) for failure in kit.errors]
    assert shown == [("A7", "no A7"), ("A8", "no A8")]


def test_an_outage_is_raised_and_leaves_the_message_in_its_queue() -> None:
    shop = Shop()
    attempts: list[int] = []

    @shop.config.handler("Call")
    def call(body: object, context: HandlerContext) -> None:
        attempts.append(context.delivery_count)
        if len(attempts) == 1:
            raise TransportUnavailable("the broker is away")

    kit = shop.open(raises=False)
    kit.send_local("Call", 1)

    with pytest.raises(TransportUnavailable, match="the broker is away"):
        kit.drain()
    kit.drain()

    assert attempts == [0, 1]
    assert kit.errors == []


def test_a_message_that_no_handler_takes_is_an_error() -> None:
    kit = Shop().open()
    kit.send_local("Unknown", 1)

    with pytest.raises(MessageRejected, match="no handler for message type 'Unknown'"):
        kit.drain()


def test_a_used_id_with_another_content_is_an_error_of_the_next_call() -> None:
    kit = Shop().open()
    kit.send_local("Note", 1, delay=60, message_id="one")
    kit.send_local("Note", 2, delay=60, message_id="one")

    with pytest.raises(MessageRejected, match="one"):
        kit.drain()

    kit.drain()
    assert len(kit.errors) == 1


def test_a_message_that_a_dispatcher_moves_to_the_error_queue_is_an_error() -> None:
    shop = Shop()
    shop.config.limits = Limits(allowed_destinations=("sales",))
    kit = shop.open()
    store = kit.endpoint.worker.timeouts
    assert store is not None
    due = to_micros(START + timedelta(hours=1))
    store.store_many(
        [Timeout(id="one", due=due, destination="elsewhere", message=Message(id="one"))]
    )

    with pytest.raises(DeliveryFailed, match="elsewhere"):
        kit.advance(hours=1)

    assert [failure.message.message_id for failure in kit.errors] == ["one"]
    assert kit.sent() == []


@pytest.mark.parametrize("mode", ["transaction_scope", "sends_atomic_with_receive"])
def test_a_handler_has_the_session_of_its_transaction(mode: str) -> None:
    shop = Shop()
    shop.config.transaction_mode = TransactionMode(mode)

    @shop.config.handler("Write")
    def write(body: str, context: HandlerContext) -> None:
        context.session.execute(insert(NOTES).values(text=body))

    kit = shop.open(database=TABLES)
    kit.send_local("Write", "A7")
    kit.drain()

    assert count(kit.engine) == 1


def test_a_mode_without_a_transaction_has_no_session() -> None:
    shop = Shop("amqp://localhost:1//", "postgresql+psycopg://nowhere.invalid/sales")

    @shop.config.handler("Write")
    def write(body: str, context: HandlerContext) -> None:
        context.session.execute(select(1))

    kit = shop.open()
    kit.send_local("Write", "A7")

    with pytest.raises(RuntimeError, match=r"context\.session needs a transaction mode"):
        kit.drain()


def test_on_a_connection_a_test_can_roll_back_all_that_handlers_did(memory: Engine) -> None:
    shop = Shop()

    @shop.config.handler("Write")
    def write(body: str, context: HandlerContext) -> None:
        context.session.execute(insert(NOTES).values(text=body))

    TABLES.create_all(memory)
    with memory.connect() as connection:
        kit = shop.open(database=connection)
        kit.send_local("Write", "A7")
        kit.drain()
        assert connection.execute(select(func.count()).select_from(NOTES)).scalar_one() == 1
        connection.rollback()

    with memory.connect() as connection:
        assert connection.execute(select(func.count()).select_from(NOTES)).scalar_one() == 0


def test_inline_handles_messages_without_a_delay_before_the_send_returns() -> None:
    shop = Shop()

    @shop.config.handler("Pass")
    def pass_on(body: str, context: HandlerContext) -> None:
        context.send_local("Note", body)

    kit = shop.open()
    kit.send_local("Pass", "waits")
    assert shop.bodies == []
    with kit.inline():
        kit.send_local("Pass", "at once")
        assert shop.bodies == ["waits", "at once"]
        kit.send_local("Note", "later", delay=60)
    kit.send_local("Note", "waits again")

    assert shop.bodies == ["waits", "at once"]
    other = Shop()
    other.open(inline=True).send_local("Note", "by a setting")
    assert other.bodies == ["by a setting"]
    other.kit.endpoint.send_many([ToSend("sales", "Note", number) for number in range(2)])
    assert other.bodies == ["by a setting", 0, 1]


def test_a_handler_that_sends_to_itself_for_ever_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "MOST_AT_ONE_INSTANT", 20)
    shop = Shop()

    @shop.config.handler("Loop")
    def loop(body: object, context: HandlerContext) -> None:
        context.send_local("Loop", body)

    kit = shop.open()
    kit.send_local("Loop", 1)

    with pytest.raises(ConfigurationError, match="more than 20 messages"):
        kit.drain()


def test_a_handler_cannot_move_the_clock() -> None:
    shop = Shop()

    @shop.config.handler("Advance")
    def advance(body: object, context: HandlerContext) -> None:
        shop.kit.advance(days=1)

    kit = shop.open()
    kit.send_local("Advance", 1)

    with pytest.raises(ConfigurationError, match="a handler called advance or drain"):
        kit.drain()


def test_a_coroutine_handler_cannot_move_the_clock() -> None:
    shop = Shop()

    @shop.config.handler("Advance")
    async def advance(body: object, context: AsyncHandlerContext) -> None:
        shop.kit.advance(days=1)

    kit = shop.open()
    kit.send_local("Advance", 1)

    with pytest.raises(ConfigurationError, match="a handler called advance or drain"):
        kit.drain()


def test_a_message_that_expires_before_it_is_handled_is_discarded() -> None:
    shop = Shop()
    kit = shop.open()
    kit.send_local("Note", 1, time_to_be_received=timedelta(minutes=1))
    kit._clock.move_to(kit._clock.now() + 61_000_000)

    kit.drain()

    assert shop.bodies == []


def count(engine: Engine) -> int:
    with Session(engine) as session:
        return session.scalar(select(func.count()).select_from(NOTES)) or 0


@pytest.mark.parametrize("mode", ["receive_only", "sends_atomic_with_receive"])
def test_a_coroutine_handler_runs_in_the_kit_and_its_sends_leave(mode: ModeName) -> None:
    config = EndpointConfiguration("sales")
    config.transaction_mode = mode

    @config.handler("Late")
    async def remind(body: str, context: AsyncHandlerContext) -> None:
        await asyncio.to_thread(str)
        context.send("billing", "Bill", body)

    config.enable_feature(TimeoutManager())
    with TimeoutKit(config) as kit:
        kit.send_local("Late", "A7", delay=timedelta(days=14))
        kit.advance(days=15)

        assert [one.body for one in kit.sent(destination="billing")] == ["A7"]


def test_middleware_waits_for_a_coroutine_handler_of_a_class() -> None:
    config, noted = EndpointConfiguration("sales"), list[object]()
    config.transaction_mode = "receive_only"

    def around(_context: HandlerContext, call_next: CallNext) -> None:
        noted.append("before")
        call_next()
        noted.append("after")

    @config.handler(Order)
    async def take(order: Order, _context: AsyncHandlerContext) -> None:
        await asyncio.to_thread(str)
        noted.append(order)

    config.add_middleware(around)
    with TimeoutKit(config) as kit:
        kit.send_local(Order("A7"))
        kit.drain()

    assert noted == ["before", Order("A7"), "after"]


@dataclass(frozen=True)
class Order:
    """A typed message."""

    number: str
