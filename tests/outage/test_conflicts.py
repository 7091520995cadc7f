"""Deadlocks, locks not had and a pool that is empty: tried again, and no outage."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import psycopg
import pytest
from sqlalchemy import make_url

from tests.acceptance.place import LATER, Party
from tests.outage.conftest import MakePlace
from tests.support.waiting import eventually
from timeoutmgr.database import Database
from timeoutmgr.database.engine import DatabaseSettings

DEADLOCK, SERIALIZATION, LOCK_TIMEOUT = "40P01", "40001", "55P03"


@pytest.mark.behaviour(32, 125)
@pytest.mark.parametrize(
    ("transport", "state"),
    [
        ("rabbitmq", DEADLOCK),
        ("rabbitmq", SERIALIZATION),
        ("rabbitmq", LOCK_TIMEOUT),
        ("postgres", DEADLOCK),
    ],
)
def test_a_conflict_in_the_database_is_tried_again_and_is_no_outage(
    make_place: MakePlace,
    postgres_url: str,
    transport: str,
    state: str,
    request: pytest.FixtureRequest,
) -> None:
    broker = request.getfixturevalue(f"{transport}_url")
    party = Party(make_place(transport=broker, store=postgres_url)).start()
    kept = party.endpoint.send_local("Ping", None, delay=LATER)
    party.wait_until_stored(kept.id)

    with conflicts(postgres_url, party.name, state, times=3):
        sent = [party.endpoint.send_local("Ping", n, delay=n / 20) for n in range(10)]
        for each in sent:
            party.inbox.wait_for_id(each.message_id)

    assert sorted(a.id for a in party.inbox.arrived) == sorted(s.message_id for s in sent)
    assert_no_outage(party)


@pytest.mark.behaviour(32, 125)
def test_a_writer_waits_for_a_file_in_use_and_reports_no_outage(
    make_place: MakePlace, sqlite_url: str
) -> None:
    party = Party(make_place(transport=sqlite_url, store=sqlite_url)).start()
    kept = party.endpoint.send_local("Ping", None, delay=LATER)
    party.wait_until_stored(kept.id)
    sent = []

    with closing(sqlite3.connect(make_url(sqlite_url).database or "")) as other:
        other.isolation_level = None
        for _ in range(5):
            lock_the_file(other)
            with ThreadPoolExecutor(8) as senders:
                sending = [
                    senders.submit(party.endpoint.send_local, "Ping", n, delay=n / 20)
                    for n in range(8)
                ]
                party.endpoint.wait(0.3)
                other.execute("ROLLBACK")
            sent += [each.result() for each in sending]
    for each in sent:
        party.inbox.wait_for_id(each.message_id)

    assert sorted(a.id for a in party.inbox.arrived) == sorted(s.message_id for s in sent)
    assert_no_outage(party)


@pytest.mark.behaviour(32)
@pytest.mark.parametrize("connections", [2, 6])
def test_a_small_pool_holds_many_senders_up_and_loses_nothing(
    make_place: MakePlace, postgres_url: str, unique: str, connections: int
) -> None:
    url = f"{postgres_url}?application_name={unique}"
    # It may grow to twice its size.
    database = Database.shared(url, DatabaseSettings(pool_size=connections // 2))
    party = Party(make_place(transport=url, store=url)).start()
    started = threading.Barrier(16)

    def send(number: int) -> list[str]:
        started.wait()
        return [
            party.endpoint.send_local("Ping", n, delay=number / 50).message_id for n in range(10)
        ]

    with ThreadPoolExecutor(16) as senders:
        sent = [each for ids in senders.map(send, range(16)) for each in ids]
    party.inbox.wait_for(len(sent), timeout=30)

    assert database.settings.pool_size == connections // 2
    assert sorted(a.id for a in party.inbox.arrived) == sorted(sent)
    assert_no_outage(party)


def assert_no_outage(party: Party) -> None:
    """Assert that nothing was counted, and nothing given up, as in an outage."""
    names = ("storage_failures", "transport_failures", "polls_failed", "pump_failures")
    assert {name: party.telemetry.counted(name) for name in names} == dict.fromkeys(names, 0)
    assert party.telemetry.counted("moved_to_error") == 0
    assert party.endpoint.critical_error is None


@contextmanager
def conflicts(url: str, endpoint: str, state: str, times: int) -> Iterator[None]:
    """Let the first *times* transactions that store a timeout fail with *state*, all of them."""
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    table, name = "timeoutmgr_timeout_keys", f"conflicts_{endpoint}"
    # A sequence goes on also where its transaction is rolled back.
    make = f"""
        CREATE SEQUENCE {name};
        CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF nextval('{name}') <= {times} THEN
                RAISE EXCEPTION 'as the test wants it' USING ERRCODE = '{state}';
            END IF;
            RETURN NEW;
        END $$;
        CREATE TRIGGER {name} BEFORE INSERT ON {table} FOR EACH ROW
        WHEN (NEW.endpoint = '{endpoint}') EXECUTE FUNCTION {name}();
    """
    drop = f"DROP TRIGGER {name} ON {table}; DROP FUNCTION {name}; DROP SEQUENCE {name};"
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(make.encode())
        try:
            yield
            used = connection.execute(f"SELECT last_value FROM {name}".encode()).fetchone()
            assert used is not None
            assert used[0] > times, "the conflicts were met"
        finally:
            connection.execute(drop.encode())


def lock_the_file(other: sqlite3.Connection) -> None:
    """Begin a write transaction, as soon as no other connection writes."""

    def is_locked() -> bool:
        try:
            other.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        return True

    eventually(is_locked, "the other writer has its turn")
