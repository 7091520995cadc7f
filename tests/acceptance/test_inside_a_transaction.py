"""A message sent with ``session=`` exists if the caller's own transaction commits, else not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tests.acceptance.matrix import REFERENCE, REPRESENTATIVE, Pair, matrix
from tests.acceptance.place import LATER, PROMPT, SOON, Party, Place
from timeoutmgr import HandlerContext, RecoverabilitySettings
from timeoutmgr.errors import CombinationRefused, TransportUnavailable, Unroutable

WITH_A_DATABASE = (
    *REPRESENTATIVE,
    Pair("rabbitmq", "mysql"),
    Pair("sqlite", "postgres"),
    Pair("redis", "postgres"),
)
ONE_DATABASE = [pair for pair in REPRESENTATIVE if "one_database" in pair.capabilities]


@contextmanager
def caller(place: Place) -> Iterator[Connection]:
    """A connection of the application's own, to the database of the store (and the queue)."""
    engine = create_engine(place.store_url)
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


@matrix(pairs=WITH_A_DATABASE, all_modes=True)
@pytest.mark.behaviour(41)
def test_a_committed_send_is_delivered_and_a_rolled_back_send_is_not(place: Place) -> None:
    party = Party(place).start()

    with caller(place) as connection:
        kept = party.endpoint.send_local("Ping", "kept", delay=SOON, session=connection)
        connection.commit()
        undone = party.endpoint.send_local("Ping", "undone", delay=SOON, session=connection)
        connection.rollback()
        with Session(connection) as session:
            also = party.endpoint.send_local("Ping", "also", delay=2 * SOON, session=session)
            session.commit()

    assert party.inbox.wait_for_id(kept.message_id).lateness < PROMPT
    assert 0 <= party.inbox.wait_for_id(also.message_id).lateness < PROMPT
    barrier = party.endpoint.send_local("Ping", "barrier", delay=SOON)
    party.inbox.wait_for_id(barrier.message_id)
    assert party.inbox.of(undone.message_id) == []
    assert len(party.inbox.arrived) == 3


@matrix(pairs=WITH_A_DATABASE, needs={"row_locks"})  # a SQLite file has one writer: the caller
@pytest.mark.behaviour(41)
def test_nothing_is_delivered_before_the_commit(place: Place) -> None:
    party = Party(place).start()

    with caller(place) as connection:
        held = party.endpoint.send_local("Ping", "held", delay=0, session=connection)
        meanwhile = party.endpoint.send_local("Ping", "meanwhile", delay=SOON)
        party.inbox.wait_for_id(meanwhile.message_id)
        assert party.inbox.of(held.message_id) == []
        connection.commit()

    party.inbox.wait_for_id(held.message_id)


@matrix(pairs=[REFERENCE, Pair("mysql", "mysql"), Pair("sqlite", "sqlite")])
@pytest.mark.behaviour(41)
def test_two_messages_in_one_transaction_both_wake_the_poller(place: Place) -> None:
    party = Party(place).start()

    with caller(place) as connection:
        # The gap between both due times outlasts a pause of the machine.
        later = party.endpoint.send_local("Ping", 1, delay=20 * SOON, session=connection)
        sooner = party.endpoint.send_local("Ping", 2, delay=SOON, session=connection)
        connection.commit()

    arrived = party.inbox.wait_for(2)
    assert [a.id for a in arrived] == [sooner.message_id, later.message_id]
    assert max(a.lateness for a in arrived) < PROMPT


@matrix(pairs=WITH_A_DATABASE)
@pytest.mark.behaviour(64)
def test_a_missing_destination_is_refused_inside_a_transaction_too(place: Place) -> None:
    party = Party(place).start()

    with caller(place) as connection:
        with pytest.raises(Unroutable, match="nobody"):
            party.endpoint.send("nobody", "Ping", {}, delay=LATER, session=connection)
        connection.commit()

    assert party.endpoint.timeouts.count() == 0


@matrix(pairs=[REFERENCE, Pair("rabbitmq", "postgres")])
@pytest.mark.behaviour(41)
def test_a_session_that_looks_into_another_schema_is_refused(place: Place) -> None:
    party = Party(place).start()

    with caller(place) as connection:
        connection.execute(text("SET LOCAL search_path = information_schema"))
        with pytest.raises(CombinationRefused, match="another search_path"):
            party.endpoint.send_local("Ping", "elsewhere", delay=SOON, session=connection)
        connection.rollback()
        connection.execute(text("SET LOCAL search_path = information_schema, public"))
        kept = party.endpoint.send_local("Ping", "kept", delay=SOON, session=connection)
        connection.commit()

    party.inbox.wait_for_id(kept.message_id)


@matrix(pairs=[Pair("mysql", "mysql"), Pair("rabbitmq", "mysql")])
@pytest.mark.behaviour(41)
def test_a_session_that_uses_another_database_is_refused(place: Place) -> None:
    party = Party(place).start()

    with caller(place) as connection:
        own = connection.engine.url.database
        connection.execute(text("USE information_schema"))
        with pytest.raises(CombinationRefused, match="in another database"):
            party.endpoint.send_local("Ping", "elsewhere", delay=SOON, session=connection)
        connection.rollback()
        connection.execute(text(f"USE {own}"))
        kept = party.endpoint.send_local("Ping", "kept", delay=SOON, session=connection)
        connection.commit()

    party.inbox.wait_for_id(kept.message_id)


