"""What is seen while the day runs: a live table, or plain lines where there is no terminal."""

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from judge import Percentiles
from rich.console import Console
from rich.live import Live
from rich.table import Table

LINE_EVERY: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The run at one moment. *clock* is the time of the real day, *processes* name and state."""

    clock: str
    accepted: int
    pending: int
    due: int
    dispatched: int
    delivered: int
    lateness: Percentiles
    processes: Sequence[tuple[str, str]]


class Screen(Protocol):
    def show(self, look: Look) -> None: ...

    def say(self, line: str) -> None: ...

    def close(self) -> None: ...


def screen() -> Screen:
    """Return a live table on a terminal, else plain lines; all of it goes to standard error."""
    console = Console(stderr=True)
    if console.is_terminal and not os.environ.get("CI"):
        return LiveTable(console)
    return Lines()


class LiveTable:
    """A table that is redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=8)
        self._live.start()

    def show(self, look: Look) -> None:
        table = Table(title=f"Departures from New York, 2013-12-23, {look.clock}", min_width=60)
        for title in ("accepted", "pending", "due", "dispatched", "delivered"):
            table.add_column(title, justify="right")
        numbers = (look.accepted, look.pending, look.due, look.dispatched, look.delivered)
        table.add_row(*(str(number) for number in numbers))
        states = ", ".join(_coloured(name, state) for name, state in look.processes)
        table.caption = f"lateness {look.lateness}\n{states}"
        self._live.update(table)

    def say(self, line: str) -> None:
        self._live.console.print(line, highlight=False)

    def close(self) -> None:
        self._live.stop()


class Lines:
    """A line now and then."""

    def __init__(self) -> None:
        self._next = 0.0

    def show(self, look: Look) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LINE_EVERY
        alive = sum(state == "alive" for _name, state in look.processes)
        self.say(
            f"{look.clock}  accepted {look.accepted}  pending {look.pending}  due {look.due}  "
            f"dispatched {look.dispatched}  delivered {look.delivered}  "
            f"lateness {look.lateness}  processes {alive}"
        )

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Nothing is to be undone."""


def _coloured(name: str, state: str) -> str:
    return f"[{'green' if state in ('alive', 'ended') else 'red'}]{name} {state}[/]"
