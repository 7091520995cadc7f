"""The clock of a testing kit: it stands still until it is moved."""

from collections.abc import Callable
from datetime import UTC, datetime

from timeoutmgr.message.instants import Micros, from_micros, to_micros

Moved = Callable[[datetime], object]
"""Called with each new instant, to move a clock of the user's."""


class KitClock:
    """A clock that stands still, at *start* or at the present instant of the host."""

    def __init__(self, start: datetime | None = None) -> None:
        self._began = _host_now()
        self._is_fixed = start is not None
        self._instant: Micros = self._began if start is None else to_micros(start)
        self._first = self._instant
        self._moved: list[Moved] = []

    def now(self) -> Micros:
        """Return the instant at which the clock stands."""
        return self._instant

    def monotonic(self) -> float:
        """Return the seconds by which the clock has been moved."""
        return (self._instant - self._first) / 1_000_000

    @property
    def instant(self) -> datetime:
        """The instant as an aware datetime in UTC."""
        return from_micros(self._instant)

    def move_to(self, instant: Micros) -> None:
        """Move the clock forward; an earlier instant leaves it where it stands."""
        if instant > self._instant:
            self._instant = instant
            for call in self._moved:
                call(self.instant)

    def on_move(self, call: Moved) -> None:
        """Call *call* with each new instant."""
        self._moved.append(call)

    def catch_up(self) -> None:
        """Move the clock by the time that has passed on the host, unless a start was given.

        A program computes ``deliver_at`` from the host's clock, which runs on while the kit's clock
        stands still: without this step, an advance of 14 days would end just before it.
        """
        if not self._is_fixed:
            self.move_to(self._first + _host_now() - self._began)


def _host_now() -> Micros:
    # As programs read it: time.time of a frozen clock is a float, and up to a microsecond less.
    return to_micros(datetime.now(UTC))
