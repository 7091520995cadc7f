from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import text
from sqlalchemy.engine import URL, make_url

from timeoutmgr.pipeline.stores import Store, identity, open_store


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


def test_a_store_has_one_name_in_every_environment(
    postgres_url: str, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = make_url(postgres_url)
    monkeypatch.setenv("PGPORT", str(url.port or 5432))
    store = opened(url._replace(port=None), f"{unique}_")

    name = identity(store)
    monkeypatch.setenv("PGPORT", "1")  # a connection is open

    assert identity(store) == name
    store.persistence.close()


def test_two_prefixes_are_two_stores(store_of: Callable[[str], Store]) -> None:
    one, other = store_of("sqlite"), store_of("sqlite")
    assert one.database.path is not None
    near = opened(one.database.url, other.tables.history.name.removesuffix("timeout_history"))

    names = [identity(store) for store in (one, near, other)]

    near.persistence.close()
    assert len({*names}) == 3
