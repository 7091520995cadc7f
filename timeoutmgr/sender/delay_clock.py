"""The clock by which a relative delay becomes a due time."""

from collections.abc import Callable
from dataclasses import dataclass, field

from timeoutmgr.contracts import Clock
from timeoutmgr.message.instants import Micros


@dataclass(slots=True)
class WindowClock:
    """A database's clock for the messages of one window: asked once, at the first delay.

    From then on the monotonic clock counts, because a caller may take long to draw the next
    message. *ask* returns None if the host's clock is the only clock.
    """

    ask: Callable[[], Micros | None]
    clock: Clock
    _asked: tuple[Micros | None, float] | None = field(default=None, init=False)

    def __call__(self) -> Micros | None:
        """Return the database's time now; None if only the host's clock counts."""
        if self._asked is None:
            # Read before the answer comes: the error makes a message late, never early.
            before = self.clock.monotonic()
            self._asked = (self.ask(), before)
        theirs, since = self._asked
        if theirs is None:
            return None
        return theirs + round((self.clock.monotonic() - since) * 1_000_000)
