"""Display of the day: a live table, or plain lines without a terminal."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.table import Table

from chaos import Percentiles
from chaos.screen import Lines, Screen

LINE_EVERY: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of the run. *clock* is the time of the real day, *processes* name and state."""

    clock: str
    accepted: int
    pending: int
    due: int
    dispatched: int
    delivered: int
    lateness: Percentiles
    processes: Sequence[tuple[str, str]]

    def __str__(self) -> str:
        alive = sum(state == "alive" for _name, state in self.processes)
        return (
            f"{self.clock}  accepted {self.accepted}  pending {self.pending}  due {self.due}  "
            f"dispatched {self.dispatched}  delivered {self.delivered}  "
            f"lateness {self.lateness}  processes {alive}"
        )


def screen() -> Screen[Progress]:
    """Return a live table on a terminal, otherwise plain lines; both use standard error."""
    console = Console(stderr=True)
    if console.is_terminal and not os.environ.get("CI"):
        return LiveTable(console)
    return Lines(every=LINE_EVERY)


class LiveTable:
    """A table that is redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=8)
        self._live.start()

    def show(self, progress: Progress) -> None:
        table = Table(title=f"Departures from New York, 2013-12-23, {progress.clock}", min_width=60)
        for title in ("accepted", "pending", "due", "dispatched", "delivered"):
            table.add_column(title, justify="right")
        numbers = (
            progress.accepted,
            progress.pending,
            progress.due,
            progress.dispatched,
            progress.delivered,
        )
        table.add_row(*(str(number) for number in numbers))
        states = ", ".join(_coloured(name, state) for name, state in progress.processes)
        table.caption = f"lateness {progress.lateness}\n{states}"
        self._live.update(table)

    def say(self, line: str) -> None:
        self._live.console.print(line, highlight=False)

    def close(self) -> None:
        self._live.stop()


def _coloured(name: str, state: str) -> str:
    return f"[{'green' if state in ('alive', 'ended') else 'red'}]{name} {state}[/]"
