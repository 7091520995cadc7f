from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psycopg
import pytest
from adbc_driver_manager import Error
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import URL, make_url, text

from tests.pipeline.rows import batch, row
from timeoutmgr.database import Database
from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.pipeline import adbc as connecting
from timeoutmgr.pipeline.adbc import postgresql_connection, reading_connection
from timeoutmgr.pipeline.readers.arrow_batches import fetch
from timeoutmgr.pipeline.snapshots import SharedSnapshot, snapshot
from timeoutmgr.pipeline.stores import Store
from timeoutmgr.pipeline.views import Selection, projected
from timeoutmgr.pipeline.writers.loader import Loader

STRANGE = "my secret word+100%/it's@home?a=b&c#d:é"


def ids(store: Store, name: str | None = None) -> list[str]:
    columns = projected("pending", ["id"])
    batches = fetch(store, "pending", columns, Selection(), snapshot=name)
    return [one for each in batches for one in each["id"].to_pylist()]


def test_each_read_within_a_snapshot_sees_its_moment(postgres: Store) -> None:
    Loader(postgres).load([batch([row(1)])])
    with snapshot(postgres) as held:
        assert isinstance(held, SharedSnapshot)
        Loader(postgres).load([batch([row(2)])])

        counts = [len(ids(postgres, held.name)), len(ids(postgres)), len(ids(postgres, held.name))]

    assert counts == [1, 2, 1]


def test_a_read_that_is_given_up_leaves_no_connection(postgres: Store) -> None:
    Loader(postgres).load([batch([row(1)])])
    rows = fetch(postgres, "pending", projected("pending", ["id"]), Selection())
    next(rows)
    rows.close()  # type: ignore[attr-defined]  # a generator has it

    asked = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'timeoutmgr-pipeline'"
    here = text(f"{asked} AND datname = current_database()")
    deadline = time.monotonic() + 30
    with postgres.database.read() as connection:
        while connection.execute(here).scalar() and time.monotonic() < deadline:
            connection.rollback()
        assert connection.execute(here).scalar() == 0


def test_connections_that_are_open_at_once_share_no_counter_of_the_driver(
    postgres: Store,
) -> None:
    def servers(connections: int) -> list[object]:
        with ExitStack() as stack:
            opened = (postgresql_connection(postgres.database) for _ in range(connections))
            return [stack.enter_context(one)._db._db for one in opened]

    first = servers(3)

    assert len(set(map(id, first))) == 3
    assert set(map(id, servers(2))) < set(map(id, first))  # types are asked for once


@pytest.fixture
def user(postgres_url: str, unique: str) -> Iterator[Callable[[str], URL]]:
    """Make the one user *unique*, with a password; return the URL of the database for it."""
    role, url = sql.Identifier(unique), make_url(postgres_url)
    plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as connection:

        def make(password: str) -> URL:
            create = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}")
            connection.execute(create.format(role, sql.Literal(password)))
            return url.set(username=unique, password=password)

        yield make

        connection.execute(sql.SQL("DROP ROLE {}").format(role))


def answer(url: URL, question: str) -> str:
    database = Database(url)
    with reading_connection(database) as connection, connection.cursor() as cursor:
        cursor.execute(question)
        return str(cursor.fetchone()[0])


def text_of(error: BaseException) -> str:
    """Return the whole text of *error* in a log."""
    return "".join(traceback.format_exception(error))


def test_any_password_and_any_option_reach_the_server(
    user: Callable[[str], URL], unique: str
) -> None:
    options = "-c search_path=app,public -c statement_timeout=70000"
    url = user(STRANGE).update_query_dict({"options": options})

    who = "current_user || ' ' || current_setting('search_path')"
    assert answer(url, f"SELECT {who}") == f"{unique} app,public"
    # Check the password apart: a server that trusts its clients does not ask for it.
    understood = conninfo_to_dict(connecting._libpq(Database(url)))
    assert (understood["password"], understood["options"]) == (STRANGE, options)


def test_several_hosts_are_understood_as_psycopg_does() -> None:
    database = Database("postgresql+psycopg://me@/it?host=a:1&host=b:2&connect_timeout=3")

    understood = conninfo_to_dict(connecting._libpq(database))

    assert (understood["host"], understood["port"]) == ("a,b", "1,2")
    assert (understood["user"], understood["dbname"]) == ("me", "it")
    assert understood["connect_timeout"] == "3"


def test_a_password_is_in_no_error_of_an_outage() -> None:
    refused = "Connection refused"
    url = URL.create("postgresql+psycopg", "me", refused, "127.0.0.1", 1, "it")

    with pytest.raises(StorageUnavailable, match=r"me:\*\*\*@.* cannot be reached: ") as caught:
        answer(url, "SELECT 1")

    assert refused not in text_of(caught.value)
    assert "port 1 failed: ***" in text_of(caught.value)


def test_a_password_is_in_no_error_of_a_statement(user: Callable[[str], URL]) -> None:
    by_zero = "division by zero"

    with pytest.raises(Error) as caught:
        answer(user(by_zero), "SELECT 1/0")

    assert by_zero not in text_of(caught.value)
    assert getattr(caught.value, "sqlstate", None) == "22012"