@matrix(
    pairs=[
        REFERENCE,
        Pair("postgres", "postgres"),
        Pair("mysql", "mysql"),
        Pair("sqlite", "sqlite"),
    ]
)
@pytest.mark.behaviour(41)
def test_a_map_of_schemas_for_the_callers_tables_moves_no_message(place: Place) -> None:
    party = Party(place).start()
    tenants = {None: "information_schema"}

    with caller(place) as connection:
        connection.execution_options(schema_translate_map=tenants)
        kept = party.endpoint.send_local("Ping", "kept", delay=SOON, session=connection)
        assert connection.get_execution_options()["schema_translate_map"] == tenants
        connection.commit()

    party.inbox.wait_for_id(kept.message_id)


@matrix(pairs=[Pair("rabbitmq", "memory"), Pair("redis", "memory"), REFERENCE])
def test_a_session_of_another_database_is_refused(place: Place, sqlite_url: str) -> None:
    party = Party(place).start()
    engine = create_engine(sqlite_url.replace("timeoutmgr.db", "other.db"))

    with (
        engine.connect() as connection,
        pytest.raises(CombinationRefused, match="neither the queues nor the timeouts"),
    ):
        party.endpoint.send_local("Ping", {}, delay=LATER, session=connection)

    engine.dispose()


@matrix(pairs=[Pair("rabbitmq", "postgres"), Pair("redis", "sqlite")])
def test_a_message_at_once_joins_no_transaction_of_the_timeouts(place: Place) -> None:
    party = Party(place).start()

    with (
        caller(place) as connection,
        pytest.raises(CombinationRefused, match="only a delayed message can join"),
    ):
        party.endpoint.send_local("Ping", {}, session=connection)


@matrix(pairs=WITH_A_DATABASE)
def test_a_connection_in_autocommit_is_refused(place: Place) -> None:
    party = Party(place).start()

    with caller(place) as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        for session in (connection, Session(connection)):
            with pytest.raises(CombinationRefused, match="a connection in AUTOCOMMIT is refused"):
                party.endpoint.send_local("Ping", {}, delay=LATER, session=session)
        connection.rollback()

    assert party.endpoint.timeouts.count() == 0


def without_engine(connection: Connection) -> Any:
    return Session()


def after_close(connection: Connection) -> Any:
    connection.close()
    return connection


def of_asyncio(connection: Connection) -> Any:
    return AsyncSession(create_async_engine("sqlite+aiosqlite://"))


def connection_of_asyncio(connection: Connection) -> Any:
    return create_async_engine("sqlite+aiosqlite://").connect()


@matrix(pairs=[REFERENCE, Pair("rabbitmq", "postgres")])
@pytest.mark.parametrize(
    ("made", "remedy"),
    [
        (without_engine, "Session that has an engine"),
        (after_close, "Give an open connection"),
        (of_asyncio, "AsyncEndpoint sends inside an AsyncSession"),
        (connection_of_asyncio, "AsyncEndpoint sends inside an AsyncSession"),
    ],
)
def test_a_session_that_lends_no_connection_is_refused(
    place: Place, made: Callable[[Connection], Any], remedy: str
) -> None:
    party = Party(place)

    with caller(place) as connection:
        session = made(connection)
        with pytest.raises(CombinationRefused, match=remedy):
            party.endpoint.send_local("Ping", {}, delay=LATER, session=session)


@matrix(pairs=[REFERENCE, Pair("rabbitmq", "postgres"), Pair("rabbitmq", "mysql")])
def test_a_send_in_a_read_only_transaction_raises_an_error_with_the_remedy(place: Place) -> None:
    party = Party(place).start()

    with caller(place) as connection:
        is_mysql = connection.dialect.name == "mysql"
        begin = "START TRANSACTION READ ONLY" if is_mysql else "SET TRANSACTION READ ONLY"
        connection.execute(text(begin))
        with pytest.raises(TransportUnavailable, match="begin the transaction READ WRITE"):
            party.endpoint.send_local("Ping", {}, delay=LATER, session=connection)


@matrix(pairs=ONE_DATABASE)
@pytest.mark.behaviour(63)
def test_a_handlers_own_rows_and_messages_are_one_transaction_with_its_receipt(
    place: Place,
) -> None:
    party = Party(place, recoverability=RecoverabilitySettings(immediate=3, delayed=0))
    table = f"ledger_{place.name}"
    failures = iter([True, True])

    @party.config.handler("Note")
    def note(_body: Any, context: HandlerContext) -> None:
        context.session.execute(
            text(f"INSERT INTO {table} VALUES (:id)"), {"id": context.message_id}
        )
        context.send_local("Done", context.message_id, delay=SOON)
        if next(failures, False):
            raise RuntimeError("not this time")

    with caller(place) as connection:
        connection.execute(text(f"CREATE TABLE {table} (id VARCHAR(60))"))
        connection.commit()
        party.start()

        sent = party.endpoint.send_local("Note", {}, delay=SOON)

        [done] = party.inbox.wait_for(1)
        rows = connection.execute(text(f"SELECT id FROM {table}")).scalars().all()
        assert done.body == sent.message_id
        assert list(rows) == [sent.message_id]
        connection.rollback()
        connection.execute(text(f"DROP TABLE {table}"))
        connection.commit()
    assert len(party.inbox.arrived) == 1
