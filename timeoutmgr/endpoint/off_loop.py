"""Calls that wait for a server, made in threads so that they do not block an event loop."""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from timeoutmgr.errors import EndpointClosed, TransportUnavailable
from timeoutmgr.message.message import Outgoing
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.resilience.after_fork import begin_anew_after_fork
from timeoutmgr.sender.sender import Sender

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class CallThreads:
    """A bounded pool of threads for the calls of an endpoint; the first call starts them."""

    def __init__(self, endpoint: str, most: int) -> None:
        self._endpoint = endpoint
        self._most = most
        self._is_closed = False
        self._pool, self._is_started = self._new_pool(), False
        begin_anew_after_fork(self)

    def _new_pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._most, thread_name_prefix="timeoutmgr-call")

    async def run(self, function: Callable[[], Result]) -> Result:
        """Run *function* in a thread, with the context variables of the caller.

        A cancelled call that has not begun does not happen. A call that has begun goes on in its
        thread; if it fails, a log line names the error. Raises EndpointClosed after ``close``.
        """
        if not self._is_started:
            function = partial(self._run_first, function)
        future = self._submitted(function)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.cancelled():
                future.add_done_callback(_log_failure)
            elif (task := asyncio.current_task()) is None or not task.cancelling():
                raise EndpointClosed(self._endpoint) from None  # ``close`` has withdrawn the call
            raise

    def _run_first(self, function: Callable[[], Result]) -> Result:
        """Start the other threads, then run *function*.

        Starting a thread blocks until it runs. A pool starts its threads in the caller, sometimes
        even unnecessarily: that would be on the loop, in the middle of sends.
        """
        self._is_started, started = True, threading.Event()
        try:
            for _ in range(self._most - 1):
                self._pool.submit(started.wait)
        except RuntimeError as error:  # the pool was closed, or the system allows no more threads
            logger.debug(
                "endpoint %s calls in fewer threads: %s",
                self._endpoint,
                on_one_line(error),
                extra={"event": "call_threads_missing", "endpoint": self._endpoint},
            )
        finally:
            started.set()
        return function()

    def run_later(self, function: Callable[[], object]) -> None:
        """Run *function* in a thread; nothing waits for it. Raises EndpointClosed."""
        self._submitted(function).add_done_callback(_log_failure)

    def _submitted(self, function: Callable[[], Result]) -> Future[Result]:
        future = Future[Result]()
        try:
            call = self._pool.submit(_end, future, partial(copy_context().run, function))
            call.add_done_callback(lambda ended: ended.cancelled() and future.cancel())
        except RuntimeError as error:
            if self._is_closed:
                raise EndpointClosed(self._endpoint) from error
            # If no thread can be started, the pool keeps the call, and could make it at any time.
            if future.cancel():
                raise TransportUnavailable(
                    f"endpoint {self._endpoint!r} has no thread for a call, which does not "
                    f"happen: {error}; try again later"
                ) from error
        return future

    def close(self) -> None:
        """Wait until the calls that have begun are over."""
        self._is_closed = True
        self._pool.shutdown(cancel_futures=True)

    def after_fork(self) -> None:
        """Forget the threads, which are the parent's; closed threads stay closed."""
        self._pool, self._is_started = self._new_pool(), False
        if self._is_closed:
            self._pool.shutdown()


class SenderOffLoop(Sender):
    """A sender for callers in a greenlet of SQLAlchemy on the loop."""

    def __init__(self, sender: Sender, threads: CallThreads) -> None:
        vars(self).update(vars(sender))  # shares the sessions, and the known queues
        self._threads = threads

    def require_queues(self, queues: Sequence[str]) -> None:
        """Raise Unroutable for the first of *queues* that does not exist."""
        if self._unseen(queues):
            self.wait_for(partial(super().require_queues, queues))

    def wait_for(self, function: Callable[[], Result]) -> Result:
        """Run *function* in a thread, and return its result; the loop goes on meanwhile."""
        from sqlalchemy.util import await_only

        return await_only(self._threads.run(function))

    def send(self, outgoing: Sequence[Outgoing], *, finally_for: Sequence[str] = ()) -> None:
        """Have a thread send all of *outgoing*; return at once.

        Only wakes are sent in this way, after the caller's commit: an error would deny the commit.
        """
        self._threads.run_later(partial(super().send, outgoing, finally_for=finally_for))


def _end(future: Future[Result], call: Callable[[], Result]) -> None:
    """Make *call* and set the result of *future*, unless it was cancelled."""
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)


def _log_failure(future: Future[Any]) -> None:
    if future.cancelled():
        return
    error = future.exception()
    if error is not None:
        fields = {"event": "call_failed_unseen"}
        logger.warning("a call that no task waits for failed: %s", on_one_line(error), extra=fields)
