"""Execution of coroutine handlers: started from any thread, cancelled by a stop."""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from typing import Any, Final, TypeAlias

from timeoutmgr.endpoint.event_loop import PROCESS_LOOP
from timeoutmgr.errors import HandlerFailed, HandlerStopped
from timeoutmgr.resilience.after_fork import ChildEnds, begin_anew_after_fork

logger = logging.getLogger(__name__)

GRACE: Final = 5.0
"""Seconds that a stop waits for the end of a cancelled coroutine."""

Ended: TypeAlias = Callable[[Exception | None], None]
"""Gets the error of a coroutine, or None; called on the loop, so it must be quick."""
Begin: TypeAlias = Callable[[], Coroutine[Any, Any, object]]


class HandlerCoroutines:
    """Runs coroutines on the loop of the process, from the start of an endpoint to its stop."""

    def __init__(self) -> None:
        self._is_stopped = False
        self.after_fork()
        begin_anew_after_fork(self)

    def after_fork(self) -> None:
        """Forget the loop and its coroutines, which are the parent's."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: dict[asyncio.Task[object], Ended] = {}
        self._cancelled: set[asyncio.Task[object]] = set()
        self._lock = threading.Lock()
        self._waiting: list[Callable[[], None]] = []
        self._timers: list[asyncio.TimerHandle] = []

    def start(self) -> None:
        """Start the loop, unless it runs already."""
        self._loop = PROCESS_LOOP.acquire()
        # On the loop, after the end of an earlier stop, which would cancel new coroutines.
        self._loop.call_soon_threadsafe(self._resume)

    def stop_within(self, seconds: float) -> None:
        """Cancel the coroutines that still run after *seconds*; return at once.

        A coroutine that still runs GRACE seconds after it was cancelled counts as stopped: its
        message goes back to the queue, and the coroutine can no longer use its session.
        """
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._arm, seconds)

    def stop(self) -> None:
        """Release the loop; coroutines that still run are cancelled if it ends."""
        loop, self._loop = self._loop, None
        if loop is not None:
            # The loop may end now and cancel the rest: these are stopped, not failed.
            loop.call_soon_threadsafe(self._disarm)
            loop.call_soon_threadsafe(self._cancel_all)
            PROCESS_LOOP.release()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop, while the endpoint runs. Raises HandlerStopped after its stop."""
        if self._loop is None:  # called by a thread that outlived the stop
            raise HandlerStopped
        return self._loop

    def is_here(self) -> bool:
        """Return whether the calling thread is the loop's."""
        return self._loop is not None and PROCESS_LOOP.is_here()

    def begin(self, begin: Begin, ended: Ended) -> Callable[[], None]:
        """Start the coroutine that *begin* makes on the loop; return a function that cancels it.

        *ended* is called exactly once. A coroutine that this class cancels ends with
        HandlerStopped; a coroutine that raises CancelledError itself ends with HandlerFailed. Each
        coroutine has a copy of the calling thread's context variables. Raises HandlerStopped after
        the stop.
        """
        loop = self.loop
        running, context = _Running(loop, self), copy_context()
        with self._lock:
            self._waiting.append(lambda: self._create(begin, ended, running, context))
            is_first = len(self._waiting) == 1
        if is_first:  # wake the loop only once for a whole batch
            try:
                loop.call_soon_threadsafe(self._create_all)
            except RuntimeError as error:  # the loop has ended in the meantime
                with self._lock:
                    self._waiting.clear()  # the first coroutine of the next run must wake the loop
                raise HandlerStopped from error
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

    def _create(self, begin: Begin, ended: Ended, running: "_Running", context: Context) -> None:
        task = running.loop.create_task(_guarded(begin), context=context)
        self._tasks[task] = ended
        task.add_done_callback(self._end)
        running.task = task
        if self._is_stopped:
            self.cancel(task)

    def _end(self, task: "asyncio.Task[object]") -> None:
        error, ended = self._error_of(task), self._tasks.pop(task, None)
        self._cancelled.discard(task)
        if ended is not None:
            ended(error)

    def _arm(self, seconds: float) -> None:
        if self._loop is not None:
            self._timers = [
                self._loop.call_later(seconds, self._cancel_all),
                self._loop.call_later(seconds + GRACE, self._give_up),
            ]

    def _disarm(self) -> None:
        for timer in self._timers:
            timer.cancel()

    def _resume(self) -> None:
        self._is_stopped = False

    def _cancel_all(self) -> None:
        self._is_stopped = True
        for task in list(self._tasks):
            self.cancel(task)

    def _give_up(self) -> None:
        """Treat coroutines that ignore their cancellation as ended."""
        for task, ended in list(self._tasks.items()):
            del self._tasks[task]
            logger.error(
                "endpoint stops without a coroutine handler that ignores its cancellation: %.80r",
                task.get_coro(),
                extra={"event": "handler_ignores_stop"},
            )
            ended(HandlerStopped())

    def _error_of(self, task: "asyncio.Task[object]") -> Exception | None:
        try:
            error = task.exception()
        except asyncio.CancelledError as cancelled:
            return HandlerStopped() if task in self._cancelled else _failed(cancelled)
        if error is not None and task in self._cancelled:
            # A failure during cancellation, such as a client that was closed, is not the handler's
            # own: it does not count as an attempt of its message.
            stopped = HandlerStopped()
            stopped.__cause__ = error
            return stopped
        return error if error is None or isinstance(error, Exception) else _failed(error)


class _Running:
    """A coroutine that was submitted; the loop creates its task later."""

    def __init__(self, loop: asyncio.AbstractEventLoop, coroutines: HandlerCoroutines) -> None:
        self.loop = loop
        self.task: asyncio.Task[object] | None = None
        self._coroutines = coroutines

    def cancel(self) -> None:
        """Cancel the coroutine; from any thread."""
        self.loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self.task is not None:  # the loop makes its calls in order: the task exists by now
            self._coroutines.cancel(self.task)


def _failed(error: BaseException) -> HandlerFailed:
    failed = HandlerFailed(error)
    failed.__cause__ = error
    return failed


async def in_one_process(coroutine: Coroutine[Any, Any, object]) -> object:
    """Await *coroutine*; a child that it forks ends before it would wait on the parent's loop."""
    return await _InOneProcess(coroutine)


async def _guarded(begin: Begin) -> object:
    try:
        return await in_one_process(begin())
    except (KeyboardInterrupt, SystemExit) as error:  # either exception would end the loop
        raise HandlerFailed(error) from error


class _InOneProcess(Generator[Any, Any, object]):
    def __init__(self, coroutine: Coroutine[Any, Any, object]) -> None:
        self._coroutine, self._child_ends = coroutine, ChildEnds()

    def __await__(self) -> Generator[Any, Any, object]:
        return self

    def send(self, given: Any = None) -> Any:
        with self._child_ends:
            return self._coroutine.send(given)

    __next__ = send

    def throw(self, *error: Any) -> Any:
        with self._child_ends:
            return self._coroutine.throw(*error)
