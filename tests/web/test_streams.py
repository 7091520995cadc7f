"""Regions that renew themselves: what a stream sends, and what ten browsers cost the store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event

from tests.persistence.making import SetClock
from tests.web.site import HOUR, Site, fill, pending
from tests.web.test_readings import Monotonic
from timeoutmgr import Endpoint
from timeoutmgr.web.open_streams import TICK
from timeoutmgr.web.readings import Readings
from timeoutmgr.web.regions import REGIONS

TRANSACTION = ("BEGIN", "COMMIT", "ROLLBACK", "PRAGMA", "SET ", "SHOW ")


@contextmanager
def statements_of(endpoint: Endpoint) -> Iterator[list[str]]:
    """The statements that read or write rows in the database of the store."""
    seen: list[str] = []
    persistence = endpoint.parts.settings.persistence
    assert persistence is not None
    database: Any = persistence.database

    def note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        if not statement.upper().startswith(TRANSACTION):
            seen.append(statement)

    event.listen(database.engine, "before_cursor_execute", note)
    yield seen
    event.remove(database.engine, "before_cursor_execute", note)


@pytest.fixture
def monotonic() -> Monotonic:
    return Monotonic()


@pytest.fixture
def timed(endpoint: Endpoint, monotonic: Monotonic) -> Iterator[Site]:
    """A dashboard whose readings age as the test says."""
    readings = Readings(endpoint.parts.settings.clock, monotonic, patience=30)
    with Site(endpoint, readings=readings) as made:
        yield made


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mysql"])
@pytest.mark.parametrize("name", sorted(REGIONS))
def test_a_region_costs_no_more_statements_than_it_says(
    request: pytest.FixtureRequest, kind: str, name: str
) -> None:
    endpoint = request.getfixturevalue("endpoint_of")(kind)
    now = endpoint.timeouts.now()
    fill(endpoint, [pending(f"t{n}", now + (n - 3) * HOUR) for n in range(9)])
    monotonic = Monotonic()
    readings = Readings(endpoint.parts.settings.clock, monotonic, patience=30)
    with Site(endpoint, readings=readings) as site:
        site.get(f"/regions/{name}")
        monotonic.at = 1_000
        with statements_of(endpoint) as seen:
            site.get(f"/regions/{name}")

    assert 1 <= len(seen) <= REGIONS[name].cost, seen


def test_ten_open_browsers_cost_the_store_a_statement_a_second(
    timed: Site, endpoint: Endpoint, monotonic: Monotonic
) -> None:
    now = endpoint.timeouts.now()
    fill(endpoint, [pending(f"t{n}", now + n * HOUR) for n in range(9)])
    windows = [f"span={span}&destination=q{n}" for n, span in enumerate(["hour", "day", "week"])]
    addresses = [f"/regions/{name}?{window}" for name in REGIONS for window in windows]
    for address in addresses:
        timed.get(address)
    monotonic.at = 1_000
    with statements_of(endpoint) as seen:
        for second in range(30):
            monotonic.at = 1_000.0 + second
            for browser in range(10):
                timed.get(addresses[(second * 7 + browser) % len(addresses)])

    assert 12 <= len(seen) <= 30 + max(region.cost for region in REGIONS.values()), len(seen)


def test_a_stream_sends_each_region_and_then_only_what_changed(
    timed: Site, endpoint: Endpoint, monotonic: Monotonic
) -> None:
    fill(endpoint, [pending("t1", endpoint.timeouts.now() + HOUR)])
    seen: list[str] = []
    with timed.client.stream("GET", "/events?region=overview&region=processes") as answer:
        events = (line for line in answer.iter_lines() if line.startswith("event: "))
        seen += [next(events) for _ in range(3)]
        endpoint.timeouts.cancel("t1")
        monotonic.at = 1_000
        seen.append(next(events))

    assert answer.headers["Content-Type"].startswith("text/event-stream")
    assert seen == [
        "event: banner",
        "event: overview",
        "event: processes",
        "event: overview",
    ]


def test_a_stream_ends_after_four_pauses_and_the_next_begins_a_pause_later(
    timed: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    async def pause() -> None:
        pauses.append(TICK)

    monkeypatch.setattr(timed.app.state.streams, "pause", pause)

    text = timed.get("/events?region=overview")

    assert text.splitlines()[0] == f"retry: {TICK * 1000:g}"
    assert len(pauses) == 4


def test_the_lines_of_an_event_are_one_message() -> None:
    from timeoutmgr.web.dashboard import event as sent

    assert sent("load", "<p>\na\r\rb") == sent("load", "<p>\r\na\n\nb")
    assert sent("load", "<p>\na\n\nb") == "event: load\ndata: <p>\ndata: a\ndata: \ndata: b\n\n"


def test_a_histogram_is_data_and_no_program(site: Site, endpoint: Endpoint) -> None:
    import html
    import re

    fill(endpoint, [pending("t1", endpoint.timeouts.now() + HOUR)])

    (found,) = re.findall(r'data-load="([^"]+)"', site.get("/load"))
    data = json.loads(html.unescape(found))

    assert sum(data["counts"]) == 1
    assert set(data["marks"]) == {"exact"}
    assert len(data["counts"]) == 96


def test_the_banner_is_a_region_for_pages_that_poll(site: Site) -> None:
    assert "hidden" in site.get("/regions/banner?region=overview")
    assert "no such region" in site.get("/regions/none", 404)


def test_a_clock_that_stands_does_not_stop_the_pages(endpoint: Endpoint) -> None:
    with Site(endpoint, readings=Readings(SetClock(), patience=30)) as site:
        assert "Overview" in site.get("/")
