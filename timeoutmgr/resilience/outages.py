"""One outage that several breakers see: the first that triggers reports it, and no other does."""

import threading

from timeoutmgr.resilience.breakers import BreakerState, OutageBreaker


class SharedOutage:
    """What the breakers over one server have in common. Safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reported_by: OutageBreaker | None = None

    def is_reported(self, by: OutageBreaker) -> bool:
        """Return whether another breaker has reported it and is still triggered; else *by* does."""
        with self._lock:
            first = self._reported_by
            if first is not None and first is not by and first.state is BreakerState.TRIGGERED:
                return True
            self._reported_by = by
            return False
