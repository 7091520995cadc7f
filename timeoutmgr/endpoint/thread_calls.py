"""Calls that a coroutine delegates to the thread that waits for it.

A transaction belongs to the thread of a pump. A coroutine on the event loop uses it through that
thread, which only waits. The calls run one after the other, and do not block the loop.
"""

import asyncio
import queue
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, TypeVar

Result = TypeVar("Result")

SERVING: Final[ContextVar["ThreadCalls | None"]] = ContextVar("timeoutmgr_calls", default=None)
"""The ThreadCalls of the running handler; tasks that the handler creates inherit it."""


class ThreadCalls:
    """Runs the calls of one coroutine. The thread that made this object calls ``serve``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._is_over = False
        self._error: Exception | None = None

    def is_on_loop(self) -> bool:
        """Return whether the calling thread runs the coroutine's loop."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def serve(self) -> None:
        """Run calls until the coroutine ends; raise its error."""
        while (call := self._calls.get()) is not None:
            call()
        if self._error is not None:
            raise self._error

    def end(self, error: Exception | None) -> None:
        """Record the end of the coroutine; called on the loop."""
        self._is_over = True
        self._error = error
        self._calls.put(None)

    async def run(self, function: Callable[[], Result]) -> Result:
        """Run *function* in the serving thread; return its result or raise its error.

        If the task is cancelled meanwhile, the cancellation is deferred to its next await, at the
        end of the session's method: the driver must finish its statement.
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
    if isinstance(error, StopIteration):  # a future cannot hold a StopIteration
        error = RuntimeError(f"a call raised {error!r}")
    future.set_exception(error)
