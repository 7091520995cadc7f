"""The clock of the host; every other part gets its clock from its caller."""

import time

from timeoutmgr.message.instants import Micros


class SystemClock:
    """Wall clock and monotonic clock of this host."""

    def now(self) -> Micros:
        """Return UTC microseconds; nanoseconds are cut off, never rounded up."""
        return time.time_ns() // 1_000

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()
