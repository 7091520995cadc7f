"""An endpoint whose calls are awaited: it blocks no loop, and sends inside a caller's session."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import QueuePool

from tests.support.forks import ended_in_a_child
from timeoutmgr import (
    AsyncEndpoint,
    AsyncHandlerContext,
    AsyncTimeouts,
    CancelResult,
    ChangeResult,
    Endpoint,
    EndpointConfiguration,
    SendOptions,
    Timeouts,
    TimeoutState,
    ToSend,
)
from timeoutmgr.contracts import Count
from timeoutmgr.database import Database
from timeoutmgr.endpoint.coroutines import HandlerCoroutines
from timeoutmgr.endpoint.off_loop import CallThreads
from timeoutmgr.errors import (
    CombinationRefused,
    ConfigurationError,
    EndpointClosed,
    HandlerStopped,
    InvalidMessage,
    SchemaMissing,
    TransportUnavailable,
)
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.testing import Inbox
from timeoutmgr.testing.signals import PATIENCE

HOUR = timedelta(hours=1)
HOUR_LATER = SendOptions(delay=HOUR)
TENANT: ContextVar[str] = ContextVar("tenant", default="none")
Main = Callable[[], Coroutine[Any, Any, None]]


def configuration(url: str, name: str = "sales") -> EndpointConfiguration:
    config = EndpointConfiguration(name)
    config.use_transport(url)
    config.use_persistence(url)
    config.enable_feature(TimeoutManager())
    return config


def run(main: Main) -> None:
    """Run *main* on a loop; a call that hangs fails the test."""
    asyncio.run(asyncio.wait_for(main(), PATIENCE))


async def came(inbox: Inbox, count: int = 1) -> list[str]:
    """Return the ids that arrived, once there are *count*."""
    return [arrival.id for arrival in await asyncio.to_thread(inbox.wait_for, count)]


def test_messages_are_sent_and_handled(sqlite_url: str) -> None:
    inbox = Inbox()
    config = configuration(sqlite_url)
    config.add_handler("Ping", inbox)

    async def main() -> None:
        async with AsyncEndpoint(config) as endpoint:
            first = await endpoint.send_local("Ping", 1)
            second = await endpoint.send("sales", "Ping", 2, delay=0.05)
            count = await endpoint.send_many(ToSend("sales", "Ping", n) for n in range(3))
            assert count == 3
            assert {first.message_id, second.message_id} <= set(await came(inbox, 5))
        assert endpoint.snapshot()["handled"] == 5  # counted behind the commit

    run(main)


def test_timeouts_are_listed_changed_and_cancelled(sqlite_url: str) -> None:
    config = configuration(sqlite_url)

    async def main() -> None:
        endpoint = AsyncEndpoint(config)
        await endpoint.install()
        messages = (ToSend("sales", "Bill", n, HOUR_LATER) for n in range(3))
        assert await endpoint.store_many(messages) == 3
        timeouts = endpoint.timeouts
        ids = [one.id async for one in timeouts.list(due_before=None)]
        assert len(ids) == await timeouts.count() == 3
        assert await timeouts.count_in_bounds() == Count(3)
        assert [one.id for one in (await timeouts.list_in_bounds(limit=2)).timeouts] == ids[:2]
        assert await timeouts.cancel(ids[0]) is CancelResult.CANCELLED
        assert await timeouts.reschedule(ids[1], delay=HOUR) is ChangeResult.CHANGED
        assert await timeouts.send_now(ids[2]) is ChangeResult.CHANGED
        found = await timeouts.show(ids[0])
        assert found is not None
        assert found[0] is TimeoutState.CANCELLED
        assert await timeouts.waiting() is not None
        assert await timeouts.now() > 0
        assert await timeouts.history(ids[0])
        assert await timeouts.cancel_saga("none") == []
        assert (await timeouts.reroute("sales", dry_run=True)).left == []
        await endpoint.close()

    run(main)


def test_context_variables_reach_the_thread_of_a_call(sqlite_url: str) -> None:
    config = configuration(sqlite_url)
    seen: list[str] = []

    def new_id() -> str:
        seen.append(TENANT.get())
        return f"id-{len(seen)}"

    config.new_id = new_id

    async def main() -> None:
        async with AsyncEndpoint(config) as endpoint:
            TENANT.set("acme")
            await endpoint.send_local("Ping", {}, delay=HOUR)

    run(main)

    assert "acme" in seen


def test_the_loop_goes_on_while_a_send_waits_for_a_lock(postgres_url: str, unique: str) -> None:
    ticks = 0

    async def main() -> None:
        nonlocal ticks
        async with AsyncEndpoint(configuration(postgres_url, unique)) as endpoint:
            engine = create_engine(postgres_url)
            with engine.connect() as other:
                other.execute(text("LOCK TABLE timeoutmgr_queue_messages"))
                sending = asyncio.create_task(endpoint.send_local("Ping", {}, delay=HOUR))
                for _ in range(100):
                    await asyncio.sleep(0)
                    ticks += 1
                assert not sending.done()
                other.rollback()
            engine.dispose()
            assert (await sending).id is not None

    run(main)

    assert ticks == 100


def test_a_cancelled_send_goes_on_in_its_thread(postgres_url: str, unique: str) -> None:
    async def main() -> None:
        async with AsyncEndpoint(configuration(postgres_url, unique)) as endpoint:
            engine = create_engine(postgres_url)
            with engine.connect() as other:
                other.execute(text("LOCK TABLE timeoutmgr_queue_messages"))
                sending = asyncio.create_task(
                    endpoint.send_local("Ping", {}, delay=HOUR, message_id="cancelled")
                )
                waiting = text(
                    "SELECT count(*) FROM pg_locks WHERE NOT granted "
                    "AND relation = 'timeoutmgr_queue_messages'::regclass"
                )
                while not other.execute(waiting).scalar_one():
                    await asyncio.sleep(0)
                sending.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await sending
                other.rollback()
            engine.dispose()
            again = await endpoint.send_local("Ping", {}, delay=HOUR, message_id="cancelled")
            while await endpoint.timeouts.waiting() or not await endpoint.timeouts.count():
                await asyncio.sleep(0)
            assert [one.id async for one in endpoint.timeouts.list()] == [again.id]

    run(main)


def async_engine(url: str, driver: str) -> AsyncEngine:
    return create_async_engine(url.replace("+psycopg", "").replace("://", f"+{driver}://", 1))


@pytest.mark.parametrize(
    ("server", "driver"),
    [("postgres", "psycopg"), ("postgres", "asyncpg"), ("sqlite", "aiosqlite")],
)
@pytest.mark.parametrize("delay", [None, 0.05])
def test_a_send_inside_an_async_session_is_that_of_its_commit(
    request: pytest.FixtureRequest, unique: str, server: str, driver: str, delay: float | None
) -> None:
    url: str = request.getfixturevalue(f"{server}_url")
    inbox = Inbox()
    config = configuration(url, unique)
    config.add_handler("Ping", inbox)

    async def main() -> None:
        engine = async_engine(url, driver)
        async with AsyncEndpoint(config) as endpoint:
            async with AsyncSession(engine) as session:
                undone = await endpoint.send_local("Ping", "undone", delay=delay, session=session)
                await session.rollback()
            async with AsyncSession(engine) as session:
                kept = await endpoint.send_local("Ping", "kept", delay=delay, session=session)
                await session.commit()
            async with engine.begin() as connection:
                also = await endpoint.send_local("Ping", "also", delay=delay, session=connection)
            arrived = await came(inbox, 2)
            assert sorted(arrived) == sorted([kept.message_id, also.message_id])
            last = await endpoint.send_local("Ping", "last", delay=delay)
            assert undone.message_id not in await came(inbox, 3)
            assert last.message_id
        await engine.dispose()

    run(main)


def test_a_commit_after_the_close_succeeds_and_gives_its_connection_back(
    postgres_url: str, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = configuration(postgres_url, unique)
    config.use_transport("memory://", accept_loss=True)

    async def main() -> None:
        engine = create_async_engine(postgres_url, pool_size=1, max_overflow=0)
        endpoint = AsyncEndpoint(config)
        await endpoint.install()
        async with engine.begin() as connection:
            await endpoint.send_local("Ping", "kept", delay=1, session=connection)
            await endpoint.close()
        assert cast(QueuePool, engine.pool).checkedout() == 0
        await engine.dispose()

    run(main)

    assert f"sender could not wake the poller of {unique}" in caplog.text


@pytest.mark.parametrize("made", [Session, lambda: create_async_engine("sqlite+aiosqlite://")])
def test_an_async_endpoint_refuses_a_session_that_it_cannot_await(
    sqlite_url: str, unique: str, made: Callable[[], Any]
) -> None:
    async def main() -> None:
        async with AsyncEndpoint(configuration(sqlite_url, unique)) as endpoint:
            with pytest.raises(CombinationRefused, match="Endpoint inside others"):
                await endpoint.send_local("Ping", {}, session=made())

    run(main)


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
@pytest.mark.parametrize("delay", [None, 1])
def test_a_send_inside_a_failed_transaction_is_refused_with_the_remedy(
    postgres_url: str, unique: str, driver: str, delay: int | None
) -> None:
    async def main() -> None:
        engine = async_engine(postgres_url, driver)
        async with (
            AsyncEndpoint(configuration(postgres_url, unique)) as endpoint,
            AsyncSession(engine) as session,
        ):
            with suppress(DBAPIError):
                await session.execute(text("SELECT 1 / 0"))
            with pytest.raises(CombinationRefused, match="Roll back before the send"):
                await endpoint.send_local("Ping", {}, delay=delay, session=session)
        await engine.dispose()

    run(main)


def test_only_statements_of_the_session_run_on_the_loop(
    postgres_url: str, rabbitmq_url: str, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each other call waits for a server: for the queue, the tables, the wake after the commit."""
    config = configuration(postgres_url, unique)
    config.use_transport(rabbitmq_url)
    inbox = Inbox()
    config.add_handler("Ping", inbox)
    threads: set[str] = set()
    endpoint = AsyncEndpoint(config)
    transport = config.settings().transport
    real = transport.session
    connects: set[str] = set()

    def session() -> Any:
        threads.add(threading.current_thread().name)
        return real()

    monkeypatch.setattr(transport, "session", session)
    apart = Database.shared(postgres_url).apart
    event.listen(apart, "connect", lambda *_: connects.add(threading.current_thread().name))
    apart.dispose()  # a pooled connection of another test would need no connect

    async def main() -> None:
        engine = async_engine(postgres_url, "psycopg")
        async with endpoint:
            threads.clear()
            async with AsyncSession(engine) as own:
                sent = await endpoint.send_local("Ping", 1, delay=0.05, session=own)
                await own.commit()
            assert await came(inbox) == [sent.message_id]
        await engine.dispose()

    run(main)

    assert threads
    assert connects
    assert threading.main_thread().name not in threads | connects


