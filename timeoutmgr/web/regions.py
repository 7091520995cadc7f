"""Regions: parts of pages that are updated live; each has a reading and a template."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import tzinfo
from typing import Any, Final

from jinja2 import Environment

from timeoutmgr.contracts import Load, LoadWindow
from timeoutmgr.contracts.reports import DAY
from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message.instants import EARLIEST, LATEST, Micros, from_micros, span, zone_of
from timeoutmgr.web.forms import instant_of
from timeoutmgr.web.operations import Operations, RunView
from timeoutmgr.web.readings import Question, Reading, Readings
from timeoutmgr.web.source import EndpointSource, WindowOfNow

Parameters = Mapping[str, str]

_MINUTE: Final[Micros] = 60_000_000
SPANS: Final[Mapping[str, tuple[str, Micros, int]]] = {
    "hour": ("1 hour", _MINUTE, 60),
    "day": ("24 hours", 15 * _MINUTE, 96),
    "week": ("7 days", 60 * _MINUTE, 168),
    "month": ("30 days", 6 * 60 * _MINUTE, 120),
    "year": ("1 year", 3 * 24 * 60 * _MINUTE, 122),
}
"""Spans of the histogram: display name, width of a bucket, and number of buckets."""
USUAL_SPAN: Final = "day"
_MOST_RENDERED: Final = 200
_SHOWN_FOR: Final = 60.0
"""Maximum age in seconds of numbers that a page shows immediately; an update follows."""


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a page. *cost* is the maximum number of statements of *read*.

    *keys* are the parameters of the address that select the numbers.
    """

    name: str
    read: Callable[[EndpointSource, Operations, Parameters], Any]
    _: KW_ONLY
    max_age: float
    cost: int
    keys: tuple[str, ...] = ()


def _load(source: EndpointSource, _operations: Operations, given: Parameters) -> Load:
    return source.load(window_of(given), given.get("destination", ""))


def _run(_source: EndpointSource, operations: Operations, given: Parameters) -> RunView | None:
    return operations.run(given.get("run", ""))


def window_of(given: Parameters) -> LoadWindow | WindowOfNow:
    """Return the histogram's window in the *given* parameters. Raises InvalidMessage."""
    name, width, buckets = SPANS[span_of(given)]
    start, zone = instant_of(given.get("start", "")), _zone_in(given)
    if start is None:
        return WindowOfNow(width, buckets, zone)
    # Local times differ from UTC by less than a day.
    if not EARLIEST + DAY <= start <= LATEST - DAY - width * buckets:
        raise InvalidMessage(
            f"{name} from {from_micros(start):%Y-%m-%d} reaches beyond the years 1 to 9999; choose "
            "another start or a shorter span"
        )
    return LoadWindow(start, width, buckets, zone)


def _zone_in(given: Parameters) -> tzinfo:
    """Return the time zone of the histogram's days in *given*. Raises InvalidMessage."""
    try:
        return zone_of(given.get("zone", "").strip() or "UTC")
    except ValueError as error:
        raise InvalidMessage(f"{error}; expected a name such as Europe/Berlin") from error


def span_of(given: Parameters) -> str:
    """Return the histogram's span in the *given* parameters. Raises InvalidMessage."""
    name = given.get("span") or USUAL_SPAN
    if name not in SPANS:
        raise InvalidMessage(f"{name[:40]!r} is not a span; expected {', '.join(SPANS)}")
    return name


REGIONS: Final = {
    each.name: each
    for each in (
        Region("overview", lambda source, *_: source.overview(), max_age=10, cost=18),
        Region("queues", lambda source, *_: source.queues(), max_age=15, cost=8),
        Region("recent", lambda source, *_: source.recent(), max_age=15, cost=3),
        Region("load", _load, max_age=20, cost=14, keys=("span", "start", "destination", "zone")),
        Region("late", lambda source, *_: source.late(), max_age=10, cost=14),
        Region("processes", lambda source, *_: source.processes(), max_age=15, cost=2),
        Region("runs", lambda _, operations, *__: operations.runs(), max_age=10, cost=2),
        Region("run", _run, max_age=2, cost=6, keys=("run",)),
        Region("pauses", lambda _, operations, *__: operations.pauses(), max_age=10, cost=4),
    )
}


class LiveRegions:
    """The regions of one endpoint; each is read and rendered once for all browsers."""

    def __init__(
        self,
        source: EndpointSource,
        operations: Operations,
        readings: Readings,
        templates: Environment,
    ) -> None:
        self._source = source
        self._operations = operations
        self._readings = readings
        self._templates = templates
        self._rendered: OrderedDict[Hashable, tuple[Reading, str]] = OrderedDict()

    def readings(
        self, names: Sequence[str], given: Parameters, *, live: bool
    ) -> dict[str, Reading]:
        """Return the readings of the regions *names*, reading them concurrently."""
        asked = [self._question(REGIONS[name], given) for name in names]
        shown_for = 0 if live else _SHOWN_FOR
        found = self._readings.get_all(asked, live=live, shown_for=shown_for)
        return dict(zip(names, found, strict=True))

    def _question(self, region: Region, given: Parameters) -> Question:
        return Question(
            _key(region, given),
            lambda: region.read(self._source, self._operations, given),
            max_age=region.max_age,
            cost=region.cost,
        )

    def is_fresh(self, name: str, given: Parameters) -> bool:
        """Return whether the region needs no read now."""
        region = REGIONS[name]
        return self._readings.fresh(_key(region, given), region.max_age) is not None

    def html(self, name: str, given: Parameters, reading: Reading, prefix: str) -> str:
        """Return the region *name* as HTML, rendered once per reading."""
        key = (*_key(REGIONS[name], given), prefix)
        known = self._rendered.get(key)
        if known is not None and known[0] == reading:
            return known[1]
        template = self._templates.get_template(f"regions/{name}.html")
        html = template.render(
            prefix=prefix, found=reading.value, at=reading.at, given=given, spans=SPANS
        )
        self._rendered[key] = reading, html
        while len(self._rendered) > _MOST_RENDERED:
            self._rendered.popitem(last=False)
        return html

    def banner(
        self, readings: list[Reading], now: Micros, prefix: str, *, renews: bool = True
    ) -> str:
        """Return the banner about *readings* whose last read failed; empty if there are none.

        *renews* says that the page is updated live.
        """
        bad = [each for each in readings if each.problem is not None]
        problems = dict.fromkeys((each.summary, each.problem) for each in bad)
        oldest = min((each.at for each in bad if each.at is not None), default=None)
        return self._templates.get_template("regions/banner.html").render(
            prefix=prefix,
            renews=renews,
            problems=list(problems),
            at=oldest,
            age=None if oldest is None else span(now - oldest),
        )


def _key(region: Region, given: Parameters) -> tuple[str, ...]:
    return region.name, *(given.get(each, "") for each in region.keys)
