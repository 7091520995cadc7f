"""``report``: all stores on one page that asks no server."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from sqlalchemy import insert

from tests.pipeline.rows import batch, row
from timeoutmgr.cli.main import cli
from timeoutmgr.clock import SystemClock
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import to_micros
from timeoutmgr.pipeline.jobs.archive import archive
from timeoutmgr.pipeline.jobs.report import StoresReport, _labels, report
from timeoutmgr.pipeline.options import ArchiveOptions, ReportOptions
from timeoutmgr.pipeline.stores import Store, open_store
from timeoutmgr.pipeline.transforms.verdicts import Verdict
from timeoutmgr.pipeline.writers.loader import Loader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def noon(ago: int) -> datetime:
    """Return noon so many days before today: asked for by each test, not when it is collected."""
    today = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)
    return today - timedelta(days=ago)


def day(ago: int) -> str:
    return str(noon(ago).date())


def sent(store: Store, ago: int, lates: list[float]) -> None:
    """Write the dispatch of messages that were due at noon, *ago* days before today."""
    due = noon(ago)
    rows: list[dict[str, Any]] = [
        {
            **{"id": f"{ago} {number}", "event": "dispatched", "node": "n"},
            **{"due": to_micros(due), "at": to_micros(due + timedelta(seconds=late))},
            **{"endpoint": "sales", "destination": "billing", "attempt": 0, "run_id": None},
        }
        for number, late in enumerate(lates)
    ]
    with store.database.begin() as connection:
        connection.execute(insert(store.tables.history), rows)


def region(store: Store, folder: str) -> Store:
    """Return *store* under another settings file, as two regions have the same names of files."""
    path = Path(store.name).with_name(folder) / "sales.toml"
    path.parent.mkdir()
    path.write_text(Path(store.name).read_text())
    return open_store(str(path))


def test_all_stores_are_on_one_page_with_and_without_an_archive(
    spark: SparkSession, store_of: Callable[[str], Store], tmp_path: Path
) -> None:
    eu, us = region(store_of("sqlite"), "eu"), region(store_of("sqlite"), "us")
    soon = datetime.now(UTC) + timedelta(hours=1)
    Loader(eu).load([batch([row(number, due=soon) for number in range(3)])])
    for week in range(1, 6):
        sent(eu, 7 * week, [0.5] * (60 if week == 1 else 20))
    sent(us, 2, [1.0, 1.5, 90_000.0])  # the last was sent a day later
    page, lake = tmp_path / "report.html", str(tmp_path / "history")
    words = ("--json", "pipeline", "report", "--store", eu.name, "--store", us.name)

    ended = CliRunner().invoke(cli, [*words, "--html", str(page)])
    old = ArchiveOptions(store=eu.name, to=lake, older_than=timedelta(days=3))
    assert archive(old, clock=SystemClock()).removed == 140
    both = ReportOptions(stores=(eu.name, us.name), archive=lake)
    archived = report(spark, both, clock=SystemClock()).document()

    assert ended.exit_code == 0, ended.output
    found = json.loads(ended.stdout)
    for name in ("promise", "growth", "anomalies"):
        assert archived[name] == found[name]
    assert found["verdicts"]["verdicts"]["pending"] == 3
    loads = {store: one["messages"] for store, one in found["load"].items()}
    assert loads == {"eu/sales": 3, "us/sales": 0}
    assert found["promise"]["by_destination"] == [
        {"store": "us/sales", "destination": "billing", "messages": 3, "kept": 1}
        | {"share": 0.333333},
        {"store": "eu/sales", "destination": "billing", "messages": 140, "kept": 140, "share": 1.0},
    ]
    days = {one["due_day"]: one["messages"] for one in found["promise"]["by_day"]}
    assert days == {day(2): 3, **{day(7 * week): 60 if week == 1 else 20 for week in range(1, 6)}}
    assert found["growth"] == {
        "eu/sales": {"rows_a_day": round(60 / 7, 3), "week_before": round(20 / 7, 3)},
        "us/sales": {"rows_a_day": round(3 / 7, 3), "week_before": 0.0},
    }
    assert found["anomalies"] == [
        {"store": "eu/sales", "destination": "billing", "day": day(7)}
        | {"messages": 60, "expected": 20.0}
    ]
    text = page.read_text()
    assert text.count("<svg") == 3
    assert set(re.findall(r"[a-z]+://[^\"<> ]+", text)) == {
        "http://www.w3.org/2000/svg",  # names of what SVG is, which no browser fetches
        "http://www.w3.org/1999/xlink",
    }
    assert "<script" not in text


def test_history_is_read_once(
    spark: SparkSession, sqlite: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent(sqlite, 2, [0.5, 90_000.0])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def forget_history(step: str) -> None:
        if step == "judging":
            (copied,) = tmp_path.glob("timeoutmgr-snapshot-*/history")
            shutil.rmtree(copied)

    options = ReportOptions(stores=(sqlite.name,))
    found = report(spark, options, clock=SystemClock(), progress=forget_history)

    assert [one.messages for one in found.kept("store").values()] == [2]
    assert found.verdicts.counts == {Verdict.OK: 1, Verdict.LATE: 1}
    assert [one["verdict"] for one in found.verdicts.examples] == ["late"]


def test_two_stores_never_share_a_label() -> None:
    names = ["/srv/a/now/x.toml", "/srv/b/now/x.toml", "x", "eu.1", "eu.2", ""]

    labels = _labels(names)

    assert [*labels.values()] == ["a/now/x", "b/now/x", "x", "eu.1", "eu.2", "store"]
    assert _labels(["/eu.toml", "/b/eu.toml"]) == {"/eu.toml": "/eu", "/b/eu.toml": "b/eu"}


@pytest.mark.parametrize(
    ("days", "growth", "parts"),
    [(2, (7.0, None), 2), (13, (2.0, None), 2), (14, (2.0, 0.0), 1), (22, (2.0, 0.0), 0)],
)
def test_a_report_of_few_days_says_what_they_do_not_show(
    days: int, growth: tuple[float, float | None], parts: int
) -> None:
    row = {"store": "s", "destination": "q", "events": 7, "sent": 7, "day": noon(2).date()}
    options: Any = ReportOptions(stores=("s",), days=days)
    nothing: Any = {"s": None}
    found = StoresReport(
        at=noon(0), options=options, loads=nothing, days=[row, row], verdicts=nothing
    )

    assert found.growth() == {"s": growth}
    assert len(found.notes()) == parts
    assert all(f"(--days), got {days}" in one for one in found.notes().values())


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="no store is given"):
        ReportOptions(stores=())
    with pytest.raises(ConfigurationError, match="days must be positive"):
        ReportOptions(stores=("s",), days=0)


def test_without_its_extra_the_page_is_refused_before_spark_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)

    ended = CliRunner().invoke(cli, ["pipeline", "report", "--store", "s", "--html", "r.html"])

    assert ended.exit_code == 4
    assert "pip install 'timeoutmgr[report]'" in ended.output
