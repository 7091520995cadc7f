"""Recoverability: try again now, try again later, or move to the error queue. A pure function."""

import random
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from typing import Final

from timeoutmgr.errors import ConfigurationError, MessageRejected
from timeoutmgr.message import headers
from timeoutmgr.message.field_types import check_field_types
from timeoutmgr.message.instants import Micros, duration_micros, instant_of
from timeoutmgr.message.message import Message

# --- lost transactions: retried at once; an outage only if they continue ----------------------

IN_A_ROW: Final = 5
"""Consecutive conflicts after which the next counts as an outage."""
_LONGEST_PAUSE: Final = 0.02


class Conflicts:
    """Counts consecutive conflicts; for a single thread."""

    def __init__(self) -> None:
        self._lost = 0

    def lost(self) -> float | None:
        """Record a conflict; return the seconds until another try, None if it is an outage."""
        self._lost += 1
        if self._lost > IN_A_ROW:
            return None
        # Two transactions in conflict must not retry at the same moment.
        return random.uniform(0.001, _LONGEST_PAUSE) * self._lost

    def won(self) -> None:
        """Record a success."""
        self._lost = 0


LONGEST_WAIT: Final = timedelta(days=365_000)
"""Longest wait of a delayed retry: a due time must not be after the year 9999."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverabilitySettings:
    """Settings of the retries of a failing message.

    First *immediate* attempts in a row, including the first; then up to *delayed* rounds, whose
    wait grows by *increase* each time (10, 20, 30 s); none for a message whose last delayed retry
    is older than *max_age*.
    """

    immediate: int = 5
    delayed: int = 3
    increase: timedelta = timedelta(seconds=10)
    max_age: timedelta = timedelta(days=1)

    def __post_init__(self) -> None:
        """Check every value."""
        check_field_types(self)
        if self.immediate < 1:
            raise ConfigurationError(
                f"immediate attempts include the first, so at least 1; got {self.immediate}"
            )
        if self.delayed < 0:
            raise ConfigurationError(f"delayed retries must not be negative, got {self.delayed}")
        if self.increase <= timedelta(0):
            raise ConfigurationError(
                f"the increase of delayed retries must be positive, got {self.increase}"
            )
        # A division, because a product may be too large for a timedelta.
        if self.delayed and self.increase > LONGEST_WAIT / self.delayed:
            raise ConfigurationError(
                f"the last of {self.delayed} delayed retries would wait {self.delayed} times "
                f"{self.increase}, longer than {LONGEST_WAIT.days} days; lower increase or delayed"
            )


SATELLITE_POLICY = RecoverabilitySettings(delayed=0)
"""Satellites try five times in a row, then move a message to the error queue."""


class Recovery(Enum):
    """The next step for a message whose handling failed."""

    RETRY_NOW = auto()
    RETRY_LATER = auto()
    MOVE_TO_ERROR = auto()


def decide(
    settings: RecoverabilitySettings, message: Message, error: Exception, attempt: int, now: Micros
) -> Recovery:
    """Return the step after attempt number *attempt* (the first is 1) at *message* failed."""
    if isinstance(error, MessageRejected):
        return Recovery.MOVE_TO_ERROR
    if attempt < settings.immediate:
        return Recovery.RETRY_NOW
    if delayed_retries(message) < settings.delayed and not _too_old(settings, message, now):
        return Recovery.RETRY_LATER
    return Recovery.MOVE_TO_ERROR


def delayed_retries(message: Message) -> int:
    """Return how many delayed retries *message* has had; 0 if its header is malformed."""
    text = message.headers.get(headers.RETRIES, "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def retry_delay(settings: RecoverabilitySettings, message: Message) -> timedelta:
    """Return the wait before the next delayed retry: 10, 20, 30 seconds by default."""
    return settings.increase * (delayed_retries(message) + 1)


def _too_old(settings: RecoverabilitySettings, message: Message, now: Micros) -> bool:
    # A message with an unreadable time keeps its retries.
    since = instant_of(message.headers, headers.RETRIES_TIMESTAMP, now)
    return now - since > duration_micros(settings.max_age)
