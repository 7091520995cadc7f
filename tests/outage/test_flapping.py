"""A database that is up and down in turn, seen through real connections that really break."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest
from sqlalchemy import make_url

from tests.acceptance.place import LATER, Party, Place
from tests.outage.alarm import Alarm
from tests.outage.conftest import MakePlace
from tests.support.waiting import eventually
from timeoutmgr import Sent
from timeoutmgr.errors import DeliveryUnknown, TransportUnavailable
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.testing.faultproxy import FaultProxy

LIMIT = timedelta(seconds=4)
NOTICED = LIMIT.total_seconds() + 2 * 1.0 + 10.0
"""Seconds until the report of an outage: one poll, the watchdog's second, a busy machine's ten."""


@pytest.fixture
def database(postgres_url: str) -> Iterator[FaultProxy]:
    """A proxy before PostgreSQL."""
    with FaultProxy.before(postgres_url) as proxy:
        yield proxy


@pytest.fixture
def place(
    make_place: MakePlace, rabbitmq_url: str, postgres_url: str, database: FaultProxy
) -> Place:
    """RabbitMQ, and a store behind the proxy."""
    return make_place(transport=rabbitmq_url, store=database.url(postgres_url))


def started(place: Place) -> tuple[Party, Alarm]:
    """Return a running endpoint, which polls each second, and the alarm at its critical errors."""
    manager = TimeoutManager(
        time_to_wait_before_critical_error=LIMIT, poll_interval=timedelta(seconds=1)
    )
    party, alarm = Party(place, manager=manager), Alarm()
    party.config.define_critical_error_action(alarm)
    party.start()
    party.telemetry.wait_for("polls", 1)
    return party, alarm


def cut_off(database: FaultProxy) -> float:
    """Take the database away; return when: before any error, from which a breaker counts."""
    away_since = time.monotonic()
    database.refuse()
    database.reset()
    return away_since


def wait_for_all(party: Party, sent: list[Sent]) -> None:
    """Return once each of *sent* arrived."""
    for each in sent:
        party.inbox.wait_for_id(each.message_id, timeout=30)


def armed(party: Party) -> list[str]:
    """Return the names of the breakers that count an outage."""
    snapshot = party.endpoint.snapshot()
    return [name for name, state in snapshot.items() if state in ("armed", "triggered")]


@pytest.mark.behaviour(68, 75)
@pytest.mark.slow
def test_outages_below_the_limit_are_not_added_up_and_lose_nothing(
    place: Place, database: FaultProxy
) -> None:
    party, alarm = started(place)
    sent = []

    for _ in range(4):
        away_since = cut_off(database)
        sent += [party.endpoint.send_local("Ping", n, delay=n / 100) for n in range(10)]
        eventually(lambda: armed(party), "an outage is counted")
        party.endpoint.wait(LIMIT.total_seconds() / 2 - (time.monotonic() - away_since))
        database.heal()
        wait_for_all(party, sent)
        eventually(lambda: not armed(party), "the outage is over for everybody")

    # A connection that is lost over a commit repeats, under the same id.
    assert {a.id for a in party.inbox.arrived} == {s.message_id for s in sent}
    assert all(arrival.lateness >= 0 for arrival in party.inbox.arrived)
    assert party.telemetry.counted("moved_to_error") == 0
    assert alarm.reported == []


@pytest.mark.behaviour(69, 70, 77)
@pytest.mark.slow
def test_each_outage_above_the_limit_is_reported_once_and_in_time(
    place: Place, database: FaultProxy
) -> None:
    party, alarm = started(place)

    away_since = cut_off(database)
    sent = [party.endpoint.send_local("Ping", n, delay=n / 10) for n in range(10)]
    first = alarm.wait_for(1) - away_since
    # Long enough for each of the breakers that look at the same storage.
    party.endpoint.wait(LIMIT.total_seconds())
    reported_by_then = len(alarm.reported)
    database.heal()
    wait_for_all(party, sent)
    eventually(lambda: not armed(party), "the outage is over for everybody")
    away_since = cut_off(database)
    second = alarm.wait_for(2) - away_since

    assert reported_by_then == 1
    assert LIMIT.total_seconds() <= first < NOTICED
    assert LIMIT.total_seconds() <= second < NOTICED
    # A connection that is lost over a commit repeats, under the same id.
    assert {a.id for a in party.inbox.arrived} == {s.message_id for s in sent}
    assert party.telemetry.counted("moved_to_error") == 0


@pytest.mark.behaviour(32, 75)
def test_sessions_that_the_server_ends_again_and_again_lose_nothing(
    make_place: MakePlace, postgres_url: str
) -> None:
    party, alarm = started(make_place(transport=postgres_url, store=postgres_url))
    kept = party.endpoint.send_local("Ping", None, delay=LATER)
    party.wait_until_stored(kept.id)
    sent: list[str] = []

    for _ in range(5):
        end_sessions(postgres_url)
        for number in range(20):
            sent.append(f"{party.name}-{len(sent)}")
            send_at_last(party, sent[-1], delay=number / 100)
        eventually(lambda: not armed(party), "the outage is over for everybody")

    for message_id in sent:
        party.inbox.wait_for_id(message_id, timeout=30)
    assert {arrival.id for arrival in party.inbox.arrived} == set(sent)
    assert party.endpoint.timeouts.count() == 1
    assert party.telemetry.counted("moved_to_error") == 0
    assert alarm.reported == []


def end_sessions(url: str) -> None:
    """End every other session in the database of *url*, also amid a statement."""
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def send_at_last(party: Party, message_id: str, *, delay: float) -> None:
    """Send as a caller is told to: after an error again, under the same id."""

    def is_sent() -> bool:
        try:
            party.endpoint.send_local("Ping", None, delay=delay, message_id=message_id)
        except (TransportUnavailable, DeliveryUnknown):
            return False
        return True

    eventually(is_sent, f"{message_id} is sent")
