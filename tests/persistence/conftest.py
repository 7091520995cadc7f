"""One suite over every store: memory, SQLite, PostgreSQL and MariaDB, each with the same claims.

Beside it stand installations with a prefix of their own, for tests of PostgreSQL's partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.persistence.installations import Make
from tests.persistence.making import SetClock
from tests.persistence.ranging import Installation, tend
from timeoutmgr.contracts import TimeoutStore
from timeoutmgr.persistence import MemoryPersistence, SqlPersistence, SqlSettings

SQL = ("sqlite", "postgres", "mysql")
HOST = SqlSettings(clock="host", history="full", claim_time=timedelta(seconds=60))


@pytest.fixture
def persistence_of() -> Iterator[Callable[..., SqlPersistence]]:
    """Makes persistences that are closed in the end."""
    made: list[SqlPersistence] = []

    def make(*arguments: Any, **options: Any) -> SqlPersistence:
        made.append(SqlPersistence(*arguments, **options))
        return made[-1]

    yield make

    for persistence in made:
        persistence.close()


@pytest.fixture(scope="session")
def sql_of(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], SqlPersistence]]:
    """Installed tables of a kind of database; every test has its own endpoint in them."""
    made: dict[str, SqlPersistence] = {}

    def of(kind: str) -> SqlPersistence:
        if kind not in made:
            url = (
                f"sqlite:///{tmp_path_factory.mktemp('suite') / 'timeoutmgr.db'}"
                if kind == "sqlite"
                else request.getfixturevalue(f"{kind}_url")
            )
            made[kind] = SqlPersistence(url, prefix="suite_", settings=HOST)
            made[kind].install()
        return made[kind]

    yield of

    for persistence in made.values():
        persistence.close()


class Stores:
    """Stores of one endpoint, with one clock."""

    def __init__(self, persistence: SqlPersistence | MemoryPersistence, endpoint: str) -> None:
        self.persistence = persistence
        self.endpoint = endpoint
        self.clock = SetClock()

    def __call__(self, *, atomic: bool = False, endpoint: str | None = None) -> TimeoutStore:
        name = endpoint or self.endpoint
        if isinstance(self.persistence, MemoryPersistence):  # nothing there is "maybe sent" either
            return self.persistence.timeouts(name, self.clock)
        return self.persistence.timeouts(name, self.clock, atomic_dispatch=atomic)


@pytest.fixture(params=("memory", *SQL))
def stores(
    request: pytest.FixtureRequest, sql_of: Callable[[str], SqlPersistence], unique: str
) -> Stores:
    """Stores of every kind."""
    if request.param == "memory":
        return Stores(MemoryPersistence(accept_loss=True), unique)
    return Stores(sql_of(request.param), unique)


@pytest.fixture(params=SQL)
def sql(
    request: pytest.FixtureRequest, sql_of: Callable[[str], SqlPersistence], unique: str
) -> Stores:
    """Stores in a SQL database."""
    return Stores(sql_of(request.param), unique)


@pytest.fixture(params=("postgres", "mysql"))
def row_locking(
    request: pytest.FixtureRequest, sql_of: Callable[[str], SqlPersistence], unique: str
) -> Stores:
    """Stores in a database with row locks."""
    return Stores(sql_of(request.param), unique)


@pytest.fixture
def sqlite(sql_of: Callable[[str], SqlPersistence], unique: str) -> Stores:
    """Stores in a SQLite file."""
    return Stores(sql_of("sqlite"), unique)


@pytest.fixture(params=SQL)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database of every kind; the tables are for the test to create."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def store(stores: Stores) -> TimeoutStore:
    """A store of every kind."""
    return stores()


@pytest.fixture
def clock(stores: Stores) -> SetClock:
    """The clock of *store*."""
    return stores.clock


@pytest.fixture
def make(postgres_url: str, unique: str, persistence_of: Callable[..., SqlPersistence]) -> Make:
    """Makes installations of a prefix of their own; the first one installs."""

    def make(partitions: str = "auto", url: str = postgres_url) -> Installation:
        settings = SqlSettings(clock="host", history="full", partitions=partitions)
        persistence = persistence_of(url, prefix=f"{unique}_", settings=settings)
        return Installation(persistence, f"{unique}_")

    return make


@pytest.fixture
def old(make: Make) -> Installation:
    """An installation of before: one partition, to be converted."""
    made = make("off")
    made.persistence.install()
    return make("convert")


@pytest.fixture
def new(make: Make) -> Installation:
    """A new installation, whose ranges suit its clock."""
    made = make()
    made.persistence.install()
    tend(made.store())
    return made
