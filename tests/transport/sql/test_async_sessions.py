"""``context.session`` of a coroutine handler is in the very transaction that settles the message.

The handler notes its message in a table through the AsyncSession, on each database. In the end the
table has the messages that were acknowledged, each once, and the error queue has the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, suppress
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from tests.support.clock import FakeClock
from tests.transport.sql.test_handler_batches import COUNT, Ledger, Stand
from timeoutmgr import AsyncHandlerContext
from timeoutmgr.clock import CarriedClock
from timeoutmgr.contracts import Transaction
from timeoutmgr.database import as_database
from timeoutmgr.endpoint.async_session import async_session
from timeoutmgr.endpoint.awaited_handler import AwaitedHandler
from timeoutmgr.endpoint.coroutines import HandlerCoroutines
from timeoutmgr.errors import ConfigurationError, StorageUnavailable, Unsupported
from timeoutmgr.message.message import Received
from timeoutmgr.transport.sql import SqlTransport

Doing = Callable[["AsyncLedger", AsyncHandlerContext], Awaitable[None]]


class AsyncLedger(Ledger):
    """The table, as coroutine handlers write into it."""

    async def note_async(self, context: AsyncHandlerContext) -> None:
        """Note the message; each statement lets other tasks of the loop run."""
        await context.session.execute(
            text(f"INSERT INTO {self.name} (id, again) VALUES (:id, 0)"),
            {"id": context.message_id},
        )
        await asyncio.sleep(0)


@pytest.fixture
def ledger(transport: SqlTransport, prefix: str) -> Iterator[AsyncLedger]:
    ledger = AsyncLedger(transport, prefix)
    yield ledger
    ledger.drop()


@pytest.fixture
def coroutines() -> Iterator[HandlerCoroutines]:
    """The loop of this process, while a test uses it."""
    coroutines = HandlerCoroutines()
    coroutines.start()
    yield coroutines
    coroutines.stop()


@pytest.fixture
def stand(
    transport: SqlTransport, ledger: AsyncLedger, coroutines: HandlerCoroutines
) -> Callable[[dict[str, Doing]], Stand]:
    """A maker of a pump whose coroutine handler does, by message id, what *doings* say."""

    def make(doings: dict[str, Doing]) -> Stand:
        async def handle(_body: object, context: AsyncHandlerContext) -> None:
            await doings.get(context.message_id, AsyncLedger.note_async)(ledger, context)

        clock = CarriedClock(lambda: None, FakeClock())
        return Stand(transport, ledger, {}, handler=AwaitedHandler(handle, coroutines, clock))

    return make


async def raising(ledger: AsyncLedger, context: AsyncHandlerContext) -> None:
    await ledger.note_async(context)
    raise ValueError("no")


async def breaking_a_constraint(ledger: AsyncLedger, context: AsyncHandlerContext) -> None:
    await ledger.note_async(context)
    await ledger.note_async(context)


async def cancelling_itself(ledger: AsyncLedger, context: AsyncHandlerContext) -> None:
    await ledger.note_async(context)
    raise asyncio.CancelledError


async def exiting(ledger: AsyncLedger, context: AsyncHandlerContext) -> None:
    await ledger.note_async(context)
    raise SystemExit(3)


async def sending_to_nowhere(ledger: AsyncLedger, context: AsyncHandlerContext) -> None:
    await ledger.note_async(context)
    context.send("nowhere", "Lost", {})


async def committing_and_raising(ledger: AsyncLedger, context: AsyncHandlerContext) -> None:
    await ledger.note_async(context)
    await context.session.commit()
    raise ValueError("no")


async def ending_the_transaction(ledger: AsyncLedger, context: AsyncHandlerContext) -> None:
    await ledger.note_async(context)
    await context.session.execute(text("ROLLBACK"))


FAILING: list[Doing] = [
    raising,
    breaking_a_constraint,
    cancelling_itself,
    exiting,
    sending_to_nowhere,
    committing_and_raising,
    ending_the_transaction,
]
Make = Callable[[dict[str, Doing]], Stand]


@pytest.mark.parametrize("failing", FAILING)
def test_a_failed_message_leaves_no_effect_and_takes_none_from_its_neighbours(
    stand: Make, ledger: AsyncLedger, failing: Doing
) -> None:
    made = stand({"3": failing})
    with closing(made.receiver):
        made.handle()

        assert made.left() == (0, ["3"])
        assert ledger.ids() == [str(number) for number in range(COUNT) if number != 3]


def test_an_acknowledgement_that_is_undone_takes_the_effects_along(
    stand: Make, ledger: AsyncLedger
) -> None:
    made = stand({})
    real = made.receiver.ack

    def ack(received: Sequence[Received], *, transaction: Transaction | None = None) -> None:
        real(received, transaction=transaction)
        raise StorageUnavailable("the database went away before the commit")

    with closing(made.receiver):
        made.receiver.ack = ack  # type: ignore[method-assign]  # a fault between two statements
        with pytest.raises(StorageUnavailable):
            made.handle()

        assert made.left() == (COUNT, [])
        assert ledger.ids() == []


def test_effects_of_a_batch_are_committed_with_its_last_message(
    stand: Make, ledger: AsyncLedger
) -> None:
    seen: list[int] = []

    async def look_from_outside(ledger: AsyncLedger, context: AsyncHandlerContext) -> None:
        await ledger.note_async(context)
        seen.append(len(await asyncio.to_thread(ledger.ids)))

    made = stand({str(COUNT - 1): look_from_outside})
    with closing(made.receiver):
        made.handle()

        assert seen == [0]
        assert len(ledger.ids()) == COUNT


def test_the_session_has_the_methods_of_an_async_session(stand: Make, ledger: AsyncLedger) -> None:
    found: list[Any] = []

    async def use(ledger: AsyncLedger, context: AsyncHandlerContext) -> None:
        session = context.session
        assert context.session is session
        async with session.begin_nested():
            await ledger.note_async(context)
        try:
            await ledger.note_async(context)
        except SQLAlchemyError:
            await session.rollback()
        await ledger.note_async(context)
        count = text(f"SELECT count(*) FROM {ledger.name} WHERE id = '0'")
        found.append(await session.scalar(count))
        found.append(await session.run_sync(lambda inside: inside.scalar(count)))
        found.extend((await session.scalars(text(f"SELECT id FROM {ledger.name}"))).all())
        with pytest.raises(Unsupported, match="run_sync"):
            await session.connection()
        with pytest.raises(Unsupported, match="LIMIT"):
            await session.stream(count)

    made = stand({"0": use})
    with closing(made.receiver):
        made.handle()

        assert made.left() == (0, [])
        assert found == [1, 1, "0"]
        assert len(ledger.ids()) == COUNT


async def in_a_block(ledger: AsyncLedger, context: AsyncHandlerContext) -> None:
    async with context.session:
        await ledger.note_async(context)


async def closing_its_session(ledger: AsyncLedger, context: AsyncHandlerContext) -> None:
    await ledger.note_async(context)
    await context.session.close()


async def resetting_its_session(ledger: AsyncLedger, context: AsyncHandlerContext) -> None:
    await ledger.note_async(context)
    await context.session.reset()


async def trying_in_a_block(ledger: AsyncLedger, context: AsyncHandlerContext) -> None:
    with suppress(SQLAlchemyError):
        async with context.session:
            await breaking_a_constraint(ledger, context)
    await ledger.note_async(context)


@pytest.mark.parametrize(
    "close", [in_a_block, closing_its_session, resetting_its_session, trying_in_a_block]
)
def test_a_coroutine_that_closes_its_session_keeps_what_it_wrote_without_an_error(
    stand: Make, ledger: AsyncLedger, close: Doing
) -> None:
    made = stand({"2": close, "3": close})
    with closing(made.receiver):
        made.handle()

        assert made.left() == (0, [])
        assert ledger.ids() == [str(number) for number in range(COUNT)]


@pytest.mark.parametrize("url", ["postgres", "mysql"], indirect=True)
def test_the_loop_goes_on_while_a_statement_waits_for_a_lock(
    transport: SqlTransport, stand: Make, ledger: AsyncLedger
) -> None:
    ticks = 0

    async def wait_for_the_lock(ledger: AsyncLedger, context: AsyncHandlerContext) -> None:
        nonlocal ticks
        await context.session.execute(text("SELECT 1"))  # the next tick executes a statement
        waiting = asyncio.create_task(ledger.note_async(context))
        for _ in range(100):
            await asyncio.sleep(0)
            ticks += 1
        assert not waiting.done()
        outside.rollback()
        await waiting

    made = stand({"0": wait_for_the_lock})
    engine = create_engine(as_database(transport.database).url)
    with closing(made.receiver), engine.connect() as outside:
        outside.execute(text(f"INSERT INTO {ledger.name} (id, again) VALUES ('0', 0)"))
        made.handle(1)
    engine.dispose()

    assert (ticks, ledger.ids()) == (100, ["0"])


def test_a_statement_that_is_cancelled_is_seen_to_its_end(stand: Make, ledger: AsyncLedger) -> None:
    async def cancel(ledger: AsyncLedger, context: AsyncHandlerContext) -> None:
        task = asyncio.create_task(ledger.note_async(context))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    made = stand({"3": cancel})
    with closing(made.receiver):
        made.handle()

        assert made.left() == (0, [])
        assert set(ledger.ids()) >= {str(number) for number in range(COUNT) if number != 3}


async def timing_out(context: AsyncHandlerContext, statement: str) -> str:
    """Execute *statement* in a block whose time ends meanwhile; return how the block ended."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(None) as limit:
            loop.call_soon(limit.reschedule, loop.time())
            async with context.session.begin_nested():
                await context.session.execute(text(statement))
    except TimeoutError:
        return "timed out"
    return "done"


@pytest.mark.parametrize("table", ["there", "missing"])
def test_a_time_limit_around_a_statement_ends_its_block_and_nothing_after_it(
    stand: Make, ledger: AsyncLedger, table: str
) -> None:
    ended: list[str] = []
    statement = f"SELECT id FROM {ledger.name if table == 'there' else 'missing'}"

    async def limited(ledger: AsyncLedger, context: AsyncHandlerContext) -> None:
        ended.append(await timing_out(context, statement))
        await asyncio.sleep(0)
        await ledger.note_async(context)

    made = stand({"3": limited})
    with closing(made.receiver):
        made.handle()

        assert (ended, made.left()) == (["timed out"], (0, []))
        assert len(ledger.ids()) == COUNT


def test_without_greenlet_the_session_is_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("timeoutmgr.endpoint.async_session.find_spec", lambda _name: None)

    with pytest.raises(ConfigurationError, match=r"pip install 'timeoutmgr\[asyncio\]'"):
        async_session(Session())
