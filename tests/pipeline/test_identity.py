from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.engine import URL, make_url

from timeoutmgr.pipeline.stores import Store, identity, names_of_store, open_store


def opened(url: URL, prefix: str, schema: str | None = None) -> Store:
    environ = {"TIMEOUTMGR_STORE_IT": url.render_as_string(hide_password=False)}
    return open_store("it", environ, prefix=prefix, schema=schema)


def test_a_named_schema_is_the_schema_where_the_table_is_found(
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

    assert names_of_store(store, theirs | ours) == ours


@pytest.mark.parametrize("is_relative", [True, False])
def test_an_old_relative_path_is_known_only_to_a_store_with_the_same_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_relative: bool
) -> None:
    urls = ("sqlite:///a.db", f"sqlite:///{tmp_path}/a.db")
    relative, absolute = (f"{url} t_timeout_history" for url in urls)
    monkeypatch.chdir(tmp_path)
    store = opened(make_url(urls[0] if is_relative else urls[1]), "t_")

    found = names_of_store(store, [relative, absolute])

    store.persistence.close()
    assert found == ({relative, absolute} if is_relative else {absolute})
