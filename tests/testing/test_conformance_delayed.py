"""Our own delayed message stores, and the example store, pass the suite that we ship."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from sqlalchemy import text

from tests.support.examples import custom_store
from timeoutmgr.contracts import DelayedMessageStore
from timeoutmgr.database import Database
from timeoutmgr.persistence import SqlDelayedMessageStore
from timeoutmgr.testing.conformance.delayed import DelayedStoreConformance

TABLE = "conformance delayed"


@pytest.fixture(scope="session")
def installed_url(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], str]]:
    """A table in a kind of database, made once."""
    made: dict[str, SqlDelayedMessageStore] = {}
    urls: dict[str, str] = {}

    def of(kind: str) -> str:
        if kind not in made:
            urls[kind] = (
                f"sqlite:///{tmp_path_factory.mktemp('conformance') / 'delayed.db'}"
                if kind == "sqlite"
                else request.getfixturevalue(f"{kind}_url")
            )
            made[kind] = SqlDelayedMessageStore(urls[kind], table=TABLE)
            made[kind].setup_infrastructure("any")
        return urls[kind]

    yield of

    for store in made.values():
        store.close()


class InSql(DelayedStoreConformance):
    row_locks, transactions, settable_clock = True, True, False
    fetches_in_batches = stores_in_batches = removes_in_batches = True
    keeps_endpoints_apart = False  # all in one table, which is made once
    database: ClassVar[str]

    @pytest.fixture
    def make_store(self, installed_url: Callable[[str], str]) -> Callable[[], DelayedMessageStore]:
        url = installed_url(self.database)
        with Database.shared(url).begin() as connection:
            quoted = connection.dialect.identifier_preparer.quote(TABLE)
            connection.execute(text(f"DELETE FROM {quoted}"))
        return lambda: SqlDelayedMessageStore(url, table=TABLE)


class TestSqlite(InSql):
    row_locks, settable_clock, lapses = False, True, True
    database = "sqlite"


class TestPostgres(InSql):
    database = "postgres"


class TestMysql(InSql):
    database = "mysql"


if "TIMEOUTMGR_TEST_MSSQL_URL" in os.environ:

    class TestSqlServer(InSql):
        database = "mssql"


class TestTheExample(DelayedStoreConformance):
    """Seven methods in sixty lines."""

    row_locks, transactions, settable_clock = False, False, True
    lapses, limits_text, keeps_endpoints_apart = True, False, False
    can_be_cut_off = True

    @pytest.fixture
    def make_store(self, tmp_path: Path) -> Callable[[], DelayedMessageStore]:
        return lambda: custom_store(tmp_path)

    @pytest.fixture
    def cut_off(self, tmp_path: Path) -> Callable[[], object]:
        return (tmp_path / "delayed.db").unlink
