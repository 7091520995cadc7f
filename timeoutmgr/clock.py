"""The clock of the host; every other part gets its clock from its caller."""

from __future__ import annotations

import time
from typing import Protocol

from timeoutmgr.message.instants import Micros

# --- the clock contract -----------------------------------------------------------------------


class Clock(Protocol):
    """The only source of time."""

    def now(self) -> Micros:
        """Return the wall clock's UTC microseconds; it may be stepped either way."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back, for waiting."""
        ...


class SystemClock:
    """Wall clock and monotonic clock of this host."""

    def now(self) -> Micros:
        """Return UTC microseconds; nanoseconds are cut off, never rounded up."""
        return time.time_ns() // 1_000

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()
