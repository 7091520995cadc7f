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

# --- lost transactions: tried again at once, and an outage only when they go on and on --------

IN_A_ROW: Final = 5
"""Conflicts without a success between, after which it is no chance any more."""
_LONGEST_PAUSE: Final = 0.02


class Conflicts:
    """Counts conflicts in a row; used by one thread."""

    def __init__(self) -> None:
        self._lost = 0

    def lost(self) -> float | None:
        """Note a conflict; return the seconds until another try, None where it is an outage."""
        self._lost += 1
        if self._lost > IN_A_ROW:
            return None
        # Two that meet again and again must not go on at the same moment.
        return random.uniform(0.001, _LONGEST_PAUSE) * self._lost

    def won(self) -> None:
        """Note a success."""
        self._lost = 0


LONGEST_WAIT: Final = timedelta(days=365_000)
"""The longest wait of a delayed retry: a due time must lie in the calendar, up to the year 9999."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverabilitySettings:
    """How often a failing message is tried.

    *immediate* attempts in a row (the first included), then up to *delayed* rounds, each after
    *increase* longer than the one before (10, 20, 30 s), none for a message whose last delayed
    retry is older than *max_age*.
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
        # By a division: a product may be too large for a timedelta.
        if self.delayed and self.increase > LONGEST_WAIT / self.delayed:
            raise ConfigurationError(
                f"the last of {self.delayed} delayed retries would wait {self.delayed} times "
                f"{self.increase}, longer than {LONGEST_WAIT.days} days; lower increase or delayed"
            )


SATELLITE_POLICY = RecoverabilitySettings(delayed=0)
"""Satellites try five times in a row, then give a message to the error queue."""


class Recovery(Enum):
    """The next step for a message whose handling failed."""

    RETRY_NOW = auto()
    RETRY_LATER = auto()
    MOVE_TO_ERROR = auto()


def decide(
    settings: RecoverabilitySettings, message: Message, error: Exception, attempt: int, now: Micros
) -> Recovery:
    """Return what to do after attempt number *attempt* (1 is the first) at *message* failed."""
    if isinstance(error, MessageRejected):
        return Recovery.MOVE_TO_ERROR
    if attempt < settings.immediate:
        return Recovery.RETRY_NOW
    if delayed_retries(message) < settings.delayed and not _too_old(settings, message, now):
        return Recovery.RETRY_LATER
    return Recovery.MOVE_TO_ERROR


def delayed_retries(message: Message) -> int:
    """Return how many delayed retries *message* has behind it; nonsense counts as none."""
    text = message.headers.get(headers.RETRIES, "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def retry_delay(settings: RecoverabilitySettings, message: Message) -> timedelta:
    """Return how long the next delayed retry waits: 10, 20, 30 seconds by default."""
    return settings.increase * (delayed_retries(message) + 1)


def _too_old(settings: RecoverabilitySettings, message: Message, now: Micros) -> bool:
    # An unreadable time must not cost a message its retries.
    since = instant_of(message.headers, headers.RETRIES_TIMESTAMP, now)
    return now - since > duration_micros(settings.max_age)
