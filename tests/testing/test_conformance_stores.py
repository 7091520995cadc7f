"""Our own stores pass the suite that we ship."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import ClassVar

import pytest

from timeoutmgr.contracts import Persistence
from timeoutmgr.persistence import MemoryPersistence, SqlPersistence, SqlSettings
from timeoutmgr.testing.conformance.shared_cases import SharedCases
from timeoutmgr.testing.conformance.stores import StoreConformance
from timeoutmgr.testing.conformance.stores.claims import TimeoutClaims
from timeoutmgr.testing.conformance.stores.dispatch_lock import TimeoutDispatchLock
from timeoutmgr.testing.conformance.stores.suite import StoreSuite

BY_OUR_CLOCK = SqlSettings(clock="host")


PREFIX = "conformance_"


@pytest.fixture(scope="session")
def installed_url(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], str]]:
    """Tables of a kind of database, installed once; every test has its own endpoint in them."""
    made: dict[str, SqlPersistence] = {}
    urls: dict[str, str] = {}

    def of(kind: str) -> str:
        if kind not in made:
            urls[kind] = (
                f"sqlite:///{tmp_path_factory.mktemp('conformance') / 'timeoutmgr.db'}"
                if kind == "sqlite"
                else request.getfixturevalue(f"{kind}_url")
            )
            made[kind] = SqlPersistence(urls[kind], prefix=PREFIX)
            made[kind].install()
        return urls[kind]

    yield of

    for persistence in made.values():
        persistence.close()


class TestMemory(StoreConformance):
    durable, row_locks, transactions = False, True, False
    limits_text = False
    keeps_schedules = True
    clears_in_order = True
    finds_by_labels = True
    has_insight = True
    reroutes = True
    races = 2_000

    @pytest.fixture
    def make_persistence(self) -> Callable[[], Persistence]:
        persistence = MemoryPersistence(accept_loss=True)
        return lambda: persistence


class Tables(StoreSuite):
    durable, row_locks, transactions = True, True, True
    races = 100  # `--timeoutmgr-races` has more
    keeps_schedules = True
    clears_in_order = True
    finds_by_labels = True
    has_insight = True
    pauses_dispatch = True
    changes_in_bulk = True
    keeps_audit = True
    reroutes = True
    database: ClassVar[str]
    settings: ClassVar[SqlSettings] = BY_OUR_CLOCK

    @pytest.fixture
    def make_persistence(self, installed_url: Callable[[str], str]) -> Callable[[], Persistence]:
        url = installed_url(self.database)
        return lambda: SqlPersistence(url, prefix=PREFIX, settings=self.settings)


class InSql(Tables, StoreConformance):
    pass


class TestSqlite(InSql):
    row_locks = False
    database = "sqlite"


class TestPostgres(InSql):
    database = "postgres"


class TestMysql(InSql):
    database = "mysql"


if "TIMEOUTMGR_TEST_MSSQL_URL" in os.environ:

    class TestSqlServer(InSql):
        database = "mssql"


class ByTheDatabasesClock(Tables, SharedCases, TimeoutClaims, TimeoutDispatchLock):
    """The clock that due times are compared with by default; it cannot be set."""

    settable_clock = False
    settings = SqlSettings()


class TestPostgresByItsClock(ByTheDatabasesClock):
    database = "postgres"


class TestMysqlByItsClock(ByTheDatabasesClock):
    database = "mysql"
