"""The screen of ``timeoutmgr top``. Needs the extra ``timeoutmgr[top]``."""

import asyncio
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Final

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import DataTable, Footer, Header, Sparkline, Static
from textual.worker import Worker

from timeoutmgr.cli.output import plain
from timeoutmgr.contracts import HistoryEntry, Load
from timeoutmgr.endpoint.endpoint import Endpoint
from timeoutmgr.message.instants import Micros, distance, span
from timeoutmgr.web.operations import Operations
from timeoutmgr.web.page_texts import environment, shown_count
from timeoutmgr.web.readings import Reading, Readings
from timeoutmgr.web.regions import SPANS, USUAL_SPAN, LiveRegions
from timeoutmgr.web.source import EndpointSource, Overview, ProcessView

_REGIONS: Final = ("overview", "load", "queues", "processes", "recent")
_COLUMNS: Final[Mapping[str, Sequence[str]]] = {
    "destinations": ("destination", "earliest"),
    "queues": ("queue", "messages"),
    "processes": ("host", "process", "seen", "breakers", "version"),
    "recent": ("at", "event", "timeout", "destination"),
}
_NOTHING: Final = "\N{EN DASH}"
_MOST_DESTINATIONS: Final = 10


class Screen(App[None]):
    """Shows the numbers of one endpoint, from the readings of the dashboard."""

    TITLE = "timeoutmgr"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #banner { background: $error; color: $text; padding: 0 1; display: none; }
    #numbers, #span { padding: 0 1; }
    #load { height: 4; margin: 0 1; }
    Horizontal { height: auto; max-height: 13; }
    DataTable { height: auto; max-height: 12; width: 1fr; margin: 1 1 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", show=False),
        ("s", "next_span", "Next span"),
        ("r", "renew", "Read now"),
    ]

    def __init__(
        self, endpoint: Endpoint, every: float, *, readings: Readings | None = None
    ) -> None:
        super().__init__()
        self._clock = endpoint.parts.settings.clock
        self._readings = readings or Readings(self._clock)
        source = EndpointSource(endpoint)
        self._regions = LiveRegions(source, Operations(source), self._readings, environment())
        self._every = every
        self._span = USUAL_SPAN
        self._renewal: Worker[None] | None = None
        self.sub_title = plain(endpoint.name)

    def compose(self) -> ComposeResult:
        """Lay out the screen, still without numbers."""
        yield Header(icon="")
        yield Static(id="banner")
        yield Static(id="numbers")
        yield Static(id="span")
        yield Sparkline(id="load", summary_function=sum)
        for names in (("destinations", "queues"), ("processes", "recent")):
            with Horizontal():
                for name in names:
                    table = DataTable[Text](id=name, cursor_type="none", zebra_stripes=True)
                    table.add_columns(*_COLUMNS[name])
                    yield table
        yield Footer()

    def on_mount(self) -> None:
        """Read now, and then at intervals; SIGTERM ends the screen and restores the terminal."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.exit)
        self._read(live=True)
        self.set_interval(self._every, lambda: self._read(live=True))

    def on_unmount(self) -> None:
        """Stop reading."""
        self._readings.close()

    def action_renew(self) -> None:
        """Read all numbers again, on a person's request."""
        self._readings.forget()
        self._read(live=False)

    def action_next_span(self) -> None:
        """Show the next longer span of the load; after the longest, the shortest."""
        names = [*SPANS]
        self._span = dict(pairwise([*names, names[0]]))[self._span]
        self._read(live=False)

    def _read(self, *, live: bool) -> None:
        # Reads that overlap would only wait for each other.
        if not live or self._renewal is None or self._renewal.is_finished:
            self._renewal = self._renew(live)

    @work(exclusive=True)
    async def _renew(self, live: bool) -> None:
        given = {"span": self._span}
        found = await asyncio.to_thread(self._regions.readings, _REGIONS, given, live=live)
        self._show(found)

    def _show(self, found: Mapping[str, Reading]) -> None:
        values = {name: reading.value for name, reading in found.items()}
        now = self._clock.now()
        self._show_banner([*found.values()], now)
        if (overview := values["overview"]) is not None:
            self._show_overview(overview)
            # The rows have times of the store's clock, which may differ from this host's clock.
            now += overview.now - (found["overview"].at or now)
        if values["load"] is not None:
            self._show_load(values["load"])
        rows: dict[str, Callable[[Any, Micros], Iterable[Sequence[Any]]]] = {
            "queues": _queue_rows,
            "processes": _process_rows,
            "recent": _event_rows,
        }
        for name, rows_of in rows.items():
            if values[name] is not None:
                self._fill(name, rows_of(values[name], now))

    def _show_banner(self, readings: Sequence[Reading], now: Micros) -> None:
        bad = [each for each in readings if each.problem is not None]
        oldest = min((each.at for each in bad if each.at is not None), default=None)
        age = "no numbers yet" if oldest is None else f"numbers of {span(now - oldest)} ago"
        lines = dict.fromkeys(f"{each.summary} {each.problem}" for each in bad)
        banner = self.query_one("#banner", Static)
        banner.display = bool(bad)
        banner.update(_text("; ".join([*lines, age])))

    def _show_overview(self, found: Overview) -> None:
        numbers = {
            "pending": shown_count(found.pending),
            "next due": _distance(found.next_due, found.now),
            "overdue": shown_count(found.overdue.count),
            "oldest": _distance(found.overdue.oldest, found.now),
            "in flight": shown_count(found.in_flight),
            "pauses": ", ".join(each.destination or "all" for each in found.pauses) or _NOTHING,
        }
        text = "   ".join(f"{name} {number}" for name, number in numbers.items())
        self.query_one("#numbers", Static).update(_text(text))
        busiest = sorted(found.destinations.counts.items(), key=lambda each: -each[1])
        rows = [(name, shown_count(number)) for name, number in busiest[:_MOST_DESTINATIONS]]
        self._fill("destinations", rows)

    def _show_load(self, load: Load) -> None:
        name, _width, _buckets = SPANS[self._span]
        title = f"the next {name}: {shown_count(load.total)} timeouts"
        if load.as_of != load.at:
            title += f", counted {distance(load.as_of, load.at)}"
        self.query_one("#span", Static).update(_text(title))
        self.query_one("#load", Sparkline).data = [float(each.number) for each in load.counts]

    def _fill(self, name: str, rows: Iterable[Sequence[Any]]) -> None:
        table: DataTable[Text] = self.query_one(f"#{name}", DataTable)
        table.clear()
        for row in rows:
            table.add_row(*(_text(_NOTHING if cell is None else str(cell)) for cell in row))


def _queue_rows(queues: Mapping[str, int | None], _now: Micros) -> Iterable[Sequence[Any]]:
    for name, number in queues.items():
        yield name, "missing" if number is None else shown_count(number)


def _process_rows(found: Sequence[ProcessView], now: Micros) -> Iterable[Sequence[Any]]:
    if not found:
        yield "none: timeoutmgr run", *[None] * 4
    for each in found:
        breakers = ", ".join(f"{name} {state}" for name, state in each.breakers.items())
        yield each.host, each.pid, distance(each.heartbeat, now), breakers or None, each.version


def _event_rows(found: Sequence[HistoryEntry], now: Micros) -> Iterable[Sequence[Any]]:
    for each in found:
        yield distance(each.at, now), each.event, each.id, each.destination


def _distance(at: Micros | None, now: Micros) -> str:
    return _NOTHING if at is None else distance(at, now)


def _text(text: str) -> Text:
    # Neutralize markup and control characters: names may come from strangers.
    return Text(plain(text))
