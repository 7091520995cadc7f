"""The cost of an endpoint while nothing is due: statements a minute, and memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text

from chaos.forkserver_client import ForkServer
from tests.acceptance.matrix import EMBEDDED, REFERENCE, REPRESENTATIVE, matrix
from tests.acceptance.place import LATER, SOON, Party, Place
from tests.acceptance.process import Child
from timeoutmgr import TimeoutState
from timeoutmgr.clock import SystemClock
from timeoutmgr.database import Database, as_database
from timeoutmgr.message.instants import Micros

MILLION = 1_000_000


class MinuteClock:
    """The system's clock; a test can let a minute of monotonic time pass at once."""

    def __init__(self) -> None:
        self._system = SystemClock()
        self._passed = 0.0

    def now(self) -> Micros:
        """Return the wall clock's time."""
        return self._system.now()

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return self._system.monotonic() + self._passed

    def a_minute_passes(self) -> None:
        """Let a little more than a minute pass."""
        self._passed += 62.0


@contextmanager
def statements_of_the_poller(database: Database) -> Iterator[list[str]]:
    """Collect the statements of the poller's thread, except reads of the database's clock.

    The test causes these reads: its minute passes on one of the host's two clocks only, as if an
    operator had set the other clock.
    """
    seen: list[str] = []
    clock = f"SELECT {database.dialect.now}"

    def note(_c: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        polls = threading.current_thread().name.startswith("ThreadPoolExecutor")
        # SQLAlchemy shows BEGIN on SQLite alone.
        if polls and not statement.startswith("BEGIN") and statement != clock:
            seen.append(statement)

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(database.engine, "before_cursor_execute", note)


@matrix(pairs=REPRESENTATIVE)
@pytest.mark.behaviour(36)
def test_an_idle_minute_costs_the_poller_at_most_two_statements(place: Place) -> None:
    clock = MinuteClock()
    party = Party(place, clock=clock)
    database = place.persistence().database
    assert database is not None
    party.start()
    kept = party.endpoint.send_local("Ping", 1, delay=LATER)
    party.wait_until_stored(kept.id)
    party.telemetry.wait_for("polls", 1)

    with statements_of_the_poller(as_database(database)) as seen:
        for _minute in range(2):
            with party.telemetry.expect("polls", 1):
                clock.a_minute_passes()  # the watchdog sees it within a second

    assert 0 < len(seen) <= 2 * 2, seen


@matrix(pairs=[EMBEDDED, REFERENCE])
@pytest.mark.behaviour(50, 124)
@pytest.mark.slow
def test_a_million_pending_messages_cost_no_memory(place: Place, fork_server: ForkServer) -> None:
    party = Party(place)
    party.endpoint.install()
    with_none = memory_after_a_message(fork_server, place, party)
    fill_with_a_million(place)

    with_a_million = memory_after_a_message(fork_server, place, party)

    empty_again(place)
    assert with_a_million <= 1.1 * with_none, (with_none, with_a_million)


def memory_after_a_message(fork_server: ForkServer, place: Place, party: Party) -> int:
    """Return the memory of a process that has run and delivered a message."""
    with Child(fork_server, place).running() as child:
        sent = party.endpoint.send_local("Ping", 1, delay=SOON)
        party.wait_until_dispatched(sent.id)
        used = child.own_memory()
        child.terminate()
    return used


def fill_with_a_million(place: Place) -> None:
    """Store a million timeouts in two statements, due in a year."""
    series = {
        "postgres": "SELECT generate_series AS n FROM generate_series(1, :count)",
        "sqlite": "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < :count)"
        " SELECT n FROM s",
    }[place.pair.store]
    key = "INSERT INTO timeoutmgr_timeout_keys (endpoint, id, due, version, state)"
    row = (
        "INSERT INTO timeoutmgr_timeouts (endpoint, due, id, destination, message_id, headers,"
        " body, content_type, content_encoding, created, version, attempts)"
    )
    values = {
        "count": MILLION,
        "endpoint": place.name,
        "due": SystemClock().now() + 365 * 86_400 * 1_000_000,
        "state": TimeoutState.PENDING.value,
        "body": b"x" * 100,
    }
    # All of one length: so the rows come in the order of their keys, to the ends of the indexes.
    identity = f"'p' || cast(n + {MILLION} AS varchar)"
    engine = create_engine(place.store_url)
    with engine.begin() as connection:
        connection.execute(
            text(f"{key} SELECT :endpoint, {identity}, :due + n, 0, :state FROM ({series}) AS s"),
            values,
        )
        connection.execute(
            text(
                f"{row} SELECT :endpoint, :due + n, {identity}, :endpoint, {identity}, "
                f"'{{}}', :body, 'text/plain', 'utf-8', 0, 0, 0 FROM ({series}) AS s"
            ),
            values,
        )
    engine.dispose()


def empty_again(place: Place) -> None:
    """Leave no million rows to the tests that share a server's database; a file is the test's."""
    if place.pair.store == "sqlite":
        return
    engine = create_engine(place.store_url)
    with engine.begin() as connection:
        connection.execute(text("TRUNCATE timeoutmgr_timeouts, timeoutmgr_timeout_keys"))
    engine.dispose()
