"""A fleet on each store: memory, SQLite, PostgreSQL and MariaDB, with the clock of the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from tests.recurrence.fleet import Fleet
from timeoutmgr.contracts import Persistence
from timeoutmgr.persistence import MemoryPersistence, SqlPersistence, SqlSettings

SQL = ("sqlite", "postgres", "mysql")
HOST = SqlSettings(clock="host", history="full")


@pytest.fixture(scope="session")
def sql_persistence(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], SqlPersistence]:
    """Installed tables of a kind of database; every fleet has its own endpoint in them."""
    urls: dict[str, str] = {}

    def of(kind: str) -> SqlPersistence:
        if kind not in urls:
            file = f"sqlite:///{tmp_path_factory.mktemp('recurring') / 'timeoutmgr.db'}"
            urls[kind] = file if kind == "sqlite" else request.getfixturevalue(f"{kind}_url")
            with closing(SqlPersistence(urls[kind], prefix="recurring_", settings=HOST)) as made:
                made.install()
        return SqlPersistence(urls[kind], prefix="recurring_", settings=HOST)

    return of


def _fleet(
    kind: str, unique: str, sql_persistence: Callable[[str], SqlPersistence]
) -> Iterator[Fleet]:
    memory = MemoryPersistence(accept_loss=True)

    def persistence() -> Persistence:
        return memory if kind == "memory" else sql_persistence(kind)

    fleet = Fleet(unique, persistence)
    with fleet.closing:
        yield fleet


@pytest.fixture(params=("memory", *SQL))
def fleet(
    request: pytest.FixtureRequest, unique: str, sql_persistence: Callable[[str], SqlPersistence]
) -> Iterator[Fleet]:
    """A fleet on each kind of store."""
    yield from _fleet(request.param, unique, sql_persistence)


@pytest.fixture(params=SQL)
def sql_fleet(
    request: pytest.FixtureRequest, unique: str, sql_persistence: Callable[[str], SqlPersistence]
) -> Iterator[Fleet]:
    """A fleet on each kind of database."""
    yield from _fleet(request.param, unique, sql_persistence)


@pytest.fixture
def memory_fleet(unique: str, sql_persistence: Callable[[str], SqlPersistence]) -> Iterator[Fleet]:
    """A fleet in memory."""
    yield from _fleet("memory", unique, sql_persistence)
