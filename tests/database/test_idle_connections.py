from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection, event, exc, text

from tests.support.waiting import eventually
from timeoutmgr.database import Database
from timeoutmgr.database.round_trips import DriverStatement, PipelinedTransaction
from timeoutmgr.errors import StorageUnavailable

ID = {"postgresql": "pg_backend_pid()", "mysql": "connection_id()"}
END = {"postgresql": "SELECT pg_terminate_backend({})", "mysql": "KILL {}"}
IS_THERE = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE pid = {}",
    "mysql": "SELECT count(*) FROM information_schema.processlist WHERE id = {}",
}


BE_READ_ONLY = {
    "postgresql": "SET default_transaction_read_only = on",
    "mysql": "SET SESSION TRANSACTION READ ONLY",
}


@pytest.fixture(params=["postgres", "mysql"])
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    made = Database(request.getfixturevalue(f"{request.param}_url"))
    yield made
    made.dispose()


def session_of(database: Database) -> int:
    with database.read() as connection:
        return int(connection.execute(text(f"SELECT {ID[database.dialect.name]}")).scalar_one())


def end(database: Database, sessions: set[int]) -> None:
    """Have the server end *sessions*, which are idle."""
    name = database.dialect.name
    with database.apart.connect() as connection:
        for session in sessions:
            connection.execute(text(END[name].format(session)))

        def are_ended() -> bool:
            connection.rollback()
            return not any(
                connection.execute(text(IS_THERE[name].format(session))).scalar_one()
                for session in sessions
            )

        eventually(are_ended, f"the server has ended the sessions {sessions}")


@pytest.mark.parametrize("count", [1, 3])
def test_a_connection_that_the_server_closed_is_replaced_before_it_is_lent(
    database: Database, count: int
) -> None:
    held = [database.engine.connect() for _ in range(count)]
    sessions = {
        int(one.execute(text(f"SELECT {ID[database.dialect.name]}")).scalar_one()) for one in held
    }
    for one in held:
        one.close()
    end(database, sessions)

    lent = [database.engine.connect() for _ in range(count)]
    found = {
        int(one.execute(text(f"SELECT {ID[database.dialect.name]}")).scalar_one()) for one in lent
    }
    for one in lent:
        one.close()
    assert len(found) == count
    assert found.isdisjoint(sessions)


def test_a_server_that_ends_new_connections_is_an_outage(database: Database) -> None:
    statement = f"SELECT {ID[database.dialect.name]}"

    @event.listens_for(database.engine, "connect")
    def refuse(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        cursor.execute(statement)
        session = int(cursor.fetchone()[0])
        connection.rollback()
        end(database, {session})

    with pytest.raises(StorageUnavailable, match="cannot be used now"):
        session_of(database)

    event.remove(database.engine, "connect", refuse)
    assert session_of(database) > 0


def test_a_statement_that_is_sent_alone_gets_such_a_connection_too(postgres_url: str) -> None:
    database = Database(postgres_url)
    statement = database._alone
    with statement.connect() as connection:
        session = int(connection.execute(text("SELECT pg_backend_pid()")).scalar_one())
    end(database, {session})

    with statement.connect() as connection:
        assert connection.execute(text("SELECT pg_backend_pid()")).scalar_one() != session
    database.dispose()


def test_a_connection_that_has_a_notice_is_lent_again(postgres_url: str) -> None:
    database = Database(postgres_url)
    with database.engine.connect() as connection:
        session = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
        connection.execute(text("LISTEN news"))
        connection.commit()
    with database.apart.begin() as connection:
        connection.execute(text("NOTIFY news"))

    assert session_of(database) == session
    database.dispose()


@pytest.fixture
def table(database: Database, unique: str) -> Iterator[str]:
    """A table, beside three idle sessions that began while the server took no writes."""
    with database.begin() as connection:
        connection.execute(text(f"CREATE TABLE {unique} (n INT)"))
    with ExitStack() as lent:
        for _ in range(3):
            connection = lent.enter_context(database.engine.connect())
            connection.execute(text(BE_READ_ONLY[database.dialect.name]))
            connection.commit()
    yield unique
    with database.apart.begin() as connection:
        connection.execute(text(f"DROP TABLE {unique}"))


def test_sessions_that_may_only_read_are_replaced_after_one_error(
    database: Database, table: str
) -> None:
    def write(connection: Connection) -> int:
        return connection.execute(text(f"INSERT INTO {table} VALUES (1)")).rowcount

    with pytest.raises(StorageUnavailable, match=r"(?i)read.only"):
        database.run(write)

    assert [database.run(write) for _ in range(4)] == [1] * 4


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_a_pipelined_statement_has_them_replaced_too(database: Database, table: str) -> None:
    insert = DriverStatement(text(f"INSERT INTO {table} VALUES (1)"), database.engine)

    def write(transaction: PipelinedTransaction) -> None:
        transaction.execute(insert, {})

    with pytest.raises(StorageUnavailable, match="read-only"):
        database.run_pipelined(write)

    for _ in range(4):
        database.run_pipelined(write)


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_a_savepoint_that_may_only_read_fails_alone(database: Database) -> None:
    """A handler may ask for it, or a foreign table may be read-only: its message has failed."""
    with database.begin() as connection:
        savepoint = connection.begin_nested()
        connection.execute(text("SET TRANSACTION READ ONLY"))
        with pytest.raises(exc.InternalError):
            connection.execute(text("CREATE TABLE never (n INT)"))
        savepoint.rollback()

        assert connection.execute(text("SELECT 1")).scalar_one() == 1


class TimeLimit(Exception):
    """A signal's handler raises it, as Celery's soft time limit of a task does."""


def test_an_interrupted_transaction_raises_the_interruption_and_its_session_is_replaced(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_of(database)

    def interrupt(*_: object) -> None:
        monkeypatch.undo()
        raise TimeLimit

    def work(connection: Connection) -> None:
        connection.execute(text("SELECT 1"))  # begins on the server
        if database.dialect.name == "mysql":
            driver = connection.connection.driver_connection
            monkeypatch.setattr(driver, "_rfile", SimpleNamespace(read=interrupt))
        else:
            monkeypatch.setattr(database.unanswered, "sign", interrupt)
        connection.execute(text("SELECT 2"))

    with pytest.raises(TimeLimit):
        database.run(work)

    assert session_of(database) != session
    assert database.connections() == (0, 1)
