"""When the poller looks next: each interval, sooner when a due time asks. No I/O, no scheduler."""

import threading
from datetime import timedelta

from timeoutmgr.message.instants import Micros, duration_micros


class PollSchedule:
    """The poller's wake-up times. Safe for many threads.

    A wake that comes while a poll runs is kept, and honoured when that poll ends: the poll may
    have looked before the row was there. All instants are of this host's clock.
    """

    def __init__(self, interval: timedelta) -> None:
        self._interval = duration_micros(interval)
        self._lock = threading.Lock()
        self._polling = False
        self._woken: Micros | None = None
        self._next: Micros | None = None

    @property
    def next(self) -> Micros | None:
        """When the next poll is to begin; None before the first."""
        return self._next

    def wake(self, due: Micros) -> Micros | None:
        """Ask for a poll at *due*; return the new next poll if it is to be pulled forward now."""
        with self._lock:
            if self._woken is None or due < self._woken:
                self._woken = due
            if self._polling or self._next is None or self._next <= due:
                return None
            self._next = due
            return due

    def begin(self) -> Micros | None:
        """Note that a poll begins, and return when it was to begin; None for the first.

        What is woken from now on is for the poll after it.
        """
        with self._lock:
            self._polling = True
            self._woken = None
            return self._next

    def end(self, now: Micros, next_due: Micros | None, not_before: Micros = 0) -> Micros:
        """Note that a poll ended; return when to poll again.

        At the earliest of *next_due*, what woke meanwhile, and one interval from *now*; never in
        the past, and not before *not_before* (a pause after a failure).
        """
        with self._lock:
            self._polling = False
            asked = [due for due in (next_due, self._woken) if due is not None]
            earliest = min([now + self._interval, *asked])
            self._woken = None
            self._next = max(now, not_before, earliest)
            return self._next