def test_refusals_are_those_of_an_endpoint(sqlite_url: str) -> None:
    async def main() -> None:
        endpoint = AsyncEndpoint(configuration(sqlite_url))
        async with endpoint:
            with pytest.raises(InvalidMessage):
                await endpoint.send_local("Ping", {}, delay=-1)
        with pytest.raises(EndpointClosed, match="'sales' is closed"):
            await endpoint.send_local("Ping", {})

    run(main)
    for wrong in (0, "8"):
        with pytest.raises(ConfigurationError, match="threads must be at least 1"):
            AsyncEndpoint(configuration(sqlite_url), threads=cast("Any", wrong))
    with pytest.raises(ConfigurationError, match="made of an EndpointConfiguration"):
        AsyncEndpoint(cast("Any", sqlite_url))


def test_the_how_to_names_each_call_that_only_an_endpoint_has() -> None:
    def calls(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    page = (Path(__file__).parents[2] / "docs/how-to/asyncio.md").read_text()
    lacking = calls(Endpoint) - calls(AsyncEndpoint) | calls(Timeouts) - calls(AsyncTimeouts)

    named = lacking - {"parts", "on_watch", "ended_pumps", "stored"}
    assert [name for name in sorted(named) if f"`{name}`" not in page] == []


def test_a_cancelled_run_leaves_no_task_behind(sqlite_url: str) -> None:
    async def main() -> None:
        before = asyncio.all_tasks()
        running = asyncio.create_task(AsyncEndpoint(configuration(sqlite_url)).run())
        while len(asyncio.all_tasks() - before) < 3:  # the run, and its two waits
            await asyncio.sleep(0.01)

        running.cancel()
        await asyncio.wait([running])
        await asyncio.sleep(0)

        assert asyncio.all_tasks() == before

    run(main)


def test_it_runs_until_a_signal_asks_it_to_end(sqlite_url: str) -> None:
    inbox = Inbox()
    config = configuration(sqlite_url)
    config.add_handler("Ping", inbox)

    async def main() -> None:
        endpoint = AsyncEndpoint(config)
        await endpoint.install()
        await endpoint.send_local("Ping", {})
        running = asyncio.create_task(endpoint.run())
        await came(inbox)
        os.kill(os.getpid(), signal.SIGTERM)
        await running
        with pytest.raises(EndpointClosed):
            await endpoint.send_local("Ping", {})

    run(main)


@pytest.mark.parametrize("end", [AsyncEndpoint.stop, AsyncEndpoint.close])
def test_a_coroutine_handler_that_stops_its_own_endpoint_handles_its_message(
    sqlite_url: str, end: Callable[[AsyncEndpoint], Coroutine[Any, Any, None]]
) -> None:
    config = configuration(sqlite_url)
    made: list[AsyncEndpoint] = []

    @config.handler("Shutdown")
    async def shutdown(_message: Any, _context: AsyncHandlerContext) -> None:
        await end(made[0])

    async def main() -> None:
        made.append(AsyncEndpoint(config))
        async with made[0] as endpoint:
            await endpoint.send_local("Shutdown", {})
            await endpoint.wait()

    run(main)

    assert made[0].snapshot()["handled"] == 1
    assert loop_and_stop_threads() == []


@pytest.mark.parametrize("end", [Endpoint.stop, Endpoint.close])
def test_a_coroutine_handler_that_ends_a_plain_endpoint_handles_its_message(
    sqlite_url: str, end: Callable[[Endpoint], None]
) -> None:
    config = configuration(sqlite_url)
    made: list[Endpoint] = []

    @config.handler("Shutdown")
    async def shutdown(_message: Any, _context: AsyncHandlerContext) -> None:
        end(made[0])
        await asyncio.sleep(0)

    made.append(Endpoint(config))
    with made[0] as endpoint:
        endpoint.send_local("Shutdown", {})
        assert endpoint.wait(PATIENCE)

    assert made[0].snapshot()["handled"] == 1
    assert "handlers_stopped" not in made[0].snapshot()
    assert loop_and_stop_threads() == []


def loop_and_stop_threads() -> list[str]:
    """The names of threads that are left of a stop, once each thread of a stop has ended."""
    for thread in threading.enumerate():
        if thread.name == "timeoutmgr-stop":
            thread.join(PATIENCE)
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name in ("timeoutmgr-stop", "timeoutmgr-event-loop")]


