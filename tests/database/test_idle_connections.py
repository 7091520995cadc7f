from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import text

from timeoutmgr.database import Database
from timeoutmgr.testing.signals import eventually

ID = {"postgresql": "pg_backend_pid()", "mysql": "connection_id()"}
END = {"postgresql": "SELECT pg_terminate_backend({})", "mysql": "KILL {}"}
IS_THERE = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE pid = {}",
    "mysql": "SELECT count(*) FROM information_schema.processlist WHERE id = {}",
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
