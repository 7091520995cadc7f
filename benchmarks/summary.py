"""Put the figures of several programs into one page and one picture.

    python benchmarks/summary.py build/bench

reads the JSON files there and writes ``figures.md`` and ``rates.svg`` beside them.
"""

import json
import sys
from html import escape
from pathlib import Path
from statistics import median
from typing import Any

WIDTH, ROW, LABELS = 900, 26, 330


def main() -> None:
    folder = Path(sys.argv[1])
    reports = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    (folder / "figures.md").write_text("\n".join(page(reports)) + "\n")
    (folder / "rates.svg").write_text(picture(rates(reports)))
    print(f"{folder / 'figures.md'}, {folder / 'rates.svg'}")


def page(reports: list[dict[str, Any]]) -> list[str]:
    """Return the lines of one table of all claims, with the settings behind them."""
    lines = ["| figure | measured | bar | |", "|---|---|---|---|"]
    for report in reports:
        lines.append(f"| **{report['title']}** | | | |")
        for bar in report["bars"]:
            limit = "" if bar["bar"] is None else f"{'≤' if bar['at_most'] else '≥'} {bar['bar']:g}"
            verdict = "" if bar["holds"] else "missed"
            cells = [bar["figure"], f"{bar['value']:.3g}{bar['unit']}", limit, verdict]
            lines.append(f"| {' | '.join(cells)} |")
    for report in reports:
        settings = "; ".join(f"{name} {value}" for name, value in report["settings"].items())
        lines += ["", f"{report['title']}: {settings}. {' '.join(report['notes'])}"]
    return lines


def rates(reports: list[dict[str, Any]]) -> dict[str, float]:
    """Return the median rate of every case that was run."""
    return {
        name: median(run["count"] / run["seconds"] for run in runs)
        for report in reports
        for name, runs in report["runs"].items()
    }


def picture(bars: dict[str, float]) -> str:
    """Return a bar for each rate, as SVG."""
    most = max(bars.values(), default=1)
    scale = (WIDTH - LABELS - 90) / most
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{ROW * len(bars) + 20}" '
        'font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for number, (name, value) in enumerate(bars.items()):
        top = number * ROW + 10
        color = "#b0b8c0" if is_other(name) else "#2a6fbb"
        parts += [
            f'<text x="{LABELS - 8}" y="{top + 15}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{LABELS}" y="{top}" width="{value * scale:.1f}" height="{ROW - 6}" '
            f'fill="{color}"/>',
            f'<text x="{LABELS + value * scale + 6:.1f}" y="{top + 15}">{value:,.0f}/s</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def is_other(name: str) -> bool:
    """Return whether a case is not ours: a bare loop, kombu by itself, or a peer."""
    others = ("bare", "kombu", "Celery", "dramatiq", "huey", "APScheduler", "procrast", "pgqueuer")
    return any(other in name for other in others)


if __name__ == "__main__":
    main()
