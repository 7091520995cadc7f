"""Output of a program: a table of its runs, a table of its claims, and JSON on request."""

import argparse
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from .figures import Sample, Samples, apart, cpu_ratios, cpu_us, rate, ratio, ratios, spread
from .messages import QUEUE_TYPE


@dataclass(frozen=True, slots=True)
class Bar:
    """A claim: a figure with its minimum or maximum."""

    figure: str
    value: float
    bar: float
    at_most: bool = False
    unit: str = ""
    beside: str = ""

    @property
    def holds(self) -> bool:
        return self.value <= self.bar if self.at_most else self.value >= self.bar

    def as_json(self) -> dict[str, Any]:
        bar = None if self.bar == float("-inf") else self.bar
        return {**asdict(self), "bar": bar, "holds": self.holds}

    @property
    def cells(self) -> list[str]:
        if self.bar == float("-inf"):
            return [self.figure, f"{self.value:.3g}{self.unit}", "", "", self.beside]
        limit = f"{'≤' if self.at_most else '≥'} {self.bar:g}{self.unit}"
        verdict = "" if self.holds else "missed"
        return [self.figure, f"{self.value:.3g}{self.unit}", limit, verdict, self.beside]


@dataclass(slots=True)
class Report:
    """Collects the figures of a program; *quick* figures are too small to be judged."""

    title: str
    settings: dict[str, Any]
    rows: list[list[str]] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    samples: dict[str, Any] = field(default_factory=dict)

    def runs(self, samples: Samples) -> None:
        """Add a row for each case."""
        for name, runs in samples.items():
            self.samples[name] = [asdict(sample) for sample in runs]
            cells = [f"{rate(runs):,.0f}", f"{spread(runs):.0%}", f"{cpu_us(runs):.0f}"]
            self.rows.append([name, *cells])

    def bar(self, figure: str, value: float, bar: float, **more: Any) -> None:
        """Add a claim; *more* are the other fields of a Bar."""
        self.bars.append(Bar(figure, value, bar, **more))

    def fact(self, figure: str, value: float, unit: str = "", beside: str = "") -> None:
        """Add a figure without a claim."""
        self.bars.append(Bar(figure, value, float("-inf"), unit=unit, beside=beside))

    def faster(self, figure: str, above: list[Sample], below: list[Sample], bar: float) -> None:
        """Add the claim that *above* is at least *bar* times as fast as *below*."""
        beside = f"spread {apart(ratios(above, below)):.0%}"
        if all(sample.cpu for sample in (*above, *below)):
            # On a shared machine, other programs disturb processor time the least.
            beside = f"by CPU {median(cpu_ratios(below, above)):.2f}, {beside}"
        self.bar(figure, ratio(above, below), bar, beside=beside)

    def cheaper(self, figure: str, above: list[Sample], below: list[Sample], bar: float) -> None:
        """Add the claim that *above* takes at most *bar* times the processor time of *below*."""
        by_cpu, by_wall = cpu_ratios(above, below), ratios(below, above)
        beside = f"spread {apart(by_cpu):.0%}; wall {median(by_wall):.2f}, {apart(by_wall):.0%}"
        self.bar(figure, median(by_cpu), bar, at_most=True, beside=beside)

    def markdown(self) -> str:
        """Return the whole report as text that is also Markdown."""
        parts = [f"## {self.title}", "; ".join(f"{k} {v}" for k, v in self.settings.items())]
        if self.rows:
            parts.append(_table(["case", "per second", "spread", "CPU us each"], self.rows))
        if self.bars:
            bars = [bar.cells for bar in self.bars]
            parts.append(_table(["figure", "measured", "bar", "", "beside it"], bars))
        return "\n\n".join([*parts, *self.notes]) + "\n"

    def give(self, given: argparse.Namespace) -> None:
        """Print the report, and write the JSON file if requested."""
        if given.quick:
            self.notes.append("Quick: volumes too small to judge a bar by.")
        print(self.markdown(), flush=True)
        if given.json:
            fields = {
                "title": self.title,
                "settings": self.settings,
                "bars": [bar.as_json() for bar in self.bars],
                "runs": self.samples,
                "notes": self.notes,
            }
            given.json.parent.mkdir(parents=True, exist_ok=True)
            given.json.write_text(json.dumps(fields, indent=1) + "\n")


def options(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that every program has."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small volumes, one round")
    parser.add_argument("--rounds", type=int, help="interleaved rounds (3; quick: 1)")
    parser.add_argument("--count", type=int, help="messages of a run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--queue-type", choices=["classic", "quorum"], help="RabbitMQ's queues")
    parser.add_argument("--profile", metavar="FILE", help="have py-spy write our worker's stacks")
    return parser


def parsed(parser: argparse.ArgumentParser, *, count: int, quick: int) -> argparse.Namespace:
    """Return the options, with the defaults for ``--quick`` filled in."""
    given = parser.parse_args()
    if given.queue_type:
        os.environ[QUEUE_TYPE] = given.queue_type  # the processes of a run inherit it
    given.count = given.count or (quick if given.quick else count)
    given.rounds = given.rounds or (1 if given.quick else 3)
    return given


def _table(head: list[str], rows: list[list[str]]) -> str:
    widths = [max(len(row[n]) for row in [head, *rows]) for n in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| "
        + " | ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    )
