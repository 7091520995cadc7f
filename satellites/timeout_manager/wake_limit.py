"""How often wakes out of a queue may ask for a poll: a stranger can send them without a pause."""

from threading import Lock
from typing import Final

from timeoutmgr.message.instants import Micros

EVERY: Final[Micros] = 100_000


class WakeLimit:
    """Lets one wake through at once, and joins those of the next tenth of a second into one.

    Safe for many threads. What is due later needs no limit: its poll waits for the due time.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._next: Micros = 0

    def poll_time(self, due: Micros, now: Micros) -> Micros:
        """Return when to poll for a wake to *due* that came in at *now*."""
        if due > now:
            return due
        with self._lock:
            if now < self._next <= now + EVERY:
                return self._next
            self._next = now + EVERY
        return due
