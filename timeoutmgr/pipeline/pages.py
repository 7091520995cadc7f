"""Reports as single HTML pages with embedded pictures: no scripts, no external resources."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from html import escape
from typing import Final

from timeoutmgr.message.instants import Micros, from_micros

WIDTH: Final = 960
HEIGHT: Final = 220
_LEFT: Final = 70
_BOTTOM: Final = 28
_TOP: Final = 12

_STYLE: Final = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 60em; padding: 0 1em;
  color: #1b1f24; background: #fff }
h1 { font-size: 1.5em } h2 { font-size: 1.15em; margin-top: 2em }
table { border-collapse: collapse; width: 100% }
td, th { text-align: left; padding: .25em .8em .25em 0; border-bottom: 1px solid #e3e6ea }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums }
svg { width: 100%; height: auto } .bar { fill: #2563a8 } .hot { fill: #c2410c }
.axis { stroke: #8a929b; stroke-width: 1 } text { font-size: 12px; fill: #4b535c }
.well { color: #166534 } .bad { color: #b42318; font-weight: 600 } p.note { color: #4b535c }
@media (prefers-color-scheme: dark) { body { background: #14171a; color: #e6e9ec }
  td, th { border-color: #2c3238 } text, p.note { fill: #a6afb8; color: #a6afb8 }
  .bar { fill: #6ea8e0 } .hot { fill: #f08a4b } .well { color: #6fcf8f } .bad { color: #ff8a7a } }
"""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a picture: the label below it, its height, and its tooltip."""

    label: str
    value: float
    says: str
    hot: bool = False


def page(title: str, parts: Sequence[str]) -> str:
    """Return a page; *parts* are HTML, *title* is text."""
    shown = escape(title)
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{shown}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{shown}</h1>\n"
        f"{body}\n</body>\n</html>\n"
    )


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table with right-aligned numbers."""
    if not rows:
        return '<p class="note">None.</p>'
    numbers = [isinstance(value, int | float) for value in rows[0]]

    def line(tag: str, values: Sequence[object]) -> str:
        cells = (
            f"<{tag}{' class=number' if number else ''}>{escape(_text(value))}</{tag}>"
            for value, number in zip(values, numbers, strict=True)
        )
        return f"<tr>{''.join(cells)}</tr>"

    return (
        f"<table>\n<thead>{line('th', columns)}</thead>\n<tbody>\n"
        + "\n".join(line("td", row) for row in rows)
        + "\n</tbody>\n</table>"
    )


def bars(about: str, values: Sequence[Bar]) -> str:
    """Return a bar chart of *values*; *about* describes it for the blind."""
    if not values:
        return '<p class="note">Nothing to show.</p>'
    highest = max(bar.value for bar in values) or 1
    room, base = WIDTH - _LEFT, HEIGHT - _BOTTOM
    each = room / len(values)
    drawn = []
    for at, bar in enumerate(values):
        high = (base - _TOP) * bar.value / highest
        drawn.append(
            f'<rect class="{"hot" if bar.hot else "bar"}" x="{_LEFT + at * each:.1f}" '
            f'y="{base - high:.1f}" width="{max(each - (each > 3), 0.5):.1f}" '
            f'height="{high:.1f}"><title>{escape(bar.says)}</title></rect>'
        )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(about, quote=True)}">'
        f'<line class="axis" x1="{_LEFT}" x2="{WIDTH}" y1="{base}" y2="{base}"/>'
        f'<text x="{_LEFT - 6}" y="{_TOP + 8}" text-anchor="end">{escape(_text(highest))}</text>'
        f'<text x="{_LEFT - 6}" y="{base}" text-anchor="end">0</text>'
        f"{''.join(drawn)}{''.join(_labels(values, each))}</svg>"
    )


def _labels(values: Sequence[Bar], each: float) -> list[str]:
    step = max(1, -(-len(values) // 8))
    return [
        f'<text x="{_LEFT + (at + 0.5) * each:.1f}" y="{HEIGHT - 8}" text-anchor="middle">'
        f"{escape(values[at].label)}</text>"
        for at in range(step // 2, len(values), step)
    ]


def _text(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,g}" if isinstance(value, float) else str(value)


def shown_time(instant: Micros) -> str:
    """Return *instant* as text for a page."""
    return from_micros(instant).strftime("%Y-%m-%d %H:%M:%S UTC")


def shown_span(span: timedelta) -> str:
    """Return *span* with three digits, in the largest suitable unit."""
    seconds = span.total_seconds()
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"), (1e-3, "ms")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
