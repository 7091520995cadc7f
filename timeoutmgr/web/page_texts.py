"""The templates of the pages, and the format of numbers, instants and durations in them."""

import json
from datetime import UTC, datetime, timedelta, tzinfo
from hashlib import sha256
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from timeoutmgr._version import __version__
from timeoutmgr.contracts import Count, Load
from timeoutmgr.message.instants import Micros, distance, from_micros, to_micros
from timeoutmgr.web.forms import text_of

_FOLDER: Final = Path(__file__).parent
_NOTHING: Final = "\N{EN DASH}"
STATIC: Final = _FOLDER / "static"
_POLL: Final = 5.0
"""Seconds between the requests of a page that polls."""


def environment() -> Environment:
    """Return the template environment; it escapes values, and a missing value is an error."""
    made = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        count=shown_count,
        number=_number,
        instant=_instant,
        local=_local,
        iso=_iso,
        duration=_duration,
        field=text_of,
        micros=to_micros,
        bytes=_bytes,
        body=_body,
    )
    made.globals.update(
        link=_link,
        asset=_asset,
        region=_region,
        renews=_renews,
        load_data=_load_data,
        distance=distance,
        version=__version__,
    )
    return made


def shown_count(count: Count | int) -> str:
    """Return a number as text, marked if it is a minimum or an estimate."""
    if isinstance(count, int):
        return _number(count)
    if count.is_estimate:
        return f"≈ {_number(count.number)}"
    return _number(count.number) if count.exact else f"≥ {_number(count.number)}"


def _number(number: int | None) -> str:
    # A narrow space: a comma has different meanings in different countries.
    return _NOTHING if number is None else f"{number:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def _instant(at: Micros | datetime) -> str:
    """Return an instant for people: to the second, in UTC."""
    return (from_micros(at) if isinstance(at, int) else at).strftime("%Y-%m-%d %H:%M:%S")


def _local(at: Micros, zone: tzinfo) -> str:
    """Return an instant as the clocks of *zone* show it, with their difference from UTC."""
    local = from_micros(at).astimezone(zone)
    return local.strftime("%Y-%m-%d %H:%M:%S" if zone is UTC else "%Y-%m-%d %H:%M:%S %z")


def _iso(at: Micros | datetime) -> str:
    return (from_micros(at) if isinstance(at, int) else at).isoformat()


def _duration(micros: Micros) -> str:
    """Return the length of a duration, to the second: ``2:30:00``."""
    return str(timedelta(seconds=abs(micros) // 1_000_000))


_KIBI: Final = 1024


def _bytes(size: int) -> str:
    """Return a number of bytes in its unit."""
    if size < _KIBI:
        return f"{size} B"
    return f"{size / _KIBI:.1f} KiB" if size < _KIBI**2 else f"{size / _KIBI**2:.1f} MiB"


def _body(body: bytes) -> str:
    """Return a body as text; bytes that are not text are escaped."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body.hex(" ", 4)


@pass_context
def _link(context: Context, path: str) -> str:
    """Return the address of a page, below the prefix at which the host mounted the dashboard."""
    return f"{context['prefix']}{path}"


@pass_context
def _region(context: Context, name: str) -> Markup:
    """Return the region *name* of a page, which is updated live."""
    html = Markup(context["html"][name])
    return Markup('<div id="region-{}" {}>{}</div>').format(name, _renews(context, name), html)


@pass_context
def _renews(context: Context, name: str) -> Markup:
    """Return the attributes of an element that is updated live."""
    if context["live"] == "events":
        return Markup('sse-swap="{}" hx-swap="morph:innerHTML"').format(name)
    address = f"{context['prefix']}/regions/{name}?{context['query']}"
    every = f"every {_POLL:g}s"
    attributes = 'hx-get="{}" hx-trigger="{}" hx-swap="morph:innerHTML"'
    return Markup(attributes).format(address, every)


def _load_data(load: Load) -> str:
    """Return a histogram as JSON for an attribute, which the template escapes."""
    counts = [count.number for count in load.counts]
    marks = [count.exactness.value for count in load.counts]
    edges, zone = load.window.edges, str(load.window.zone)
    return json.dumps({"edges": [*edges], "zone": zone, "counts": counts, "marks": marks})


_DIGESTS: dict[str, str] = {}


@pass_context
def _asset(context: Context, name: str) -> str:
    """Return the address of a static file; it contains a digest, so browsers may cache the file."""
    digest = _DIGESTS.get(name)
    if digest is None:
        digest = _DIGESTS[name] = sha256((STATIC / name).read_bytes()).hexdigest()[:12]
    return f"{context['prefix']}/static/{name}?v={digest}"
