"""A pooler that shares sessions breaks session locks: refused; session pooling is admitted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from timeoutmgr.database import Database, DatabaseSettings
from timeoutmgr.database.session_locks import SessionLocks
from timeoutmgr.errors import CombinationRefused, ConfigurationError, StorageUnavailable
from timeoutmgr.message.redaction import masked
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.transport.sql import SqlTransport


@pytest.fixture
def behind(pooler: Callable[[str], str]) -> Iterator[Callable[..., Database]]:
    """Databases behind a pooler of a mode, with settings."""
    made: list[Database] = []

    def connect(mode: str, **settings: Any) -> Database:
        made.append(Database(pooler(mode), DatabaseSettings(**settings)))
        return made[-1]

    yield connect
    for database in made:
        database.dispose()


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_a_pooler_that_was_not_named_is_refused_with_the_remedy(
    behind: Callable[..., Database], mode: str, unique: str
) -> None:
    persistence = SqlPersistence(behind(mode), prefix=f"{unique}_")

    with pytest.raises(CombinationRefused, match="pooler") as refused:
        persistence.install()

    assert 'database.pooler = "session"' in str(refused.value)


def test_an_error_behind_a_pooler_of_statements_names_the_mode_that_is_needed(
    behind: Callable[..., Database], unique: str
) -> None:
    with pytest.raises(StorageUnavailable) as refused:
        SqlPersistence(behind("statement"), prefix=f"{unique}_").install()

    assert masked(str(refused.value)).endswith("(pool_mode = session)")


def test_a_pooler_said_to_keep_sessions_that_shares_them_is_refused(
    behind: Callable[..., Database], unique: str
) -> None:
    database = behind("transaction", pooler="session", prepared_statements=False)

    with pytest.raises(CombinationRefused, match=r"moved from session \d+ to \d+"):
        SqlTransport(database, prefix=f"{unique}_").install()


def test_a_pooler_is_refused_at_a_start_without_installers(
    behind: Callable[..., Database], postgres_url: str, unique: str
) -> None:
    direct = Database(postgres_url)
    SqlPersistence(direct, prefix=f"{unique}_").install()
    direct.dispose()

    with pytest.raises(CombinationRefused, match="pooler"):
        SqlPersistence(behind("transaction"), prefix=f"{unique}_").check()


def test_a_pooler_that_keeps_sessions_is_admitted_once_it_is_named(
    behind: Callable[..., Database], unique: str
) -> None:
    database = behind("session", pooler="session")
    persistence = SqlPersistence(database, prefix=f"{unique}_")
    locks = SessionLocks(database)

    persistence.install()
    persistence.check()
    locks.acquire(unique)

    assert locks.holds(unique)
    assert SessionLocks(database).dead_owners([unique]) == set()
    locks.release(unique)


def test_a_direct_connection_passes_under_either_setting(postgres_url: str, unique: str) -> None:
    for settings in (DatabaseSettings(), DatabaseSettings(pooler="session")):
        database = Database(postgres_url, settings)
        SqlPersistence(database, prefix=f"{unique}_").install()

        assert database.proved.server
        assert database.proved.rows
        database.dispose()


def test_without_prepared_statements_the_server_holds_none(postgres_url: str) -> None:
    prepared = []
    for settings in (DatabaseSettings(), DatabaseSettings(prepared_statements=False)):
        database = Database(postgres_url, settings)
        with database.read() as connection:
            for _ in range(20):  # psycopg prepares a statement after five executions
                connection.exec_driver_sql("SELECT 1")
            found = connection.exec_driver_sql("SELECT count(*) FROM pg_prepared_statements")
            prepared.append(found.scalar_one())
        database.dispose()

    assert prepared[0] > 0
    assert prepared[1] == 0


def test_a_pooler_mode_that_cannot_keep_locks_is_no_setting() -> None:
    with pytest.raises(ConfigurationError, match='pooler is "session" or not set'):
        DatabaseSettings(pooler="transaction")


def test_a_threshold_in_the_url_is_refused_with_the_setting() -> None:
    with pytest.raises(ConfigurationError, match="prepared_statements = false"):
        Database("postgresql+psycopg://h/d?prepare_threshold=0")
