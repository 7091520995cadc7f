"""The clock contract."""

from __future__ import annotations

from typing import Protocol

from timeoutmgr.message.instants import Micros


class Clock(Protocol):
    """The only source of time."""

    def now(self) -> Micros:
        """Return the wall clock's UTC microseconds; it may be stepped either way."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back, for waiting."""
        ...
