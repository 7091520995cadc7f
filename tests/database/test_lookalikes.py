"""Servers that only look like PostgreSQL or MySQL, known by their documented answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine

from timeoutmgr.database import Database
from timeoutmgr.database.dialects import greeting_of, lookalike, refuse_lookalikes
from timeoutmgr.errors import CombinationRefused


class PostgreSQLAnswer:
    """A connection of psycopg's, as far as its greeting goes."""

    def __init__(self, **parameters: str) -> None:
        self.info = self
        self._parameters = parameters
        self.is_closed = False

    def parameter_status(self, name: str) -> str | None:
        return self._parameters.get(name)

    def close(self) -> None:
        self.is_closed = True


class MySQLAnswer:
    """A connection of PyMySQL's, as far as its greeting goes."""

    def __init__(self, version: str) -> None:
        self._version = version

    def get_server_info(self) -> str:
        return self._version


@pytest.mark.parametrize(
    ("driver", "name"),
    [
        (
            PostgreSQLAnswer(
                server_version="13.0.0",
                crdb_version="CockroachDB CCL v23.1.11 (x86_64-pc-linux-gnu, built 2023/09/27)",
            ),
            "CockroachDB",
        ),
        (PostgreSQLAnswer(server_version="11.2-YB-2.20.1.3-b0"), "YugabyteDB"),
        (PostgreSQLAnswer(server_version="15.2-YB-2.25.2.0-b0"), "YugabyteDB"),
        (MySQLAnswer("8.0.11-TiDB-v7.5.1"), "TiDB"),
        (MySQLAnswer("5.7.25-TiDB-v6.5.0"), "TiDB"),
        (MySQLAnswer("8.0.30-Vitess"), "Vitess"),
    ],
)
def test_a_lookalike_is_known_by_its_greeting(driver: Any, name: str) -> None:
    found = lookalike(greeting_of(driver))

    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    "driver",
    [
        PostgreSQLAnswer(server_version="15.14 (Debian 15.14-0+deb12u1)"),
        PostgreSQLAnswer(server_version="17.2"),
        PostgreSQLAnswer(server_version="16.4 (Ubuntu 16.4-0ubuntu0.24.04.2)"),
        MySQLAnswer("8.0.40-0ubuntu0.24.04.1"),
        MySQLAnswer("8.4.3"),
        MySQLAnswer("10.11.6-MariaDB-0+deb12u1"),
        MySQLAnswer("5.5.5-10.6.18-MariaDB-log"),
        object(),
    ],
)
def test_a_genuine_server_passes(driver: Any) -> None:
    assert lookalike(greeting_of(driver)) is None


@pytest.fixture
def servers(postgres_url: str, mysql_url: str) -> Iterator[list[Database]]:
    found = [Database(postgres_url), Database(mysql_url)]
    yield found
    for database in found:
        database.dispose()


def test_a_real_servers_greeting_tells_its_version(servers: list[Database]) -> None:
    for database in servers:
        with database.read() as connection:
            greeting = greeting_of(connection.connection.driver_connection)

        [said] = greeting.values()
        assert said[0].isdigit()


def test_a_lookalike_is_refused_by_name_before_its_version_is_read() -> None:
    # SQLAlchemy finds no version in the name of CockroachDB, and fails with an AssertionError.
    driver = PostgreSQLAnswer(crdb_version="CockroachDB CCL v23.1.11")
    engine = create_engine("postgresql+psycopg://host/name", creator=lambda: driver)
    refuse_lookalikes(engine)

    with pytest.raises(CombinationRefused, match="CockroachDB as a database is refused"):
        engine.connect()

    assert driver.is_closed
