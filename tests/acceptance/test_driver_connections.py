"""A driver's own connection is a ``session=``: its commit sends, its rollback sends nothing."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.engine import make_url

from tests.acceptance.matrix import REFERENCE, Pair, matrix
from tests.acceptance.place import LATER, PROMPT, SOON, Party, Place
from tests.support.drivers import connect, connect_mysqlclient
from timeoutmgr import DriverTransaction
from timeoutmgr.errors import CombinationRefused, TransportUnavailable

ONE_DATABASE = (
    Pair("sqlite", "sqlite"),
    Pair("postgres", "postgres"),
    Pair("mysql", "mysql"),
)
WITH_A_DATABASE = (*ONE_DATABASE, REFERENCE, Pair("rabbitmq", "mysql"), Pair("rabbitmq", "sqlite"))
AUTOCOMMIT: dict[str, dict[str, Any]] = {
    "sqlite": {"isolation_level": None},
    "postgres": {"autocommit": True},
    "mysql": {"autocommit": True},
}
OWN_ID = {"postgres": "SELECT pg_backend_pid()", "mysql": "SELECT connection_id()"}
END = {"postgres": "SELECT pg_terminate_backend({}, 10000)", "mysql": "KILL {}"}


@matrix(pairs=WITH_A_DATABASE)
@pytest.mark.behaviour(41)
def test_a_commit_of_the_driver_sends_and_a_rollback_sends_nothing(place: Place) -> None:
    party = Party(place).start()

    with contextlib.closing(connect(place.store_url)) as connection:
        kept = party.endpoint.send_local("Ping", "kept", delay=SOON, session=connection)
        connection.commit()
        undone = party.endpoint.send_local("Ping", "undone", delay=SOON, session=connection)
        connection.rollback()

    assert 0 <= party.inbox.wait_for_id(kept.message_id).lateness < PROMPT
    barrier = party.endpoint.send_local("Ping", "barrier", delay=SOON)
    party.inbox.wait_for_id(barrier.message_id)
    assert party.inbox.of(undone.message_id) == []


@matrix(pairs=WITH_A_DATABASE)
@pytest.mark.behaviour(41)
def test_a_send_joins_the_rows_that_the_caller_wrote_before_it(place: Place) -> None:
    party = Party(place).start()
    table = f"orders_{place.name}"

    with contextlib.closing(connect(place.store_url)) as connection:
        cursor = connection.cursor()
        cursor.execute(f"CREATE TABLE {table} (id INTEGER)")
        connection.commit()
        cursor.execute(f"INSERT INTO {table} VALUES (1)")
        party.endpoint.send_local("Ping", 1, delay=LATER, session=connection)
        cursor.execute(f"INSERT INTO {table} VALUES (2)")
        connection.rollback()
        cursor.execute(f"SELECT COUNT(*) AS rest FROM {table}")
        row = cursor.fetchone()
        rest = row["rest"]
        connection.rollback()
        cursor.execute(f"DROP TABLE {table}")
        connection.commit()

    assert rest == 0
    assert party.endpoint.timeouts.count() == 0


@matrix(pairs=[REFERENCE, Pair("rabbitmq", "postgres")])
def test_a_send_in_a_failed_transaction_is_refused_with_the_remedy(place: Place) -> None:
    party = Party(place).start()

    with contextlib.closing(connect(place.store_url)) as connection:
        with contextlib.suppress(Exception):
            connection.cursor().execute("SELECT 1 / 0")
        with pytest.raises(CombinationRefused, match="Roll back before the send"):
            party.endpoint.send_local("Ping", {}, delay=LATER, session=connection)


@matrix(pairs=[REFERENCE])
def test_a_connection_in_a_pipeline_is_refused_until_the_pipeline_ends(place: Place) -> None:
    party = Party(place).start()

    with contextlib.closing(connect(place.store_url)) as connection:
        with connection.pipeline(), pytest.raises(CombinationRefused, match="pipeline"):
            party.endpoint.send_local("Ping", 1, delay=LATER, session=connection)
        party.endpoint.send_local("Ping", 2, delay=LATER, session=connection)
        connection.rollback()

    assert party.endpoint.timeouts.count() == 0


@matrix(pairs=WITH_A_DATABASE)
def test_an_autocommit_connection_is_refused_until_its_transaction_is_open(place: Place) -> None:
    party = Party(place).start()
    more = AUTOCOMMIT[place.pair.store]

    with contextlib.closing(connect(place.store_url, **more)) as connection:
        with pytest.raises(CombinationRefused, match="autocommit mode"):
            party.endpoint.send_local("Ping", 1, delay=LATER, session=connection)
        connection.cursor().execute("BEGIN")
        party.endpoint.send_local("Ping", 2, delay=LATER, session=connection)
        connection.cursor().execute("ROLLBACK")

    assert party.endpoint.timeouts.count() == 0


@matrix(pairs=[Pair("rabbitmq", "postgres"), Pair("rabbitmq", "mysql"), Pair("rabbitmq", "sqlite")])
def test_what_follows_the_commit_is_left_to_the_caller_that_sees_it(place: Place) -> None:
    party = Party(place)
    waiting: list[Callable[[], None]] = []
    party.endpoint.install()

    with contextlib.closing(connect(place.store_url)) as connection:
        session = DriverTransaction(connection=connection, after_commit=waiting.append)
        before_the_next_poll = timedelta(minutes=1)
        party.endpoint.send_local("Ping", 1, delay=before_the_next_poll, session=session)
        connection.commit()

    address = f"{place.name}.Timeouts"
    assert place.session.count(address) == 0
    assert len(waiting) == 1
    waiting[0]()
    assert place.session.count(address) == 1


@matrix(pairs=[Pair("mysql", "mysql"), Pair("rabbitmq", "mysql")])
def test_a_connection_of_mysqlclient_is_as_good(place: Place) -> None:
    party = Party(place).start()

    with contextlib.closing(connect_mysqlclient(make_url(place.store_url))) as connection:
        connection.autocommit(True)
        with pytest.raises(CombinationRefused, match=r"autocommit\(False\)"):
            party.endpoint.send_local("Ping", 0, delay=LATER, session=connection)
        connection.autocommit(False)
        undone = party.endpoint.send_local("Ping", 1, delay=SOON, session=connection)
        connection.rollback()
        kept = party.endpoint.send_local("Ping", 2, delay=SOON, session=connection)
        connection.commit()

    party.inbox.wait_for_id(kept.message_id)
    assert party.inbox.of(undone.message_id) == []


@matrix(pairs=[Pair("sqlite", "sqlite"), REFERENCE, Pair("rabbitmq", "memory")])
def test_a_driver_connection_to_another_database_is_refused_by_name(
    place: Place, sqlite_url: str
) -> None:
    party = Party(place).start()
    other = sqlite_url.replace("timeoutmgr.db", "other.db")

    with (
        contextlib.closing(connect(other)) as connection,
        pytest.raises(CombinationRefused) as refused,
    ):
        party.endpoint.send_local("Ping", {}, delay=LATER, session=connection)

    assert "sqlite3" in str(refused.value)
    if place.pair.transport == "sqlite":
        assert "other.db" in str(refused.value)
        assert make_url(place.store_url).render_as_string() in str(refused.value)


@matrix(pairs=[Pair("postgres", "postgres"), Pair("mysql", "mysql")])
def test_another_database_of_the_same_server_is_refused_by_name(place: Place) -> None:
    party = Party(place).start()
    other = {"postgres": "postgres", "mysql": "information_schema"}[place.pair.store]
    url = make_url(place.store_url).set(database=other).render_as_string(hide_password=False)

    with (
        contextlib.closing(connect(url)) as connection,
        pytest.raises(CombinationRefused, match=f"to {other}"),
    ):
        party.endpoint.send_local("Ping", {}, delay=LATER, session=connection)


@matrix(pairs=[Pair("postgres", "postgres"), Pair("mysql", "mysql"), REFERENCE])
def test_a_broken_driver_connection_is_an_outage_as_a_broken_session_is(place: Place) -> None:
    party = Party(place)
    party.endpoint.install()
    connection = connect(place.store_url)
    cursor = connection.cursor()

    cursor.execute(OWN_ID[place.pair.store])
    [own] = cursor.fetchone().values()
    with contextlib.closing(connect(place.store_url)) as other:
        other.cursor().execute(END[place.pair.store].format(own))
    with pytest.raises(TransportUnavailable):
        party.endpoint.send_local("Ping", {}, delay=LATER, session=connection)


@matrix(pairs=[Pair("sqlite", "sqlite")])
def test_an_object_without_a_transaction_is_refused_by_its_type(place: Place) -> None:
    party = Party(place).start()
    stranger: Any = object()

    with pytest.raises(CombinationRefused, match=r"session=builtins\.object"):
        party.endpoint.send_local("Ping", {}, delay=LATER, session=stranger)


@matrix(pairs=[Pair("sqlite", "sqlite")])
def test_a_send_begins_the_transaction_of_a_driver_that_waits_for_a_change(place: Place) -> None:
    party = Party(place).start()

    with contextlib.closing(connect(place.store_url)) as connection:
        assert isinstance(connection, sqlite3.Connection)
        assert not connection.in_transaction
        party.endpoint.send_local("Ping", 1, delay=LATER, session=connection)
        assert connection.in_transaction
        connection.rollback()

    assert party.endpoint.timeouts.count() == 0


@matrix(pairs=[Pair("sqlite", "sqlite")])
def test_a_deferred_transaction_gets_the_lock_of_the_file_before_it_reads(place: Place) -> None:
    party = Party(place)
    party.endpoint.install()
    intruders: list[str] = []

    def intrude(statement: str) -> None:
        if statement.startswith("INSERT"):  # the statements before it have read
            with contextlib.closing(connect(place.store_url, timeout=0)) as other:
                try:
                    other.execute("CREATE TABLE newer (id INTEGER)")
                except sqlite3.OperationalError as error:
                    intruders.append(str(error))

    with contextlib.closing(connect(place.store_url, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        connection.set_trace_callback(intrude)
        party.endpoint.send_local("Ping", 1, delay=LATER, session=connection)
        connection.execute("COMMIT")

    assert intruders == ["database is locked"]
    assert place.session.count(f"{place.name}.Timeouts") == 1


@matrix(pairs=[Pair("sqlite", "sqlite"), Pair("rabbitmq", "sqlite")])
def test_a_transaction_with_an_old_snapshot_is_refused_with_the_remedy(place: Place) -> None:
    party = Party(place)
    party.endpoint.install()

    with contextlib.closing(connect(place.store_url, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT * FROM sqlite_schema").fetchall()
        with contextlib.closing(connect(place.store_url)) as other:
            other.execute("CREATE TABLE newer (id INTEGER)")
        with pytest.raises(TransportUnavailable, match="Begin with BEGIN IMMEDIATE"):
            party.endpoint.send_local("Ping", 1, delay=LATER, session=connection)
        connection.execute("ROLLBACK")
