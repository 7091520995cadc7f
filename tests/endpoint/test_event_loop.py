"""The loop of coroutine handlers: one for a process, begun by its first user, ended by its last."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import pytest

from tests.support.forks import Forks
from timeoutmgr import AsyncHandlerContext, Endpoint, EndpointConfiguration
from timeoutmgr.endpoint.async_context import AsyncHandler
from timeoutmgr.endpoint.concurrent_handlers import await_each
from timeoutmgr.endpoint.coroutines import HandlerCoroutines
from timeoutmgr.endpoint.event_loop import PROCESS_LOOP, _LoopThread
from timeoutmgr.errors import ConfigurationError, HandlerFailed, HandlerStopped
from timeoutmgr.testing.signals import PATIENCE

LOOP_THREAD = "timeoutmgr-event-loop"


def loop_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == LOOP_THREAD]


class Outcomes:
    """The errors with which coroutines ended, in order."""

    def __init__(self, coroutines: HandlerCoroutines) -> None:
        self._coroutines = coroutines
        self._come = threading.Semaphore(0)
        self.errors: list[Exception | None] = []

    def begin(self, begin: Callable[[], Coroutine[Any, Any, object]]) -> Callable[[], None]:
        return self._coroutines.begin(begin, self._end)

    def of(self, begin: Callable[[], Coroutine[Any, Any, object]]) -> Exception | None:
        """Run a coroutine to its end; return its error."""
        self.begin(begin)
        return self.next()

    def next(self) -> Exception | None:
        """Return the error of the next coroutine to end."""
        assert self._come.acquire(timeout=PATIENCE)
        return self.errors[-1]

    def _end(self, error: Exception | None) -> None:
        self.errors.append(error)
        self._come.release()


@pytest.fixture
def coroutines() -> Iterator[HandlerCoroutines]:
    coroutines = HandlerCoroutines()
    coroutines.start()
    yield coroutines
    coroutines.stop()


async def nothing() -> None:
    """End at once."""


async def forever() -> None:
    await asyncio.Event().wait()


def test_the_first_user_starts_the_loop_and_the_last_ends_it() -> None:
    assert loop_threads() == []
    first, second = HandlerCoroutines(), HandlerCoroutines()
    first.start()
    second.start()
    assert len(loop_threads()) == 1
    assert first.loop is second.loop

    first.stop()
    assert Outcomes(second).of(nothing) is None
    second.stop()
    assert loop_threads() == []


def test_a_greenlet_that_sees_the_loop_run_is_not_its_thread(
    coroutines: HandlerCoroutines,
) -> None:
    asyncio._set_running_loop(coroutines.loop)  # as greenlets of one thread see it
    try:
        assert not coroutines.is_here()
    finally:
        asyncio._set_running_loop(None)


def test_a_forked_child_starts_a_loop_of_its_own(coroutines: HandlerCoroutines) -> None:
    child = os.fork()
    if not child:
        anew = HandlerCoroutines()
        anew.start()
        ended = Outcomes(anew).of(nothing)
        os._exit(0 if ended is None and len(loop_threads()) == 1 else 1)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert Outcomes(coroutines).of(nothing) is None


def test_a_coroutine_that_came_as_the_loop_ended_keeps_none_of_the_next_run_waiting(
    coroutines: HandlerCoroutines, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = coroutines.loop
    coroutines.stop()
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(HandlerCoroutines, "loop", ended)
        with pytest.raises(HandlerStopped):
            Outcomes(coroutines).begin(nothing)

    coroutines.start()

    assert Outcomes(coroutines).of(nothing) is None


async def suspend(forks: Forks) -> None:
    await asyncio.sleep(0)
    forks.refuse_child()


async def end(_forks: Forks) -> None:
    """Leave the coroutine."""


async def in_a_task(fork: AsyncHandler, _next: AsyncHandler) -> None:
    await asyncio.gather(fork(None, CONTEXT))


CONTEXT: Any = None
PLACES: dict[str, Any] = {
    "alone": lambda fork, _next: fork(None, CONTEXT),
    "in a task": in_a_task,
    "before another": lambda *handlers: await_each(handlers, None, CONTEXT),
}


@pytest.mark.parametrize(
    ("place", "leave"),
    [("alone", suspend), ("alone", end), ("in a task", suspend), ("before another", end)],
)
def test_a_child_of_a_coroutine_ends_before_it_would_wait_on_the_loop_of_its_parent(
    coroutines: HandlerCoroutines, place: str, leave: Callable[[Forks], Coroutine[Any, Any, None]]
) -> None:
    async def fork(_message: object, _context: object) -> None:
        if forks():
            await leave(forks)

    async def another(_message: object, _context: object) -> None:
        forks.refuse_child()

    forks = Forks()

    assert Outcomes(coroutines).of(lambda: PLACES[place](fork, another)) is None
    assert forks.codes() == [0]
    assert Outcomes(coroutines).of(nothing) is None


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_an_exit_of_a_coroutine_is_its_failure_and_not_the_end_of_the_loop(
    coroutines: HandlerCoroutines, kind: type[BaseException]
) -> None:
    async def leave() -> None:
        raise kind("enough")

    error = Outcomes(coroutines).of(leave)

    assert isinstance(error, HandlerFailed)
    assert isinstance(error.__cause__, kind)
    assert Outcomes(coroutines).of(nothing) is None


def test_an_exit_of_a_task_of_a_handler_does_not_end_the_loop(
    coroutines: HandlerCoroutines,
) -> None:
    async def leave() -> None:
        raise SystemExit(3)

    async def begin_a_task() -> None:
        await asyncio.gather(asyncio.create_task(leave()), return_exceptions=True)

    outcomes = Outcomes(coroutines)
    outcomes.of(begin_a_task)

    assert outcomes.of(nothing) is None
    assert len(loop_threads()) == 1


def test_a_coroutine_that_is_cancelled_before_it_begins_ends_too(
    coroutines: HandlerCoroutines,
) -> None:
    outcomes = Outcomes(coroutines)
    outcomes.begin(forever)()

    assert isinstance(outcomes.next(), HandlerStopped)


def test_a_stop_cancels_what_runs_after_its_time_and_what_begins_later() -> None:
    coroutines = HandlerCoroutines()
    coroutines.start()
    outcomes = Outcomes(coroutines)
    outcomes.begin(forever)
    coroutines.stop_within(0)

    assert isinstance(outcomes.next(), HandlerStopped)
    assert isinstance(outcomes.of(forever), HandlerStopped)
    coroutines.stop()


def test_coroutines_that_run_at_the_end_of_the_loop_were_stopped_and_did_not_fail() -> None:
    coroutines = HandlerCoroutines()
    coroutines.start()
    outcomes = Outcomes(coroutines)
    begun = threading.Event()

    async def wait() -> None:
        begun.set()
        await forever()

    outcomes.begin(wait)
    assert begun.wait(PATIENCE)
    coroutines.stop()

    assert isinstance(outcomes.next(), HandlerStopped)


def test_each_coroutine_has_the_context_variables_of_the_thread_that_began_it(
    coroutines: HandlerCoroutines,
) -> None:
    """One wake of the loop creates the coroutines of several threads."""
    tenant: ContextVar[str] = ContextVar("tenant")
    seen: list[tuple[str, str]] = []
    outcomes, blocked = Outcomes(coroutines), threading.Event()

    def begin(name: str) -> None:
        async def note() -> None:
            seen.append((name, tenant.get()))
            tenant.set("left behind")

        tenant.set(name)
        outcomes.begin(note)

    coroutines.loop.call_soon_threadsafe(blocked.wait, PATIENCE)
    for name in ("acme", "beta"):
        thread = threading.Thread(target=begin, args=(name,))
        thread.start()
        thread.join()
    blocked.set()

    assert (outcomes.next(), outcomes.next()) == (None, None)
    assert seen == [("acme", "acme"), ("beta", "beta")]


def test_a_start_right_after_a_stop_runs_coroutines_while_others_use_the_loop(
    coroutines: HandlerCoroutines,
) -> None:
    again, blocked = HandlerCoroutines(), threading.Event()
    again.start()
    coroutines.loop.call_soon_threadsafe(blocked.wait, PATIENCE)
    again.stop()
    again.start()
    outcomes = Outcomes(again)
    outcomes.begin(nothing)
    blocked.set()

    assert outcomes.next() is None
    again.stop()


def test_a_coroutine_that_ignores_its_cancellation_does_not_keep_the_stop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("timeoutmgr.endpoint.coroutines.GRACE", 0.0)
    coroutines, released = HandlerCoroutines(), threading.Event()
    coroutines.start()
    outcomes = Outcomes(coroutines)

    async def ignore() -> None:
        while not released.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)

    outcomes.begin(ignore)
    coroutines.stop_within(0)

    assert isinstance(outcomes.next(), HandlerStopped)
    released.set()
    coroutines.stop()
    assert len(outcomes.errors) == 1, "it ends once"
    assert "ignores its cancellation" in caplog.text


BEGUN = threading.Event()


async def close_badly() -> None:
    BEGUN.set()
    try:
        await forever()
    finally:
        raise ConnectionError("the client is closed")


async def fail_in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(close_badly())


async def return_at_once() -> None:
    with suppress(asyncio.CancelledError):
        await forever()


@pytest.mark.parametrize("begin", [close_badly, fail_in_a_group])
def test_an_error_of_a_coroutine_while_it_is_cancelled_is_no_failure_of_its_message(
    coroutines: HandlerCoroutines, begin: Callable[[], Coroutine[Any, Any, object]]
) -> None:
    BEGUN.clear()
    outcomes = Outcomes(coroutines)
    cancel = outcomes.begin(begin)
    assert BEGUN.wait(PATIENCE)
    cancel()

    error = outcomes.next()

    assert isinstance(error, HandlerStopped)
    assert error.__cause__ is not None


def test_a_coroutine_that_is_cancelled_and_returns_has_handled_its_message(
    coroutines: HandlerCoroutines,
) -> None:
    outcomes = Outcomes(coroutines)
    cancel = outcomes.begin(return_at_once)
    outcomes.of(nothing)
    cancel()

    assert outcomes.next() is None


def test_a_thread_that_outlives_the_stop_begins_no_coroutine() -> None:
    coroutines = HandlerCoroutines()
    coroutines.start()
    coroutines.stop()

    with pytest.raises(HandlerStopped):
        coroutines.begin(nothing, lambda _error: None)


def test_plain_handlers_start_no_loop(sqlite_url: str) -> None:
    config = EndpointConfiguration("sales")
    config.use_transport(sqlite_url)
    config.add_handler("Ping", lambda _message, _context: None)

    with Endpoint(config):
        assert loop_threads() == []


def test_an_endpoint_runs_coroutines_again_after_a_stop(sqlite_url: str) -> None:
    config = EndpointConfiguration("sales")
    config.use_transport(sqlite_url)
    come = threading.Semaphore(0)

    @config.handler("Ping")
    async def ping(_message: object, _context: AsyncHandlerContext) -> None:
        come.release()

    endpoint = Endpoint(config)
    for _ in range(2):
        with endpoint:
            endpoint.send_local("Ping", {})
            assert come.acquire(timeout=PATIENCE)
        assert loop_threads() == []


@pytest.mark.parametrize("mode", ["receive_only", "transaction_scope"])
def test_a_session_is_refused_by_name_where_there_is_none(sqlite_url: str, mode: Any) -> None:
    config = EndpointConfiguration("sales")
    config.use_transport(sqlite_url)
    config.transaction_mode = mode
    refused = threading.Event()
    errors: list[str] = []

    @config.handler("Ping", session=False)
    async def ping(_message: object, context: AsyncHandlerContext) -> None:
        with pytest.raises(RuntimeError) as error:
            context.session.new  # noqa: B018  # the access is refused
        errors.append(str(error.value))
        refused.set()

    with Endpoint(config) as endpoint:
        endpoint.send_local("Ping", {})
        assert refused.wait(PATIENCE)

    remedy = "needs a transaction mode" if mode == "receive_only" else "without session=False"
    assert remedy in errors[0]


@pytest.mark.parametrize("mode", [None, "receive_only"])
def test_a_send_after_a_coroutine_handler_has_ended_is_an_error(sqlite_url: str, mode: Any) -> None:
    """One after the other with a transaction, and beside each other without."""
    config = EndpointConfiguration("sales")
    config.use_transport(sqlite_url)
    config.transaction_mode = mode
    seen: list[AsyncHandlerContext] = []
    called = threading.Event()

    @config.handler("Ping")
    async def ping(_message: Any, context: AsyncHandlerContext) -> None:
        seen.append(context)
        called.set()

    with Endpoint(config) as endpoint:
        endpoint.send_local("Ping", {})
        assert called.wait(PATIENCE)

    with pytest.raises(RuntimeError, match="handler of this context has ended"):
        seen[0].send_local("Pong", {})


def test_a_coroutine_that_the_stop_gave_up_can_send_no_more(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datetime import timedelta

    monkeypatch.setattr("timeoutmgr.endpoint.coroutines.GRACE", 0.0)
    config = EndpointConfiguration("sales")
    config.use_transport(sqlite_url)
    config.transaction_mode = "receive_only"
    config.shutdown_timeout = timedelta(0)
    seen: list[AsyncHandlerContext] = []
    called, released = threading.Event(), threading.Event()

    @config.handler("Ping")
    async def ping(_message: Any, context: AsyncHandlerContext) -> None:
        seen.append(context)
        called.set()
        while not released.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)

    loop = PROCESS_LOOP.acquire()  # so that the stop of the endpoint does not wait for its end
    with Endpoint(config) as endpoint:
        endpoint.send_local("Ping", {})
        assert called.wait(PATIENCE)
    with pytest.raises(RuntimeError, match="handler of this context has ended"):
        seen[0].send_local("Pong", {})
    released.set()
    PROCESS_LOOP.release()
    assert loop.is_closed()


def test_async_concurrency_and_shutdown_timeout_are_checked(sqlite_url: str) -> None:
    from datetime import timedelta

    config = EndpointConfiguration("sales")
    config.use_transport(sqlite_url)
    config.async_concurrency = 0
    with pytest.raises(ConfigurationError, match="async_concurrency must be at least 1, got 0"):
        config.settings()
    config.async_concurrency = 1
    for wrong in (timedelta(seconds=-1), timedelta(days=366), timedelta.max):
        config.shutdown_timeout = wrong
        with pytest.raises(ConfigurationError, match=f"not be negative, and at most .* {wrong}"):
            config.settings()


def test_the_loop_of_the_process_is_let_go() -> None:
    loop = PROCESS_LOOP.acquire()
    PROCESS_LOOP.release()

    assert loop.is_closed()


def test_the_thread_of_the_loop_overrides_no_name_of_a_thread_but_its_run() -> None:
    own = {name for name in vars(_LoopThread) if not name.startswith("__")}
    thread = _LoopThread()
    thread.loop.close()
    attributes = vars(thread).keys() - vars(threading.Thread()).keys()

    assert (own | attributes) & set(dir(threading.Thread)) == {"run"}
