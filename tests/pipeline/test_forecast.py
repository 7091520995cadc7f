from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipeline.rows import batch, row
from timeoutmgr.clock import SystemClock
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import to_micros
from timeoutmgr.pipeline.jobs.forecast import forecast, forecast_page, report
from timeoutmgr.pipeline.load import Bucket, by_time, coarser, drain, peaks
from timeoutmgr.pipeline.options import ForecastOptions
from timeoutmgr.pipeline.pages import Bar, bars, page, table
from timeoutmgr.pipeline.stores import Store
from timeoutmgr.pipeline.writers.loader import Loader

MINUTE = timedelta(minutes=1)
AT = to_micros(datetime(2030, 1, 1, 12, 0, 30, tzinfo=UTC))
SECOND = 1_000_000


def bucket(minute: int, messages: int, destination: str = "billing") -> Bucket:
    begin = AT - AT % (60 * SECOND) + minute * 60 * SECOND
    return Bucket(
        endpoint="sales",
        destination=destination,
        begin=begin,
        messages=messages,
        bytes=messages,
        is_overdue=minute < 0,
    )


def test_the_load_ahead_is_that_of_the_store(store: Store) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    rows = [row(n, due=now + timedelta(hours=n), destination=f"q{n % 2}") for n in range(-2, 6)]
    rows += [row(100 + n, due=now + timedelta(hours=2)) for n in range(7)]
    Loader(store).load([batch(rows)])
    options = ForecastOptions(
        stores=(store.name,),
        bucket=timedelta(hours=1),
        ahead=timedelta(hours=3.5),
        capacity=0.001,
    )

    found = forecast(options, clock=SystemClock())

    assert found.messages == 13  # two overdue, four ahead, seven at once
    assert found.overdue >= 2
    assert found.peaks[0].messages == 8
    assert found.peaks[0].most == "billing"
    assert found.destinations == {"billing": 7, "q0": 3, "q1": 3}
    assert found.drain is not None
    assert found.drain.needed == pytest.approx(8 / 3_600)


def test_two_endpoints_with_one_database_are_one_store(store: Store) -> None:
    due = datetime.now(UTC) + timedelta(hours=1)
    Loader(store).load([batch([row(n, due=due) for n in range(3)])])
    billing = Path(store.name).with_name("billing.toml")
    billing.write_text(Path(store.name).read_text().replace('"sales"', '"billing"'))
    reported: list[str] = []

    found = forecast(
        ForecastOptions(stores=(store.name, str(billing), store.name)),
        clock=SystemClock(),
        progress=reported.append,
    )

    assert (found.messages, found.destinations) == (3, {"billing": 3})
    assert reported == [f"counting in {store.name}"]


def test_a_message_of_a_bucket_that_has_begun_is_overdue_once_due(store: Store) -> None:
    now = datetime.now(UTC)
    dues = [now - timedelta(minutes=5), now - timedelta(seconds=1), now + timedelta(minutes=5)]
    Loader(store).load([batch([row(n, due=due) for n, due in enumerate(dues)])])
    width = timedelta(days=10_000)
    options = ForecastOptions(stores=(store.name,), bucket=width, ahead=width)

    found = forecast(options, clock=SystemClock())

    assert (found.messages, found.overdue, len(found.buckets)) == (3, 2, 1)


WITHOUT_THE_EXTRA = """
import sys

for name in ("pyspark", "pyarrow", "py4j", "adbc_driver_manager", "pandas"):
    sys.modules[name] = None

from timeoutmgr.cli.main import cli

cli(sys.argv[1:])
"""


def test_a_forecast_needs_nothing_of_the_extra(sqlite: Store, tmp_path: Path) -> None:
    due = datetime.now(UTC) + timedelta(hours=1)
    Loader(sqlite).load([batch([row(n, due=due) for n in range(3)])])
    python = (sys.executable, "-c", WITHOUT_THE_EXTRA, "--config", sqlite.name)
    page = tmp_path / "load.html"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        given = [*python, "--json", "pipeline", *words]
        return subprocess.run(given, capture_output=True, text=True, check=False)

    found = run("forecast", "--html", str(page))
    refused = run("lateness")
    without_spark = run("erase", "--header", "Customer=17", "--dry-run")

    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["messages"] == 3
    assert "<svg" in page.read_text()
    assert refused.returncode == 4
    assert "the pipeline needs pyspark, install it with: pip install 'timeou" in refused.stdout
    assert without_spark.returncode == 4
    assert "needs pyarrow, install it with: pip install 'timeoutmgr[lake]'" in without_spark.stdout


def test_an_overdue_message_counts_as_due_now() -> None:
    options = ForecastOptions(stores=("s",))

    found = report([bucket(-5, 3), bucket(0, 2), bucket(9, 4)], AT, options)

    assert found.overdue == 3
    assert list(found.totals.values()) == [5, 4]
    assert min(found.totals) == AT - AT % (60 * SECOND)
    assert [line[3] for line in found.lines()] == ["messages", 5, 4]


