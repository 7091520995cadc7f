"""Circuit breakers, which measure the duration of an outage or a rate of failures.

A breaker has no timer. A caller reports ``failure`` or ``success``, and a watchdog calls ``check``,
so that an attempt that hangs cannot hide an outage.
"""

import logging
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from typing import Final

from timeoutmgr.contracts import Clock
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.resilience.after_fork import ThreadSafe

logger = logging.getLogger(__name__)

ARMED_PAUSE: Final = 1.0
"""Seconds to wait after a failure before the outage is reported."""
TRIGGERED_PAUSE: Final = 10.0
"""Seconds to wait after a failure when the outage was reported: speed no longer matters."""
RATE_WINDOW: Final = 30.0
"""Seconds over which a failure rate is counted."""
_TRIGGERED: Final = {"event": "breaker_triggered"}


class BreakerState(StrEnum):
    """State of a breaker."""

    DISARMED = "disarmed"
    ARMED = "armed"
    TRIGGERED = "triggered"


class OutageBreaker(ThreadSafe):
    """Triggers once if nothing succeeds for *time_to_wait* after a first failure.

    The first failure arms it, and any success disarms it; a later outage triggers it again.
    *on_trigger* gets the latest error; if it raises, the error is logged and the breaker counts as
    triggered. Thread-safe.
    """

    def __init__(
        self,
        name: str,
        *,
        time_to_wait: timedelta,
        on_trigger: Callable[[BaseException], None],
        clock: Clock,
    ) -> None:
        if time_to_wait < timedelta(0):
            raise ConfigurationError(
                f"the wait of breaker {name!r} must not be negative, got {time_to_wait}"
            )
        self.name = name
        self._wait = time_to_wait.total_seconds()
        self._on_trigger = on_trigger
        self._clock = clock
        super().__init__()
        self._state = BreakerState.DISARMED
        self._armed_at = 0.0
        self._error: BaseException | None = None
        self._is_overdue = False
        self._is_retrying = False

    @property
    def state(self) -> BreakerState:
        """The present state."""
        return self._state

    def failure(self, error: BaseException) -> float:
        """Report a failure; return the seconds to pause before the next attempt."""
        self._arm(error, 0.0, is_overdue=False)
        with self._lock:
            if self._state is BreakerState.TRIGGERED:
                return TRIGGERED_PAUSE
            remaining = self._armed_at + self._wait - self._clock.monotonic()
            return max(0.0, min(ARMED_PAUSE, remaining))

    def overdue(self, error: BaseException, lasted: float) -> None:
        """Report a call that has been waiting for *lasted* seconds, and has not failed yet."""
        self._arm(error, lasted, is_overdue=True)

    def retrying(self) -> None:
        """Report an attempt that may take long, a handler's: until a failure nothing triggers."""
        self._is_retrying = True

    def answered(self) -> None:
        """Revert ``overdue``: the call was answered, and no attempt has failed since."""
        if self._is_overdue:
            self.success()

    def _arm(self, error: BaseException, lasted: float, *, is_overdue: bool) -> None:
        with self._lock:
            self._error = error
            self._is_retrying = False
            was_well = self._state is BreakerState.DISARMED
            self._is_overdue = is_overdue and (self._is_overdue or was_well)
            if self._state is BreakerState.DISARMED:
                self._state = BreakerState.ARMED
                self._armed_at = self._clock.monotonic() - lasted
                extra = {"event": "breaker_armed"}
                logger.warning(
                    "breaker %s is armed: %s", self.name, on_one_line(error), extra=extra
                )
        self.check()

    def success(self) -> None:
        """Report that a call worked."""
        if self.state is BreakerState.DISARMED:  # the hot path takes no lock
            return
        with self._lock:
            was, self._state = self._state, BreakerState.DISARMED
            self._error = None
            self._is_overdue = False
        if was is not BreakerState.DISARMED:
            logger.info("breaker %s is disarmed", self.name, extra={"event": "breaker_disarmed"})

    def check(self) -> None:
        """Trigger if the outage has lasted long enough."""
        with self._lock:
            lasted = self._clock.monotonic() - self._armed_at
            is_armed = self._state is BreakerState.ARMED and not self._is_retrying
            if not is_armed or lasted < self._wait:
                return
            self._state = BreakerState.TRIGGERED
            error = self._error
        assert error is not None, "an armed breaker has an error"
        logger.warning(
            "breaker %s triggers after %.1f s: %s",
            self.name,
            lasted,
            on_one_line(error),
            extra=_TRIGGERED,
        )
        _run_action(self.name, self._on_trigger, error)


class RateBreaker(ThreadSafe):
    """Triggers once if more than *per_second* x 30 failures occur within 30 seconds."""

    def __init__(
        self,
        name: str,
        *,
        per_second: float,
        on_trigger: Callable[[BaseException], None],
        clock: Clock,
    ) -> None:
        if per_second <= 0:
            raise ConfigurationError(
                f"the rate of breaker {name!r} must be positive, got {per_second}"
            )
        self.name = name
        self._most = per_second * RATE_WINDOW
        self._on_trigger = on_trigger
        self._clock = clock
        super().__init__()
        self._failures: deque[float] = deque(maxlen=int(self._most) + 1)
        self._triggered = False

    @property
    def state(self) -> BreakerState:
        """The present state; a window without failures disarms the breaker."""
        with self._lock:
            self._forget_old()
            if self._triggered:
                return BreakerState.TRIGGERED
            return BreakerState.ARMED if self._failures else BreakerState.DISARMED

    def check(self) -> None:
        """No-op: only a failure triggers this breaker."""

    def failure(self, error: BaseException) -> None:
        """Report a failure."""
        with self._lock:
            self._forget_old()
            self._failures.append(self._clock.monotonic())
            if self._triggered or len(self._failures) <= self._most:
                return
            self._triggered = True
        logger.warning("breaker %s triggers: %s", self.name, on_one_line(error), extra=_TRIGGERED)
        _run_action(self.name, self._on_trigger, error)

    def _forget_old(self) -> None:
        start = self._clock.monotonic() - RATE_WINDOW
        while self._failures and self._failures[0] <= start:
            self._failures.popleft()
        if not self._failures:
            self._triggered = False


def _run_action(name: str, action: Callable[[BaseException], None], error: BaseException) -> None:
    try:
        action(error)
    except Exception:
        extra = {"event": "breaker_action_failed"}
        logger.critical("the action of breaker %s failed", name, exc_info=True, extra=extra)


class SharedOutage(ThreadSafe):
    """An outage that all breakers over one server share: only the first that triggers reports it.

    Safe for many threads.
    """

    def __init__(self) -> None:
        super().__init__()
        self._reported_by: OutageBreaker | None = None

    def is_reported(self, by: OutageBreaker) -> bool:
        """Return whether another breaker has reported it and is still triggered; else *by* does."""
        with self._lock:
            first = self._reported_by
            if first is not None and first is not by and first.state is BreakerState.TRIGGERED:
                return True
            self._reported_by = by
            return False
