"""Schedule of the poller: a poll each interval, or sooner for a due time. No I/O."""

import threading
from datetime import timedelta

from timeoutmgr.message.instants import Micros, duration_micros


class PollSchedule:
    """The poller's wake-up times. Safe for many threads.

    A wake during a poll counts when that poll ends: the poll may have claimed before the row was
    committed. All instants are of this host's clock.
    """

    def __init__(self, interval: timedelta) -> None:
        self._interval = duration_micros(interval)
        self._lock = threading.Lock()
        self._polling = False
        self._woken: Micros | None = None
        self._next: Micros | None = None

    @property
    def next(self) -> Micros | None:
        """The instant of the next poll; None before the first poll."""
        return self._next

    def wake(self, due: Micros) -> Micros | None:
        """Ask for a poll at *due*; return the new next poll if it must be moved forward now."""
        with self._lock:
            if self._woken is None or due < self._woken:
                self._woken = due
            if self._polling or self._next is None or self._next <= due:
                return None
            self._next = due
            return due

    def begin(self) -> Micros | None:
        """Record the begin of a poll; return its planned instant, None for the first poll.

        A later wake is for the poll after this poll.
        """
        with self._lock:
            self._polling = True
            self._woken = None
            return self._next

    def end(self, now: Micros, next_due: Micros | None, not_before: Micros = 0) -> Micros:
        """Record the end of a poll; return the instant of the next poll.

        The next poll is at the earliest of *next_due*, a wake during the poll, and one interval
        from *now*; never in the past, and not before *not_before* (a pause after a failure).
        """
        with self._lock:
            self._polling = False
            asked = [due for due in (next_due, self._woken) if due is not None]
            earliest = min([now + self._interval, *asked])
            self._woken = None
            self._next = max(now, not_before, earliest)
            return self._next