def test_each_bucket_of_each_destination_is_one_line_whichever_stores_it_is_in() -> None:
    options = ForecastOptions(stores=("east", "west"))
    found = [bucket(1, 3, "mail"), bucket(0, 1), bucket(1, 4, "mail"), bucket(1, 2)]

    _head, *lines = report(found, AT, options).lines()

    assert lines == [
        ["2030-01-01T12:00:00+00:00", "sales", "billing", 1, 1],
        ["2030-01-01T12:01:00+00:00", "sales", "billing", 2, 2],
        ["2030-01-01T12:01:00+00:00", "sales", "mail", 7, 7],
    ]


def test_peaks_name_their_largest_destination() -> None:
    found = peaks([bucket(1, 30), bucket(1, 90, "mail"), bucket(2, 60), bucket(3, 10)], MINUTE, 2)

    assert [(one.messages, one.per_second, one.most, one.share) for one in found] == [
        (120, 2.0, "mail", 0.75),
        (60, 1.0, "billing", 1.0),
    ]


def test_a_backlog_is_worked_off_at_the_capacity() -> None:
    # 120 at once, at a message a second: after a minute 60 are left, and 30 more come.
    found = drain(by_time([bucket(0, 120), bucket(1, 30), bucket(9, 100)]), MINUTE, 1.0)

    assert (found.backlog, found.latest, found.needed) == (120, timedelta(seconds=120), 2.0)
    assert found.at == bucket(0, 0).begin
    assert drain({}, MINUTE, 5.0).backlog == 0


@pytest.mark.parametrize("capacity", [1e-20, 5e-324])
def test_a_capacity_that_works_no_backlog_off_is_refused(capacity: float) -> None:
    with pytest.raises(ConfigurationError, match=r"longer than any calendar|finite"):
        drain({0: 1}, MINUTE, capacity)


@given(
    loads=st.dictionaries(st.integers(0, 500), st.integers(1, 1_000), min_size=1),
    capacity=st.floats(0.01, 1_000),
)
def test_no_backlog_is_shorter_than_the_largest_bucket(
    loads: dict[int, int], capacity: float
) -> None:
    totals = {minute * 60 * SECOND: messages for minute, messages in loads.items()}

    found = drain(totals, MINUTE, capacity)
    faster = drain(totals, MINUTE, capacity * 2)

    assert max(loads.values()) <= found.backlog <= sum(loads.values())
    assert faster.backlog <= found.backlog
    if capacity >= found.needed:
        assert found.latest <= MINUTE * 1.001


@given(
    loads=st.dictionaries(st.integers(0, 5_000), st.integers(1, 9), min_size=1),
    most=st.integers(1, 50),
)
def test_a_coarser_curve_holds_every_message(loads: dict[int, int], most: int) -> None:
    totals = {minute * 60 * SECOND: messages for minute, messages in loads.items()}

    found = coarser(totals, MINUTE, most)

    assert sum(found.values()) == sum(totals.values())
    assert len(found) <= most
    assert all((begin - min(totals)) % (60 * SECOND) == 0 for begin in found)


class _Reader(HTMLParser):
    """Notes the elements of a page, and complains of elements that are not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.said = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.said += data


def read(text: str) -> _Reader:
    reader = _Reader()
    reader.feed(text)
    assert reader.open == []
    return reader


def test_the_page_of_a_forecast_needs_nothing_from_elsewhere() -> None:
    options = ForecastOptions(stores=("s",), capacity=0.5)
    load = [bucket(minute, minute % 7 + 1, f"<q{minute}>") for minute in range(400)]

    found = read(forecast_page(report(load, AT, options)))

    tags = {tag for tag, _attributes in found.seen}
    assert {"svg", "rect", "table", "title"} <= tags
    assert not {"script", "link", "img", "iframe"} & tags
    assert not any({"src", "href"} & attributes.keys() for _tag, attributes in found.seen)
    assert sum(tag == "rect" for tag, _attributes in found.seen) <= 240
    assert "<q6>" in found.said
    assert "worst backlog" in found.said


def test_an_empty_forecast_is_a_page_too() -> None:
    found = read(forecast_page(report([], AT, ForecastOptions(stores=("s",)))))

    assert "Nothing to show." in found.said


def test_foreign_names_are_text_in_a_page() -> None:
    evil = '"><script>alert(1)</script>'

    found = read(page(evil, [table(["a"], [[evil]]), bars(evil, [Bar(evil, 1, evil)])]))

    assert "script" not in {tag for tag, _attributes in found.seen}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"stores": ()}, "no store"),
        ({"ahead": timedelta(seconds=1)}, "at least one bucket"),
        ({"capacity": 0.0}, "must be positive"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        ForecastOptions(**({"stores": ("s",)} | options))
