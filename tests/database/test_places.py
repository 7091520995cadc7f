"""A database is told by where it is."""

from __future__ import annotations

import pwd
from pathlib import Path

import pytest
from sqlalchemy import MetaData, Table, text
from sqlalchemy.engine import make_url

from timeoutmgr.database import Database, DatabaseSettings
from timeoutmgr.database.places import one_connection_serves, same_database, server_of
from timeoutmgr.errors import CombinationRefused

PG = "postgresql+psycopg://"


@pytest.fixture
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGHOST", "PGPORT", "PGDATABASE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (f"{PG}ann@h/d", "postgresql://bob:x@h:5432/d?sslmode=require", True),
        (f"{PG}h/d", f"{PG}H/d", True),
        (f"{PG}localhost/d", f"{PG}127.0.0.1:5432/d", True),
        (f"{PG}/d", f"{PG}[::1]/d", True),
        (f"{PG}d@h", f"{PG}ann@h/d", True),
        (f"{PG}h/d", f"{PG}h/e", False),
        (f"{PG}h/d", f"{PG}h/D", False),
        (f"{PG}h/d", f"{PG}h:5433/d", False),
        (f"{PG}h/d", f"{PG}i/d", False),
        (f"{PG}/d?host=/run/a", f"{PG}/d?host=/run/b", False),
        (f"{PG}/d?host=h&port=5433", f"{PG}h:5433/d", True),
        ("mysql+pymysql://a@h/d", "mariadb://h:3306/d", True),
        ("mysql://h/d", "postgresql://h/d", False),
        ("mysql:///d?unix_socket=/run/a", "mysql:///d?unix_socket=/run/b", False),
        ("sqlite:////x/a.db", "sqlite+pysqlite:////x/y/../a.db", True),
        ("sqlite:////x/a.db", "sqlite:////x/A.db", False),
    ],
)
@pytest.mark.usefixtures("no_environment")
def test_a_database_is_known_by_its_place_and_not_by_the_spelling_of_its_url(
    one: str, other: str, same: bool
) -> None:
    assert same_database(make_url(one), make_url(other)) is same


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (f"{PG}/d", f"{PG}db.internal:6000/d", True),
        (f"{PG}/d", f"{PG}localhost/d", False),
        (f"{PG}ann@h/ledger", f"{PG}ann@h", True),
        (f"{PG}ann@h/ann", f"{PG}ann@h", False),
        ("mysql:///d", "mysql://localhost:3306/d", True),
    ],
)
def test_what_a_url_of_postgresql_leaves_out_is_in_the_environment(
    one: str, other: str, same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"HOST": "db.internal", "PORT": "6000", "DATABASE": "ledger"}.items():
        monkeypatch.setenv(f"PG{name}", value)

    assert same_database(make_url(one), make_url(other)) is same


@pytest.mark.parametrize(
    ("one", "other", "serves"),
    [
        (f"{PG}h/d", f"{PG}h:5432/d?sslmode=require", True),
        (f"{PG}h/d", f"{PG}h/e", False),
        (f"{PG}h/d", f"{PG}h/d?options=-c%20search_path%3Da", False),
        (f"{PG}h/d?options=-csearch_path%3Da", f"{PG}h/d?options=--search_path%3Da", True),
        (f"{PG}h/d?options=-csearch_path%3Da", f"{PG}h/d?options=-csearch_path%3Db", False),
        (f"{PG}h/d?options=-cwork_mem%3D8MB", f"{PG}h/d", True),
        (f"{PG}h/d?options=-crole%3Da", f"{PG}h/d", False),
        (f"{PG}ann@h/d", f"{PG}bob@h/d", False),
        (f"{PG}ann:x@h/d", f"{PG}h:5432/d?user=ann", True),
        (f"{PG}system@h/d", f"{PG}h/d", True),
        (f"{PG}/?service=a", f"{PG}/?service=b", False),
        ("mssql+pymssql://ann@h/d", "mssql+pymssql://bob@h/d", False),
        ("mysql+pymysql://ann@h/d", "mysql+pymysql://bob@h/d", True),
        ("sqlite:////x/a.db", "sqlite:////x/a.db", True),
    ],
)
@pytest.mark.usefixtures("no_environment")
def test_one_connection_serves_urls_with_the_same_schemas_and_user(
    one: str, other: str, serves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGUSER", raising=False)
    system = pwd.struct_passwd(("system", "x", 1000, 1000, "", "/", ""))
    monkeypatch.setattr(pwd, "getpwuid", lambda _number: system)

    assert one_connection_serves(make_url(one), make_url(other)) is serves
    assert one_connection_serves(make_url(other), make_url(one)) is serves


def test_one_relative_path_in_two_folders_is_two_databases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for name in ("east", "west"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        found.append(server_of(make_url("sqlite:///timeoutmgr.db")))

    assert found == [f"sqlite {tmp_path}/{name}/timeoutmgr.db" for name in ("east", "west")]


def test_tables_are_compared_while_every_connection_of_the_pool_is_lent(postgres_url: str) -> None:
    database = Database(postgres_url, DatabaseSettings(pool_size=1, connect_timeout=1))
    database.unqualified.add(Table("any_table", MetaData()))

    with database.engine.connect(), database.engine.connect() as last:
        Database.require_own_tables("session=", last)
        assert database.connections() == (2, 0)
        last.execute(text("SET LOCAL ROLE pg_monitor"))
        database.unqualified.require("session=", last, database.own_tables)  # a sender's may differ
        with pytest.raises(CombinationRefused, match="another role"):
            Database.require_own_tables("context.session", last)
    database.dispose()