def in_a_child(does: Callable[[], bool]) -> bool:
    """Return the answer of *does* in a forked process; False if it fails."""
    return ended_in_a_child(lambda: 0 if does() else 1) == 0


def test_calls_of_a_forked_child_run_in_threads_of_its_own() -> None:
    threads, closed = CallThreads("sales", 2), CallThreads("sales", 2)
    asyncio.run(threads.run(lambda: None))
    closed.close()

    def call() -> bool:
        with pytest.raises(EndpointClosed):
            asyncio.run(closed.run(lambda: None))
        return asyncio.run(asyncio.wait_for(threads.run(lambda: True), PATIENCE))

    assert in_a_child(call)
    assert asyncio.run(threads.run(lambda: "the parent calls on")) == "the parent calls on"
    threads.close()


def test_a_forked_child_starts_the_endpoint_that_its_parent_has_started(sqlite_url: str) -> None:
    config = EndpointConfiguration("sales")  # without handlers no thread is busy at the fork
    config.use_transport(sqlite_url)

    def start() -> bool:
        had_ended = endpoint.wait(0)
        endpoint.start()
        runs = "timeoutmgr-watchdog" in {thread.name for thread in threading.enumerate()}
        endpoint.close()
        return had_ended and runs

    with Endpoint(config) as endpoint:
        assert in_a_child(start)
        assert not endpoint.wait(0), "the parent runs on"


