"""The system's clock; everything else is given one."""

import time

from timeoutmgr.message.instants import Micros


class SystemClock:
    """Wall clock and monotonic clock of this host."""

    def now(self) -> Micros:
        """Return UTC microseconds; whole nanoseconds are cut off, never rounded up."""
        return time.time_ns() // 1_000

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()
