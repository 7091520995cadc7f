"""Where time comes from."""

from __future__ import annotations

from typing import Protocol

from timeoutmgr.message.instants import Micros


class Clock(Protocol):
    """Where time comes from; the only place."""

    def now(self) -> Micros:
        """Return the wall clock's UTC microseconds; it may be stepped either way."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back, for waiting."""
        ...
