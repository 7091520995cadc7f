"""A critical error hook that keeps its errors and their times."""

from __future__ import annotations

import time

from timeoutmgr import CriticalErrorContext
from timeoutmgr.testing.signals import Signal


class Alarm:
    """Register it by ``define_critical_error_action``; the endpoint then goes on."""

    def __init__(self) -> None:
        self._signal = Signal()
        self.reported: list[tuple[float, CriticalErrorContext]] = []
        """The monotonic time and the context of each critical error."""

    def __call__(self, context: CriticalErrorContext) -> None:
        """Keep *context*."""
        with self._signal.change():
            self.reported.append((time.monotonic(), context))

    def wait_for(self, count: int, timeout: float = 30) -> float:
        """Return when the *count*th critical error was reported."""
        self._signal.wait_until(
            lambda: len(self.reported) >= count,
            lambda: f"{count} critical errors; reported {self.reported}",
            timeout,
        )
        return self.reported[count - 1][0]
