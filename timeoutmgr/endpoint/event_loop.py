"""Event loop of this process, in its own thread, for coroutine handlers."""

import asyncio
import contextlib
import logging
import threading
from typing import Final

from timeoutmgr.resilience.after_fork import ChildEnds, begin_anew_after_fork

logger = logging.getLogger(__name__)

_JOIN: Final = 10.0
"""Seconds that the last user of the loop waits for its thread."""


class _LoopThread(threading.Thread):
    """Runs a new event loop until it is stopped, then cancels the tasks that are left.

    The names ``_stop`` and ``_is_stopped`` belong to ``threading.Thread``.
    """

    def __init__(self) -> None:
        super().__init__(name="timeoutmgr-event-loop", daemon=True)
        self.loop: Final = asyncio.new_event_loop()
        self._has_ended = False

    def run(self) -> None:
        """Run the loop; a SystemExit of a task does not end it."""
        asyncio.set_event_loop(self.loop)
        while not self._has_ended:
            try:
                with ChildEnds():
                    self.loop.run_forever()
            except (KeyboardInterrupt, SystemExit):
                logger.exception(
                    "a task of a handler tried to end the event loop, which continues",
                    extra={"event": "event_loop_exit_refused"},
                )
        with contextlib.closing(self.loop):
            self._clean_up()

    def stop(self) -> None:
        """End the loop; may be called from any thread."""
        self.loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self._has_ended = True
        self.loop.stop()

    def _clean_up(self) -> None:
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        with contextlib.suppress(KeyboardInterrupt, SystemExit):
            self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())


class ProcessLoop:
    """The loop that all endpoints of this process share; it runs while an endpoint uses it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._thread: _LoopThread | None = None
        begin_anew_after_fork(self)

    def acquire(self) -> asyncio.AbstractEventLoop:
        """Return the running loop; call ``release`` once for each call."""
        with self._lock:
            if self._thread is None:
                thread = _LoopThread()
                with contextlib.ExitStack() as unless_started:
                    unless_started.callback(thread.loop.close)
                    thread.start()
                    unless_started.pop_all()
                self._thread = thread
            self._users += 1
            return self._thread.loop

    def release(self) -> None:
        """End the use of the loop; the last user stops it, and cancels the remaining tasks."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            thread, self._thread = self._thread, None
        if thread is None:
            return  # the process was forked since ``acquire``
        thread.stop()
        if thread is not threading.current_thread():
            thread.join(_JOIN)

    def is_here(self) -> bool:
        """Return whether the calling thread runs the loop; greenlets of gevent share its mark."""
        return self._thread is threading.current_thread()

    def after_fork(self) -> None:
        """Forget the loop: its thread is the parent's. A child of a task on it ends with it."""
        if self._thread is threading.current_thread():
            self._thread.loop.stop()
        self._lock = threading.Lock()
        self._users, self._thread = 0, None


PROCESS_LOOP: Final = ProcessLoop()
