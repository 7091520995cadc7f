from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator

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
from timeoutmgr.pipeline.adbc import keep_connections, reading_connection
from timeoutmgr.pipeline.readers.arrow_batches import fetch
from timeoutmgr.pipeline.snapshots import SharedSnapshot, snapshot
from timeoutmgr.pipeline.stores import Store
from timeoutmgr.pipeline.views import Selection, projected
from timeoutmgr.pipeline.writers.loader import Loader

ASK_PID = "SELECT pg_backend_pid()"
STRANGE = "my secret word+100%/it's@home?a=b&c#d:é"


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process keeps a connection, as Spark's workers do, until the end of the test."""
    monkeypatch.setattr(connecting, "_kept", None)
    keep_connections()
    yield
    assert connecting._kept is not None
    if connecting._kept._connection is not None:
        connecting._kept._connection.close()


def backend(store: Store) -> int:
    with reading_connection(store.database) as connection, connection.cursor() as cursor:
        cursor.execute(ASK_PID)
        return int(cursor.fetchone()[0])


def state_of(store: Store, pid: int) -> str | None:
    asked = text("SELECT state FROM pg_stat_activity WHERE pid = :pid")
    with store.database.read() as connection:
        return connection.execute(asked, {"pid": pid}).scalar()


def ids(store: Store, name: str | None = None) -> list[str]:
    columns = projected("pending", ["id"])
    batches = fetch(store, "pending", columns, Selection(), snapshot=name)
    return [one for each in batches for one in each["id"].to_pylist()]


def test_a_process_that_is_no_worker_opens_one_each_time(postgres: Store) -> None:
    assert connecting._kept is None
    assert backend(postgres) != backend(postgres)


@pytest.mark.usefixtures("worker")
def test_a_worker_reads_its_next_part_by_the_same_connection(postgres: Store) -> None:
    assert backend(postgres) == backend(postgres)


@pytest.mark.usefixtures("worker")
def test_a_connection_that_waits_is_in_no_transaction(postgres: Store) -> None:
    pid = backend(postgres)

    assert state_of(postgres, pid) == "idle"


@pytest.mark.usefixtures("worker")
def test_each_read_by_a_kept_connection_sees_its_own_moment(postgres: Store) -> None:
    Loader(postgres).load([batch([row(1)])])
    with snapshot(postgres) as held:
        assert isinstance(held, SharedSnapshot)
        Loader(postgres).load([batch([row(2)])])

        counts = [len(ids(postgres, held.name)), len(ids(postgres)), len(ids(postgres, held.name))]

    assert counts == [1, 2, 1]


@pytest.mark.usefixtures("worker")
def test_a_connection_that_the_server_ended_is_replaced(postgres: Store) -> None:
    pid = backend(postgres)
    with postgres.database.read() as connection:
        connection.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})

    assert backend(postgres) != pid


@pytest.mark.usefixtures("worker")
def test_a_connection_in_the_middle_of_a_read_is_not_kept(postgres: Store) -> None:
    Loader(postgres).load([batch([row(1)])])
    before = backend(postgres)
    rows = fetch(postgres, "pending", projected("pending", ["id"]), Selection())
    next(rows)
    rows.close()  # type: ignore[attr-defined]  # a generator has it

    assert backend(postgres) != before
    assert len(ids(postgres)) == 1


@pytest.mark.usefixtures("worker")
def test_two_reads_at_once_have_a_connection_each(postgres: Store) -> None:
    with reading_connection(postgres.database) as connection, connection.cursor() as cursor:
        cursor.execute(ASK_PID)
        outer, inner = int(cursor.fetchone()[0]), backend(postgres)

    assert outer != inner
    assert backend(postgres) == outer


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
