"""A limit on wakes from a queue: a stranger can send wakes without a pause."""

from threading import Lock
from typing import Final

from timeoutmgr.message.instants import Micros

EVERY: Final[Micros] = 100_000


class WakeLimit:
    """Passes the first wake at once, and joins the wakes of the next tenth of a second.

    Safe for many threads. A later due time needs no limit: its poll waits for the due time.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._next: Micros = 0

    def poll_time(self, due: Micros, now: Micros) -> Micros:
        """Return the instant of the poll for a wake to *due* that arrived at *now*."""
        if due > now:
            return due
        with self._lock:
            if now < self._next <= now + EVERY:
                return self._next
            self._next = now + EVERY
        return due
