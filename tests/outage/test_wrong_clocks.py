"""Whole processes whose clock is an hour off: nothing early, nothing late by more than a poll."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from sqlalchemy import create_engine, make_url, text

from tests.acceptance.place import Place
from tests.outage.clocks import HOUR, WrongClock, true_time
from tests.outage.conftest import MakePlace
from tests.outage.process import Child
from tests.services.private import PrivateServer
from timeoutmgr.database import Database
from timeoutmgr.message.instants import from_micros

pytestmark = pytest.mark.usefixtures("faketime")

POLL = 1.0
PROMPT = 20.0
"""Seconds that a loaded machine may add to a poll."""


@pytest.mark.behaviour(26, 54, 55)
@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
def test_a_manager_whose_clock_is_wrong_goes_by_the_databases(
    make_place: MakePlace, postgres_url: str, unique: str, ahead: float
) -> None:
    place = make_place(transport=postgres_url, store=postgres_url)
    with child(place, WrongClock(ahead)) as manager:
        config = place.plain(f"{unique}-sender")
        config.use_external_timeout_manager(f"{place.name}.Timeouts")
        sender = place.run(config)
        database_ahead = seconds_ahead(postgres_url)

        for number in range(20):
            due = time.time() + database_ahead + 0.2 + number / 10
            at = datetime.fromtimestamp(due, UTC)
            sender.send(place.name, "Ping", None, deliver_at=at)
        manager.hear("got", 20)

        late = [
            true_time(said["at"]) + database_ahead - said["due"] for said in manager.heard("got")
        ]
        assert len({said["id"] for said in manager.heard("got")}) == 20
        assert min(late) >= 0
        assert max(late) < POLL + PROMPT
        reported = manager.hear("critical")["error"]
        assert f"The database's clock differs from this host's by {-ahead:.0f} s" in reported


@pytest.mark.behaviour(55, 81)
def test_a_manager_whose_clock_is_wrong_ends_itself_by_default(
    make_place: MakePlace, postgres_url: str
) -> None:
    place = make_place(transport=postgres_url, store=postgres_url)

    with child(place, WrongClock(HOUR), goes_on=False) as manager:
        assert manager.wait() == 3


@pytest.mark.behaviour(26, 54)
@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
def test_where_the_database_has_no_clock_that_of_the_process_counts(
    make_place: MakePlace, sqlite_url: str, ahead: float
) -> None:
    place = make_place(transport=sqlite_url, store=sqlite_url)
    with child(place, WrongClock(ahead)) as manager:
        for number in range(10):
            manager.command(f"send {0.2 + number / 10}")
        manager.hear("got", 10)

        got = manager.heard("got")
        late = [said["clock"] - said["due"] for said in got]
        assert all(abs(said["clock"] - true_time(said["at"]) - ahead) < 60 for said in got)
        assert min(late) >= 0
        assert max(late) < POLL + PROMPT
        assert manager.heard("critical") == []


def test_mysqls_clock_is_right_in_a_session_whose_zone_repeats_the_hour(
    private_server: Callable[[str], PrivateServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    before_the_change = datetime(2030, 10, 27, 0, 10, tzinfo=UTC).timestamp()  # 02:10 in Berlin
    clock = WrongClock(before_the_change - time.time())
    with monkeypatch.context() as environment:
        for name, value in {**clock.env, "TZ": "Europe/Berlin"}.items():
            environment.setenv(name, value)
        server = private_server("mysql")
    database = Database(server.url)

    with create_engine(server.url).connect() as callers:
        utc = callers.execute(text("SELECT UTC_TIMESTAMP(6)")).scalar_one()
        ahead = from_micros(database.now_in(callers)) - utc.replace(tzinfo=UTC)

    assert abs(ahead) < timedelta(minutes=1)


def child(place: Place, clock: WrongClock, *, goes_on: bool = True) -> Child:
    """Return a process of *place* with that clock, once it runs."""
    place.made(place.configuration()).install()
    return Child(
        place.name,
        transport=place.transport_url,
        store=place.store_url,
        env=clock.env,
        poll=POLL,
        goes_on=goes_on,
    ).running()


def seconds_ahead(url: str) -> float:
    """Return by how much the database's clock is ahead of true time; zero on the same host."""
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as connection:
        before = time.time()
        row = connection.execute("SELECT extract(epoch FROM clock_timestamp())").fetchone()
        assert row is not None
        ahead = timedelta(seconds=float(row[0]) - (before + time.time()) / 2)
        # A value below the measurement's own error counts as zero.
        return ahead.total_seconds() if abs(ahead) > timedelta(seconds=0.1) else 0.0
