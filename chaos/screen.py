"""What is seen while a run goes on: one live line, or plain lines where there is no terminal."""

import os
import sys
import time
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from rich.console import Console
from rich.status import Status

from timeoutmgr.testing.chaos.judge import Percentiles

LINE_EVERY: Final = 5.0

Shown = TypeVar("Shown", contravariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The run at one moment; *phase* says what goes on, *elapsed* is seconds since the begin."""

    phase: str
    elapsed: float
    accepted: int
    delivered: int
    outstanding: int
    kills: int
    pauses: int
    cuts: int
    lost_replies: int
    restarts: int
    lateness: Percentiles

    def __str__(self) -> str:
        return (
            f"{self.elapsed:5.0f} s {self.phase}: accepted {self.accepted}, "
            f"delivered {self.delivered}, outstanding {self.outstanding}; kills {self.kills}, "
            f"pauses {self.pauses}, cut {self.cuts}, lost replies {self.lost_replies}, "
            f"restarts {self.restarts}; lateness {self.lateness}"
        )


class Screen(Protocol[Shown]):
    """Shows a run; all of it goes to standard error."""

    def show(self, look: Shown) -> None:
        """Show how it stands."""
        ...

    def say(self, line: str) -> None:
        """Print a line that stays."""
        ...

    def close(self) -> None:
        """End it."""
        ...


def screen() -> Screen[Look]:
    """Return a live line on a terminal, else plain lines."""
    console = Console(stderr=True)
    if console.is_terminal and not os.environ.get("CI"):
        return LiveLine(console)
    return Lines(every=LINE_EVERY)


class LiveLine:
    """A line that is redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._status = Status("starting", console=console)
        self._status.start()

    def show(self, look: Look) -> None:
        """Redraw the line."""
        self._status.update(str(look))

    def say(self, line: str) -> None:
        """Print above it."""
        self._status.console.print(line, highlight=False, markup=False)

    def close(self) -> None:
        """Take it away."""
        self._status.stop()


class Lines:
    """A line *every* so many seconds."""

    def __init__(self, *, every: float) -> None:
        self._every = every
        self._next = 0.0

    def show(self, look: object) -> None:
        """Print a line if the last one is long ago."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._every
            self.say(str(look))

    def say(self, line: str) -> None:
        """Print it."""
        print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Nothing is to be undone."""


class Silence:
    """Nothing is shown, as a program wants it that runs chaos itself."""

    def show(self, look: object) -> None:
        """Show nothing."""

    def say(self, line: str) -> None:
        """Say nothing."""

    def close(self) -> None:
        """Nothing is to be undone."""
