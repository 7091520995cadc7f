"""Calls that a coroutine has made in the thread that waits for the coroutine.

A transaction belongs to the thread of a pump. A coroutine on the event loop uses it through that
thread, which has nothing else to do: the calls run one after the other, and block no loop.
"""

import asyncio
import queue
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, TypeVar

Result = TypeVar("Result")

SERVING: Final[ContextVar["ThreadCalls | None"]] = ContextVar("timeoutmgr_calls", default=None)
"""The calls of the handler that runs; tasks that the handler makes have it too."""


class ThreadCalls:
    """Serves one coroutine. ``serve`` belongs to the thread that made this."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._is_over = False
        self._error: Exception | None = None

    def is_on_loop(self) -> bool:
        """Return whether the calling thread runs the loop of the coroutine."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def serve(self) -> None:
        """Run calls until the coroutine has ended; raise its error."""
        while (call := self._calls.get()) is not None:
            call()
        if self._error is not None:
            raise self._error

    def end(self, error: Exception | None) -> None:
        """Note the end of the coroutine; on the loop."""
        self._is_over = True
        self._error = error
        self._calls.put(None)

    async def run(self, function: Callable[[], Result]) -> Result:
        """Run *function* in the serving thread; return its result or raise its error.

        A task that is cancelled meanwhile is cancelled at its next await, which the session has at
        the end of its method: the driver must see the end of its statement.
        """
        future = self._submitted(function)
        is_cancelled = False
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError:
                is_cancelled = True
        task = asyncio.current_task()
        if is_cancelled and task is not None:
            task.uncancel()
            task.cancel()
        return future.result()

    def _submitted(self, function: Callable[[], Result]) -> "asyncio.Future[Result]":
        if self._is_over:
            raise RuntimeError(
                "the handler of this session has ended, and its transaction with it; await every "
                "task that uses context.session before the handler returns"
            )
        future: asyncio.Future[Result] = self._loop.create_future()

        def call() -> None:
            try:
                result = function()
            except BaseException as error:
                self._loop.call_soon_threadsafe(_fail, future, error)
            else:
                self._loop.call_soon_threadsafe(future.set_result, result)

        self._calls.put(call)
        return future


def _fail(future: "asyncio.Future[Result]", error: BaseException) -> None:
    if isinstance(error, StopIteration):  # a future refuses it
        error = RuntimeError(f"a call raised {error!r}")
    future.set_exception(error)
