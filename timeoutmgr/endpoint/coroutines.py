"""The coroutines of an endpoint's handlers: begun from any thread, cancelled by a stop."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from timeoutmgr.endpoint.event_loop import PROCESS_LOOP
from timeoutmgr.errors import HandlerFailed, HandlerStopped

Ended: TypeAlias = Callable[[Exception | None], None]
"""Gets the error of a coroutine, or None; called on the loop, so it must be quick."""
Begin: TypeAlias = Callable[[], Coroutine[Any, Any, object]]


class HandlerCoroutines:
    """Runs coroutines on the process' loop, from the start of an endpoint to its stop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[object]] = set()
        self._cancelled: set[asyncio.Task[object]] = set()
        self._is_stopped = False
        self._lock = threading.Lock()
        self._waiting: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the loop, unless it runs already."""
        self._is_stopped = False
        self._loop = PROCESS_LOOP.acquire()

    def stop_within(self, seconds: float) -> None:
        """Return at once; after *seconds* cancel the coroutines that still run."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._arm, seconds)

    def stop(self) -> None:
        """Let go of the loop; coroutines that still run are cancelled if it ends."""
        loop, self._loop = self._loop, None
        if loop is not None:
            # The loop may end now and cancel the rest: that is a stop, not a failure.
            loop.call_soon_threadsafe(self._disarm)
            loop.call_soon_threadsafe(self._cancel_all)
            PROCESS_LOOP.release()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop, while the endpoint runs."""
        return self._running_loop()

    def is_here(self) -> bool:
        """Return whether the calling thread is the loop's."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def begin(self, begin: Begin, ended: Ended) -> Callable[[], None]:
        """Have the loop run the coroutine that *begin* makes; return a function that cancels it.

        *ended* is called exactly once. A coroutine that this class cancels ends with
        HandlerStopped; a coroutine that raises CancelledError itself, with HandlerFailed.
        """
        loop = self._running_loop()
        running = _Running(loop, self)
        with self._lock:
            self._waiting.append(lambda: self._create(begin, ended, running))
            is_first = len(self._waiting) == 1
        if is_first:  # one wake of the loop for a whole batch
            loop.call_soon_threadsafe(self._create_all)
        return running.cancel

    def cancel(self, task: "asyncio.Task[object]") -> None:
        """Cancel *task*; only on the loop."""
        self._cancelled.add(task)
        task.cancel()

    def _create_all(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for create in waiting:
            create()

    def _create(self, begin: Begin, ended: Ended, running: "_Running") -> None:
        task = running.loop.create_task(_guarded(begin))
        self._tasks.add(task)

        def end(task: "asyncio.Task[object]") -> None:
            self._tasks.discard(task)
            error = self._error_of(task)
            self._cancelled.discard(task)
            ended(error)

        task.add_done_callback(end)
        running.task = task
        if self._is_stopped:
            self.cancel(task)

    def _arm(self, seconds: float) -> None:
        if self._loop is not None:
            self._timer = self._loop.call_later(seconds, self._cancel_all)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _cancel_all(self) -> None:
        self._is_stopped = True
        for task in list(self._tasks):
            self.cancel(task)

    def _error_of(self, task: "asyncio.Task[object]") -> Exception | None:
        try:
            error = task.exception()
        except asyncio.CancelledError as cancelled:
            return HandlerStopped() if task in self._cancelled else _failed(cancelled)
        return error if error is None or isinstance(error, Exception) else _failed(error)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None, "handlers run between start and stop"
        return self._loop


class _Running:
    """A coroutine that was begun; its task exists as soon as the loop gets to it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, coroutines: HandlerCoroutines) -> None:
        self.loop = loop
        self.task: asyncio.Task[object] | None = None
        self._coroutines = coroutines

    def cancel(self) -> None:
        """Cancel the coroutine; from any thread."""
        self.loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self.task is not None:  # calls of the loop run in order: it is created by now
            self._coroutines.cancel(self.task)


def _failed(error: BaseException) -> HandlerFailed:
    failed = HandlerFailed(error)
    failed.__cause__ = error
    return failed


async def _guarded(begin: Begin) -> object:
    try:
        return await begin()
    except (KeyboardInterrupt, SystemExit) as error:  # either would end the loop
        raise HandlerFailed(error) from error
