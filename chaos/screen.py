"""Display of a run: a live line, or plain lines without a terminal."""

import os
import sys
import time
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from rich.console import Console
from rich.status import Status

from chaos.judge import Percentiles

LINE_EVERY: Final = 5.0

Shown = TypeVar("Shown", contravariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a run; *phase* is chaos or drain, *elapsed* is seconds since the begin."""

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

    def show(self, progress: Shown) -> None:
        """Show the progress."""
        ...

    def say(self, line: str) -> None:
        """Print a line that stays."""
        ...

    def close(self) -> None:
        """Remove the display."""
        ...


def screen() -> Screen[Progress]:
    """Return a live line on a terminal, plain lines otherwise."""
    console = Console(stderr=True)
    if console.is_terminal and not os.environ.get("CI"):
        return LiveLine(console)
    return Lines(every=LINE_EVERY)


class LiveLine:
    """A line that is redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._status = Status("starting", console=console)
        self._status.start()

    def show(self, progress: Progress) -> None:
        """Redraw the line."""
        self._status.update(str(progress))

    def say(self, line: str) -> None:
        """Print above it."""
        self._status.console.print(line, highlight=False, markup=False)

    def close(self) -> None:
        """Remove the line."""
        self._status.stop()


class Lines:
    """A line *every* so many seconds."""

    def __init__(self, *, every: float) -> None:
        self._every = every
        self._next = 0.0

    def show(self, progress: object) -> None:
        """Print a line, unless the previous line is recent."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._every
            self.say(str(progress))

    def say(self, line: str) -> None:
        """Print it."""
        print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """No-op."""


class Silence:
    """No display: for a program that runs chaos itself."""

    def show(self, progress: object) -> None:
        """Show nothing."""

    def say(self, line: str) -> None:
        """Say nothing."""

    def close(self) -> None:
        """No-op."""
