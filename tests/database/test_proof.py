"""The proof at start: each wrong answer of a server or its proxy is refused by name.

A listener on the engine makes a real server give the wrong answer, each time another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import event

from timeoutmgr.database import Database, DatabaseSettings
from timeoutmgr.errors import CombinationRefused
from timeoutmgr.persistence import SqlPersistence

Rewrite = Callable[[str], str]


@pytest.fixture(params=["postgres_url", "mysql_url"])
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    made = Database(request.getfixturevalue(request.param))
    yield made
    made.dispose()


def answer_wrongly(database: Database, rewrite: Rewrite) -> None:
    """Have the server answer another statement than is asked."""

    @event.listens_for(database.engine, "before_cursor_execute", retval=True)
    def replace(
        _connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any
    ) -> tuple[str, Any]:
        return rewrite(statement), parameters


def replacing(**words: str) -> Rewrite:
    def rewrite(statement: str) -> str:
        for old, new in words.items():
            statement = statement.replace(old.replace("__", " "), new)
        return statement

    return rewrite


def test_a_server_that_meets_all_requirements_passes(database: Database, unique: str) -> None:
    persistence = SqlPersistence(database, prefix=f"{unique}_")

    persistence.install()

    assert database.proved.server
    assert database.proved.rows


def test_a_database_that_passed_is_not_asked_again(database: Database, unique: str) -> None:
    persistence = SqlPersistence(database, prefix=f"{unique}_")
    persistence.install()
    asked: list[str] = []

    @event.listens_for(database.engine, "before_cursor_execute")
    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        asked.append(statement)

    persistence.check()

    assert not [statement for statement in asked if "SKIP LOCKED" in statement]
    assert not [statement for statement in asked if "lock(" in statement.lower()]


def test_the_proof_takes_a_few_statements(database: Database, unique: str) -> None:
    SqlPersistence(database, prefix=f"{unique}_").install()
    other = Database(database.url)
    asked: list[str] = []

    @event.listens_for(other.engine, "before_cursor_execute")
    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        asked.append(statement)

    SqlPersistence(other, prefix=f"{unique}_").check()

    assert len(asked) <= 24
    other.dispose()


def test_rows_that_are_not_skipped_are_refused(database: Database, unique: str) -> None:
    SqlPersistence(database, prefix=f"{unique}_").install()
    other = Database(database.url)
    answer_wrongly(other, replacing(FOR__UPDATE="", SKIP__LOCKED=""))

    with pytest.raises(CombinationRefused, match="does not skip a locked row"):
        SqlPersistence(other, prefix=f"{unique}_").check()
    other.dispose()


def test_an_insert_that_counts_rows_that_are_there_is_refused(
    postgres_url: str, unique: str
) -> None:
    # As Citus does: a redelivered message would count as stored.
    first, other = Database(postgres_url), Database(postgres_url)
    SqlPersistence(first, prefix=f"{unique}_").install()
    answer_wrongly(other, replacing(DO__NOTHING="(version_num) DO UPDATE SET version_num = '9'"))

    with pytest.raises(CombinationRefused, match="inserted 1 again"):
        SqlPersistence(other, prefix=f"{unique}_").check()
    for database in (first, other):
        database.dispose()


@pytest.mark.parametrize(
    ("kind", "shown", "hidden"),
    [
        ("postgres_url", "pg_locks", "(SELECT * FROM pg_locks WHERE false) AS pg_locks"),
        ("mysql_url", "IS_USED_LOCK(%(name)s) IS NOT NULL", "%(name)s = '0'"),
    ],
)
def test_a_session_lock_that_no_other_session_sees_is_refused(
    kind: str, shown: str, hidden: str, request: pytest.FixtureRequest
) -> None:
    database = Database(request.getfixturevalue(kind))
    answer_wrongly(database, lambda statement: statement.replace(shown, hidden))

    with pytest.raises(CombinationRefused, match="does not show a session lock"):
        SqlPersistence(database).check()
    database.dispose()


def test_a_statement_that_the_server_does_not_know_refuses_it(
    database: Database, unique: str
) -> None:
    SqlPersistence(database, prefix=f"{unique}_").install()
    other = Database(database.url)
    answer_wrongly(other, replacing(SKIP__LOCKED="SKIP LOCKS"))

    with pytest.raises(CombinationRefused, match="does not know a statement of ours"):
        SqlPersistence(other, prefix=f"{unique}_").check()
    other.dispose()


def test_a_cluster_is_refused_unless_one_node_gets_all_writes(galera_url: str) -> None:
    refused, said = Database(galera_url), Database(galera_url, DatabaseSettings(single_writer=True))

    with pytest.raises(CombinationRefused, match="Galera cluster of 2 nodes") as error:
        SqlPersistence(refused).install()
    SqlPersistence(said).install()

    assert "database.single_writer = true" in str(error.value)
    for database in (refused, said):
        database.dispose()
