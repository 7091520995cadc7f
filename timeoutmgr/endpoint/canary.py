"""Canary: a timeout that is sent periodically, and whose dispatch proves that delivery works."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from timeoutmgr.contracts import TimeoutState, TimeoutStore
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.field_types import check_field_types
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.resilience.critical import CriticalErrors
from timeoutmgr.resilience.thread_task import ThreadTask
from timeoutmgr.telemetry import Telemetry

logger = logging.getLogger(__name__)

MESSAGE_TYPE: Final = "TimeoutManager.Canary"
SENTENCE: Final = "The canary timeout is late: the endpoint does not deliver timeouts."


@dataclass(frozen=True, slots=True, kw_only=True)
class CanarySettings:
    """Settings of the canary: each process sends a canary *every* so often, due after *delay*.

    A canary not dispatched within *late_after* of its due time raises an alarm: an ERROR in the
    log, the counter ``canaries_late``, and with *critical* a critical error, once per outage.
    """

    every: timedelta = timedelta(minutes=1)
    delay: timedelta = timedelta(seconds=5)
    late_after: timedelta = timedelta(seconds=30)
    critical: bool = False

    def __post_init__(self) -> None:
        """Check every value."""
        check_field_types(self)
        for name in ("every", "delay", "late_after"):
            if not timedelta(0) < (given := getattr(self, name)) <= timedelta(days=365):
                raise ConfigurationError(f"canary.{name} is over 0, up to 365 days, got {given}")
        if self.every < self.delay + self.late_after:
            raise ConfigurationError(
                f"canary.every ({self.every}) must not be less than delay and late_after together "
                f"({self.delay + self.late_after}): a canary is judged before the next is sent"
            )


def discard(_body: Any, _context: Any) -> None:
    """Handle a canary by doing nothing: it served its purpose when it reached the queue."""


async def discard_on_loop(_body: Any, _context: Any) -> None:
    """Handle a canary as a coroutine function, which middleware of coroutine functions needs."""


class Canary(ThreadTask):
    """Task of a running endpoint: sends canaries, and checks that each is dispatched in time."""

    thread_name = "timeoutmgr-canary"

    def __init__(
        self,
        settings: CanarySettings,
        endpoint: str,
        store: TimeoutStore,
        send: Callable[[timedelta], str],
        critical: CriticalErrors,
        telemetry: Telemetry,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._settings: Final = settings
        self._endpoint: Final = endpoint
        self._store = store
        self._send = send
        self._critical = critical
        self._telemetry = telemetry
        self._monotonic = monotonic
        self._is_late = False
        self._judged_by: float | None = None

    def watch(self) -> None:
        """Judge a canary whose step is overdue: if a queue or store hangs, no step returns."""
        overdue = self._judged_by
        if overdue is not None and self._monotonic() > overdue:
            self._judge("its queue or its store hangs")

    def step(self, wait: Callable[[float], bool]) -> bool:
        """Send a canary and judge it; *wait* returns whether to stop. Return whether to stop."""
        ours = self._settings
        self._judged_by = self._monotonic() + (ours.delay + 2 * ours.late_after).total_seconds()
        try:
            canary: str | None = self._send(ours.delay)
        except Exception as error:  # such as an error of send middleware: the task goes on
            canary = None
            self._judge(f"it cannot be sent: {on_one_line(error)}")
        if wait((ours.delay + ours.late_after).total_seconds()):
            self._judged_by = None
            return True
        if canary is not None:
            self._judge(self._fault_of(canary))
        return wait((ours.every - ours.delay - ours.late_after).total_seconds())

    def _run(self) -> None:
        while not self.step(self._stop.wait):
            pass

    def _fault_of(self, canary: str) -> str | None:
        """Return why the timeout *canary* is late; None if it was dispatched."""
        try:
            found = self._store.find(canary)
        except Exception as error:
            return f"the store does not tell of it: {on_one_line(error)}"
        if found is None:
            return "it waits to be stored"
        state = found[0]
        return None if state is TimeoutState.DISPATCHED else f"its state is {state.value}"

    def _judge(self, fault: str | None) -> None:
        self._judged_by = None
        was_late, self._is_late = self._is_late, fault is not None
        if fault is None:
            self._telemetry.count("canaries_delivered")
            if was_late:
                fields = {"event": "canary_delivered", "endpoint": self._endpoint}
                logger.info(
                    "canary of endpoint %s is delivered in time again", self._endpoint, extra=fields
                )
            return
        self._telemetry.count("canaries_late")
        fields = {"event": "canary_late", "endpoint": self._endpoint}
        logger.error("canary of endpoint %s is late: %s", self._endpoint, fault, extra=fields)
        if self._settings.critical and not was_late:
            self._critical.raise_error(SENTENCE, RuntimeError(fault))
