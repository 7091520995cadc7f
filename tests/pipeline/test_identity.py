from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.engine import URL, make_url

from timeoutmgr.database import same_database
from timeoutmgr.pipeline.identity import identity, server_of, those_of
from timeoutmgr.pipeline.stores import Store, open_store

PG = "postgresql+psycopg://"


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
def test_a_store_is_named_by_where_it_is_and_not_by_how_its_url_is_spelt(
    one: str, other: str, same: bool
) -> None:
    assert (server_of(make_url(one)) == server_of(make_url(other))) is same


@pytest.mark.parametrize("host", ["", "localhost", "127.0.0.1", "h", "i"])
@pytest.mark.parametrize("port", [None, 5432, 5433])
@pytest.mark.parametrize("kind", ["postgresql", "postgresql+psycopg", "mysql", "mariadb+pymysql"])
def test_urls_of_one_database_are_those_that_are_so_elsewhere(
    host: str, port: int | None, kind: str
) -> None:
    one = URL.create(kind, host=host or None, port=port, database="d")
    others = [
        URL.create(driver, host=name, port=number, database="d", username="ann")
        for driver in ("postgresql", "mysql+pymysql")
        for name in ("localhost", "127.0.0.1", "h")
        for number in (None, 3306, 5432, 5433)
    ]

    found = [server_of(one) == server_of(other) for other in others]

    assert found == [same_database(one, other) for other in others]


def test_one_relative_path_in_two_folders_is_two_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for name in ("east", "west"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        found.append(server_of(make_url("sqlite:///timeoutmgr.db")))

    assert found == [f"sqlite {tmp_path}/{name}/timeoutmgr.db" for name in ("east", "west")]


def opened(url: URL, prefix: str, schema: str | None = None) -> Store:
    environ = {"TIMEOUTMGR_STORE_IT": url.render_as_string(hide_password=False)}
    return open_store("it", environ, prefix=prefix, schema=schema)


def test_who_names_the_schema_means_the_one_where_the_table_is_found(
    postgres_url: str, unique: str
) -> None:
    url, here, table = make_url(postgres_url), f"{unique}_here", f"{unique}_timeout_history"
    inside = url.update_query_dict({"options": f"-csearch_path={here}"})
    stores = [
        *(opened(url, f"{unique}_"), opened(url, f"{unique}_", "public")),
        *(opened(inside, f"{unique}_"), opened(url, f"{unique}_", here)),
    ]
    with stores[0].database.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {here}"))
        for schema in ("public", here):
            connection.execute(text(f"CREATE TABLE {schema}.{table} ()"))

    names = [identity(store) for store in stores]

    with stores[0].database.begin() as connection:
        connection.execute(text(f"DROP SCHEMA {here} CASCADE"))
        connection.execute(text(f"DROP TABLE public.{table}"))
    for store in stores:
        store.persistence.close()
    assert names[0] == names[1] != names[2] == names[3]
    assert names[0].endswith(f"/{url.database} public.{table}")


def test_two_prefixes_are_two_stores(store_of: Callable[[str], Store]) -> None:
    one, other = store_of("sqlite"), store_of("sqlite")
    assert one.database.path is not None
    near = opened(one.database.url, other.tables.history.name.removesuffix("timeout_history"))

    names = [identity(store) for store in (one, near, other)]

    near.persistence.close()
    assert len({*names}) == 3


@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_a_name_of_before_is_known_by_its_database_and_table(
    store_of: Callable[[str], Store], kind: str
) -> None:
    store = store_of(kind)
    url, table = store.database.url.set(query={}), store.tables.history.name
    schema = "public" if kind == "postgres" else url.database
    theirs = {
        f"{url.set(database='other')} {table}",
        f"{url.set(port=1)} {table}",
        f"{url.set(host='elsewhere')} {table}",
        f"{url} other_{table}",
        f"{url} other.{table}",
        *("", " ", table, "nonsense", f"://// {table}", f"nonsense://// {table}"),
    }
    ours = {
        identity(store),
        f"{url.set(username='ann')} {table}",
        f"{url.set(host=(url.host or '').upper())} {table}",
        f"{url} {schema}.{table}",
        f"{store.database.describe()} {table}",
    }

    assert those_of(store, theirs | ours) == ours


@pytest.mark.parametrize("is_relative", [True, False])
def test_a_path_of_before_that_says_no_folder_is_known_only_by_who_would_say_it_so_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_relative: bool
) -> None:
    urls = ("sqlite:///a.db", f"sqlite:///{tmp_path}/a.db")
    relative, absolute = (f"{url} t_timeout_history" for url in urls)
    monkeypatch.chdir(tmp_path)
    store = opened(make_url(urls[0] if is_relative else urls[1]), "t_")

    found = those_of(store, [relative, absolute])

    store.persistence.close()
    assert found == ({relative, absolute} if is_relative else {absolute})
