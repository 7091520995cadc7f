"""Wakeups: the process that stores a timeout asks the endpoint's other processes for a poll.

The process wakes its own poller at the due time. The other pollers would find the timeout only at
their next poll, up to an interval later, and so late if the storing process dies or hangs before
the due time. After a request for a poll, each of them learns from the database when the next
timeout is due, and polls at that time too: no process has to notice the death of another. A request
also covers every timeout that is due later, because the poll at the earlier due time finds the
next. So a busy process makes few requests, and an idle process none.
"""

import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from threading import Lock
from typing import Final

from timeoutmgr.contracts import Wakeups
from timeoutmgr.errors import TimeoutManagerError
from timeoutmgr.message.instants import Micros, duration_micros
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.resilience.after_fork import ThreadSafe
from timeoutmgr.resilience.thread_task import ThreadTask

logger = logging.getLogger(__name__)

# --- Limit of wakes from a queue: a stranger can send wakes without a pause -------------------

EVERY: Final[Micros] = 100_000


class WakeLimit(ThreadSafe):
    """Passes the first wake at once, and combines the wakes of the next tenth of a second.

    Thread-safe. A later due time needs no limit: its poll waits for the due time.
    """

    def after_fork(self) -> None:
        """Begin anew: a thread of the parent may have locked the lock."""
        super().after_fork()
        self._next: Micros = 0

    def poll_time(self, due: Micros, now: Micros) -> Micros:
        """Return the instant of the poll for a wake for *due* that arrived at *now*."""
        if due > now:
            return due
        with self._lock:
            if now < self._next <= now + EVERY:
                return self._next
            self._next = now + EVERY
        return due


_PAUSE: Final = 1.0
"""Minimum seconds between two requests."""


class OtherPollers(ThreadTask):
    """Asks the other processes' pollers, in a thread: storing must not wait for that.

    *now* is the store's time as far as this host knows it. Without *wakeups* it makes no request.
    """

    thread_name = "timeoutmgr-wakeups"

    def __init__(
        self,
        wakeups: Wakeups | None,
        *,
        endpoint: str,
        interval: timedelta,
        now: Callable[[], Micros],
    ) -> None:
        super().__init__()
        self._wakeups = wakeups
        self._endpoint = endpoint
        self._fields: Final = {"event": "wakeup_not_sent", "endpoint": endpoint}
        self._interval: Final = duration_micros(interval)
        self._now = now
        self._known: Micros | None = None

    def after_fork(self) -> None:
        """Replace the locks."""
        super().after_fork()
        self._lock, self._checking, self._asked = Lock(), Lock(), threading.Event()

    def start(self) -> None:
        """Start the thread if the store has wakeups."""
        if self._wakeups is None:
            return
        self._asked.clear()
        self._known = None
        super().start()

    def stop(self) -> None:
        """Stop; returns when the thread has ended."""
        self._stop.set()
        self._asked.set()
        super().stop()
        if self._wakeups is not None:
            with self._checking:  # a check after the close would start listening again
                self._wakeups.close()

    def watch(self) -> None:
        """Check the wakeups of the store."""
        if self._wakeups is None:
            return
        with self._checking:
            if not self._stop.is_set():
                self._wakeups.check()

    def stored(self, due: Micros) -> None:
        """Ask the other processes if they would miss the committed timeout of *due*."""
        if self._wakeups is not None and self._is_news(due):
            self._asked.set()

    def _is_news(self, due: Micros) -> bool:
        now = self._now()
        if due > now + self._interval:
            return False  # every poller polls before it
        with self._lock:
            if self._known is not None and now < self._known <= due:
                return False  # every poller polls at this earlier time, and finds the next timeout
            self._known = due
            return True

    def _run(self) -> None:
        assert self._wakeups is not None, "start asks for it"
        while True:
            self._asked.wait()
            if self._stop.is_set():
                return
            self._asked.clear()
            self._ask(self._wakeups)
            if self._stop.wait(_PAUSE):
                return

    def _ask(self, wakeups: Wakeups) -> None:
        try:
            wakeups.notify()
        except Exception as error:
            self._known, is_named = None, isinstance(error, TimeoutManagerError)
            logger.log(
                logging.INFO if is_named else logging.ERROR,
                "timeout manager of %s did not ask the other processes for a poll: %s",
                self._endpoint,
                on_one_line(error),
                exc_info=not is_named,
                extra=self._fields,
            )
