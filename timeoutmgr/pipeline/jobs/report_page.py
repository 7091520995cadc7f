"""The page of ``report``: Vega-Lite charts, embedded as SVG, so that it needs no script."""

from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any, Final

from timeoutmgr.message.instants import from_micros
from timeoutmgr.pipeline.errors import require_extra
from timeoutmgr.pipeline.pages import page, shown_span, table

if TYPE_CHECKING:
    from timeoutmgr.pipeline.jobs.report import StoresReport

_WIDTH: Final = 760
_SHOWN: Final = 30
_LOW: Final = 0.9
"""Share of kept promises at which the colour scale begins; lower shares look the same."""
_SIZE: Final = 14  # pages use 12, in a font that may be wider than the measured font
_AXES: Final[dict[str, Any]] = {
    **{"gridColor": "#8883", "domainColor": "#888", "tickColor": "#888"},
    **{"labelFontSize": _SIZE, "labelLimit": 300},
}


def require_charts() -> None:
    """Raise PipelineUnavailable if the extra for the page is not installed."""
    require_extra("report", "the page of a report", "altair", "vl_convert")


def report_page(report: "StoresReport") -> str:
    """Return *report* as an HTML page; raise PipelineUnavailable without the extra."""
    require_charts()
    sections = (_load, _promise, _verdicts, _growth, _anomalies)
    stores = ", ".join(report.loads)
    about = f"{report.at:%Y-%m-%d %H:%M} UTC, the last {report.options.days} days: {stores}."
    return page(
        "Timeouts of all stores",
        [_note(about), *(part for one in sections for part in one(report))],
    )


def _load(report: "StoresReport") -> list[str]:
    rows = [
        {"store": store, "time": from_micros(begin).isoformat(), "messages": many}
        for store, one in report.loads.items()
        for begin, many in one.totals.items()
    ]
    columns = ["store", "messages", "overdue", "bytes of bodies", "busiest, a second"]
    numbers = [
        (
            store,
            one.messages,
            one.overdue,
            one.bytes,
            round(max((p.per_second for p in one.peaks), default=0.0), 3),
        )
        for store, one in report.loads.items()
    ]
    return [
        f"<h2>Due in the next {shown_span(report.options.ahead)}</h2>",
        _chart(rows, "bar", x="time:T", y="sum(messages):Q", color="store:N"),
        table(columns, numbers),
    ]


def _promise(report: "StoresReport") -> list[str]:
    by_destination = report.kept("store", "destination")
    worst = [*by_destination][:_SHOWN]
    cells = [
        {"destination": f"{key[0]}: {key[1]}", "day": key[2].isoformat(), "kept": one.share}
        for key, one in sorted(
            report.kept("store", "destination", "due_day").items(),
            key=lambda one: (by_destination[one[0][:2]].share, one[0]),
        )
        if key[:2] in worst
    ]
    names = ["store", "destination", "messages", "kept", "share kept"]
    rows = [
        (*key, one.messages, one.kept, f"{one.share:.3%}") for key, one in by_destination.items()
    ]
    return [
        f"<h2>Dispatched within {shown_span(report.options.promise)}, by destination and day</h2>",
        _chart(cells, "rect", x="utcyearmonthdate(day):T", y="destination:N", color="kept:Q"),
        table(names, rows[:_SHOWN]),
        *_cut(len(rows)),
    ]


def _verdicts(report: "StoresReport") -> list[str]:
    found = report.verdicts
    verdict = (
        '<p class="bad">Messages are lost, or were sent and still pend.</p>'
        if found.is_broken
        else '<p class="well">No stored message is lost.</p>'
    )
    rows = [
        (str(name), many) for name, many in sorted(found.counts.items(), key=lambda one: -one[1])
    ]
    examples = [tuple(map(str, one.values())) for one in found.examples]
    return [
        "<h2>Verdicts of reconcile</h2>",
        verdict,
        table(["verdict", "messages"], rows),
        *([table(["id", "verdict", "due", "dispatches"], examples)] if examples else []),
    ]


def _growth(report: "StoresReport") -> list[str]:
    rows = [
        {"store": store, "day": day.isoformat(), "rows": many}
        for (store, day), many in report.events("store", "day").items()
    ]
    columns = ["store", "last 7 days", "the 7 before"]
    means = [
        (store, round(last, 1), "-" if before is None else round(before, 1))
        for store, (last, before) in report.growth().items()
    ]
    return [
        "<h2>Growth: rows of history a day</h2>",
        _chart(rows, "bar", x="utcyearmonthdate(day):T", y="sum(rows):Q", color="store:N"),
        table(columns, means),
        *map(_note, filter(None, [report.notes().get("growth")])),
    ]


def _anomalies(report: "StoresReport") -> list[str]:
    found = report.anomalies()
    rows = [
        (store, destination, f"{one.day:%a %Y-%m-%d}", one.messages, one.expected)
        for store, destination, one in found
    ]
    columns = ["store", "destination", "day", "messages", "expected"]
    return [
        "<h2>Days unlike the same weekday before</h2>",
        table(columns, rows[:_SHOWN]),
        *_cut(len(rows)),
        *map(_note, filter(None, [report.notes().get("anomalies")])),
    ]


def _cut(rows: int) -> list[str]:
    return [_note(f"{_SHOWN} of {rows:,} are shown.")] if rows > _SHOWN else []


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def _chart(rows: list[dict[str, Any]], shape: Any, *, x: str, y: str, color: str) -> str:
    """Return *rows* as SVG; times are in UTC, and the rows keep their order."""
    import altair as alt

    if not rows:
        return _note("Nothing to show.")
    utc = alt.Undefined if x.startswith("utc") else alt.Scale(type="utc")
    shares = alt.Scale(scheme="viridis", domain=[_LOW, 1], clamp=True)
    chart = alt.Chart(alt.InlineData(values=rows), mark=shape, width=_WIDTH).encode(
        x=alt.X(x, title=None, scale=utc),
        y=alt.Y(y, title=None, sort=None),
        color=alt.Color(color, scale=shares if color.endswith(":Q") else alt.Undefined),
    )
    chart = chart.configure(background="transparent").configure_axis(**_AXES)
    chart = chart.configure_legend(orient="top", labelFontSize=_SIZE, titleFontSize=_SIZE)
    text = StringIO()
    chart.save(text, format="svg")
    return text.getvalue()