def test_coroutines_of_a_forked_child_begin_on_a_loop_of_its_own() -> None:
    coroutines = HandlerCoroutines()
    coroutines.start()

    def begin() -> bool:
        ended = threading.Event()
        assert not coroutines.is_here()
        with pytest.raises(HandlerStopped):
            _ = coroutines.loop
        coroutines.start()
        coroutines.begin(lambda: asyncio.sleep(0), lambda _error: ended.set())
        return ended.wait(PATIENCE)

    assert in_a_child(begin)
    coroutines.stop()


def test_a_loop_starts_one_thread_and_never_waits_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    starters: list[str] = []
    start = threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        if thread.name.startswith("timeoutmgr-call"):
            starters.append(threading.current_thread().name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", noted)

    async def main() -> None:
        threads = CallThreads("sales", 4)
        together = threading.Barrier(4)
        await threads.run(lambda: None)
        await asyncio.gather(*(threads.run(lambda: together.wait(PATIENCE)) for _ in range(4)))
        threads.close()

    run(main)

    assert starters[0] == threading.current_thread().name
    assert [name.startswith("timeoutmgr-call") for name in starters[1:]] == [True] * 3


@pytest.mark.parametrize("busy", [0, 1])
def test_a_call_without_a_thread_fails_and_never_happens(
    monkeypatch: pytest.MonkeyPatch, busy: int
) -> None:
    calls: list[str] = []
    start = threading.Thread.start

    def full(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        threads, gate = CallThreads("sales", 2), threading.Event()
        working = [asyncio.ensure_future(threads.run(gate.wait)) for _ in range(busy)]
        monkeypatch.setattr(threading.Thread, "start", full)
        with pytest.raises(TransportUnavailable, match=r"has no thread .* can't start new thread"):
            await threads.run(lambda: calls.append("without a thread"))
        monkeypatch.setattr(threading.Thread, "start", start)
        gate.set()
        await threads.run(lambda: calls.append("with a thread"))
        await asyncio.gather(*working)
        threads.close()

    run(main)

    assert calls == ["with a thread"]


def test_a_failure_that_no_task_waits_for_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    begun, finish, logged = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        begun.set()
        assert finish.wait(PATIENCE)
        raise ValueError("away")

    async def main() -> None:
        threads = CallThreads("sales", 1)
        calling = asyncio.create_task(threads.run(call))
        await asyncio.to_thread(begun.wait, PATIENCE)
        waiting = asyncio.create_task(threads.run(logged.set))
        await asyncio.sleep(0)
        for task in (calling, waiting):
            task.cancel()
        await asyncio.gather(calling, waiting, return_exceptions=True)
        finish.set()
        await asyncio.to_thread(threads.close)

    run(main)

    assert "a call that no task waits for failed: away" in caplog.text
    assert not logged.is_set(), "a cancelled call that has not begun does not happen"


def own_threads() -> list[str]:
    """The threads of calls, and of the pumps of the endpoint."""
    names = [each.name for each in threading.enumerate()]
    return [name for name in names if name.startswith(("timeoutmgr-call", "timeoutmgr-sales"))]


def test_a_cancelled_entry_ends_the_endpoint_whose_start_went_on(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, closed, started = threading.Event(), threading.Event(), threading.Event()
    start, close = Endpoint.start, Endpoint.close

    def slow_start(endpoint: Endpoint) -> None:
        begun.set()
        assert closed.wait(PATIENCE)
        start(endpoint)
        started.set()

    def noted_close(endpoint: Endpoint) -> None:
        close(endpoint)
        closed.set()

    monkeypatch.setattr(Endpoint, "start", slow_start)
    monkeypatch.setattr(Endpoint, "close", noted_close)

    async def main() -> None:
        endpoint = AsyncEndpoint(configuration(sqlite_url))
        entering = asyncio.create_task(endpoint.__aenter__())
        await asyncio.to_thread(begun.wait, PATIENCE)
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        assert started.is_set()
        with pytest.raises(EndpointClosed):
            await endpoint.send_local("Ping", {})

    run(main)

    assert own_threads() == []


def test_an_entry_that_fails_leaves_no_thread(sqlite_url: str) -> None:
    config = configuration(sqlite_url)
    config.install = False

    async def main() -> None:
        with pytest.raises(SchemaMissing):
            async with AsyncEndpoint(config):
                pass
        assert own_threads() == []

    run(main)


def test_a_cancelled_bulk_draws_no_more(sqlite_url: str) -> None:
    drawn = threading.Event()

    def endless() -> Iterator[ToSend]:
        while True:
            yield ToSend(destination="sales", message_type="Ping", body=1)
            drawn.set()

    async def main() -> None:
        async with AsyncEndpoint(configuration(sqlite_url)) as endpoint:
            sending = asyncio.create_task(endpoint.send_many(endless()))
            await asyncio.to_thread(drawn.wait)
            sending.cancel()
            await asyncio.wait([sending])

            assert sending.cancelled()  # and the close below does not wait for ever

    run(main)


def test_a_close_tells_the_calls_that_it_withdraws(sqlite_url: str) -> None:
    async def main() -> None:
        config, begun, gate = configuration(sqlite_url), asyncio.Event(), threading.Event()
        endpoint = AsyncEndpoint(config, threads=1)
        await endpoint.start()
        loop = asyncio.get_running_loop()

        def block() -> None:
            loop.call_soon_threadsafe(begun.set)
            gate.wait()

        blocked = asyncio.create_task(endpoint._threads.run(block))
        await begun.wait()
        sends = [asyncio.create_task(endpoint.send("sales", "Ping", n)) for n in range(3)]
        await asyncio.sleep(0)
        closing = asyncio.create_task(endpoint.close())
        answers = await asyncio.gather(*sends, return_exceptions=True)
        gate.set()
        await asyncio.gather(blocked, closing)

        assert [type(answer) for answer in answers] == [EndpointClosed] * 3

    run(main)
