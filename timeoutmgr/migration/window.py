"""Which timeouts a run takes, by their due times. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import EARLIEST, LATEST, Micros

MINUTE: Final = 60_000_000
SAFETY: Final = 15 * MINUTE
SOON: Final = 4 * 60 * MINUTE
"""A preview warns where the nearest timeout is due sooner than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Due from *cutoff* on and before *until* (None: any), and not within *safety* from now.

    A timeout due that soon stays with the source, whose own poller delivers it on time. So a run
    needs no pause of its endpoint, and nothing gets late by being moved. With *overdue* even
    timeouts that are due already are moved, for a source without a poller.
    """

    cutoff: Micros | None = None
    until: Micros | None = None
    safety: Micros = SAFETY
    overdue: bool = False

    def __post_init__(self) -> None:
        """Check the values."""
        if self.safety < 0:
            raise ConfigurationError(f"safety window must not be negative, got {self.safety} µs")
        if self.cutoff is not None and self.until is not None and self.until <= self.cutoff:
            raise ConfigurationError(
                "the cutoff must be before the end of the window; swap the two, or leave one out"
            )

    def first(self, now: Micros) -> Micros:
        """Return the earliest due instant that is taken at *now*."""
        cutoff = EARLIEST if self.cutoff is None else self.cutoff
        return cutoff if self.overdue else max(cutoff, now + self.safety)

    @property
    def end(self) -> Micros:
        """The instant before which a timeout must be due to be taken."""
        return LATEST + 1 if self.until is None else self.until
