from __future__ import annotations

import itertools
import logging
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from freezegun import freeze_time
from sqlalchemy import Connection, event, exc, make_url, text

from tests.support.clock import START, FakeClock
from timeoutmgr.database import Database, DatabaseSettings, same_database
from timeoutmgr.errors import CombinationRefused, ConfigurationError, StorageUnavailable

SOON = 10.0


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_connection_keeps_every_text_whatever_encoding_is_asked_for(
    postgres_url: str, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", encoding)
    asked = make_url(postgres_url).update_query_dict({"client_encoding": encoding})
    for database in Database(postgres_url), Database(asked):
        with database.read() as connection:
            found = connection.execute(text("SELECT CAST(:given AS TEXT)"), {"given": "日本 €"})

            assert found.scalar_one() == "日本 €"
        database.dispose()


@pytest.fixture
def database(sqlite_url: str) -> Iterator[Database]:
    made = Database(sqlite_url, DatabaseSettings(write_wait=0.2))
    with made.begin() as connection:
        connection.execute(text("CREATE TABLE notes (note TEXT)"))
    yield made
    made.dispose()


def notes(database: Database) -> list[str]:
    with database.read() as connection:
        return list(connection.execute(text("SELECT note FROM notes ORDER BY note")).scalars())


def write(connection: Connection, note: str) -> None:
    connection.execute(text("INSERT INTO notes VALUES (:note)"), {"note": note})


@pytest.mark.parametrize("scheme", ["postgresql+psycopg_async", "postgresql+asyncpg"])
def test_a_driver_for_asyncio_is_refused_by_name(scheme: str) -> None:
    with pytest.raises(ConfigurationError, match=r"names a driver for asyncio; begin the URL"):
        Database(f"{scheme}://sales@database/sales")


@pytest.mark.parametrize(
    "wrong",
    [
        {"sqlite_synchronous": "OFF"},
        {"sqlite_synchronous": "full"},
        {"sqlite_cache_mb": 0},
        {"write_wait": 0.0},
        {"write_wait": "20"},
        {"write_wait": float("nan")},
        {"write_wait": float("inf")},
        {"prepared_statements": "no"},
        {"pool_size": "5"},
        {"pool_size": -1},
        {"connect_timeout": 0},
    ],
)
def test_a_setting_that_would_break_a_promise_is_refused_by_name(wrong: dict[str, Any]) -> None:
    [name] = wrong

    with pytest.raises(ConfigurationError, match=name):
        DatabaseSettings(**wrong)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file::memory:?uri=true",
        "sqlite:///file:shared?mode=memory&cache=shared&uri=true",
        "sqlite:///file:timeoutmgr.db?uri=true",
    ],
)
def test_a_sqlite_database_in_memory_or_by_a_uri_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="name a file"):
        Database(url)


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("postgresql+psycopg3://u:s3cret@h/d", r"timeoutmgr\[postgresql\].*postgresql\+psycopg://"),
        ("mysql+oursql://u:s3cret@h/d", r"timeoutmgr\[mysql\].*mysql\+pymysql://"),
        ("sqlite+nodriver:///a.db", "install the driver"),
    ],
)
def test_a_driver_that_is_not_installed_is_named_with_its_extra(url: str, remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=remedy) as refused:
        Database(url)
    assert "s3cret" not in str(refused.value)


def test_a_database_that_was_not_proved_here_is_refused() -> None:
    with pytest.raises(CombinationRefused, match="'oracle'"):
        Database("oracle+oracledb://h/d")


def test_a_transaction_commits_at_its_end(database: Database) -> None:
    with database.begin() as connection:
        write(connection, "a")

    assert notes(database) == ["a"]


def test_a_transaction_rolls_back_on_any_error(database: Database) -> None:
    def fail(connection: Connection) -> None:
        write(connection, "a")
        raise KeyError("any")

    with pytest.raises(KeyError), database.begin() as connection:
        fail(connection)

    assert notes(database) == []


def test_a_refused_value_is_not_an_outage(database: Database) -> None:
    unknown: Any = object()

    with pytest.raises(exc.DBAPIError, match="binding parameter"), database.begin() as connection:
        write(connection, unknown)


def test_a_refused_row_counts_as_an_outage(database: Database) -> None:
    with database.begin() as connection:
        connection.execute(text("CREATE UNIQUE INDEX once ON notes (note)"))

    with database.begin() as connection:
        write(connection, "a")

    with pytest.raises(StorageUnavailable), database.begin() as connection:
        write(connection, "a")


def test_sqlite_is_durable_and_waits_for_no_reader(database: Database) -> None:
    with database.read() as connection:
        mode = connection.execute(text("PRAGMA journal_mode")).scalar_one()
        synchronous = connection.execute(text("PRAGMA synchronous")).scalar_one()

    assert (mode, synchronous) == ("wal", 2)


def test_a_file_whose_write_ahead_log_a_transaction_prevents_is_read(sqlite_url: str) -> None:
    caller = sqlite3.connect(str(make_url(sqlite_url).database), isolation_level=None)
    caller.execute("CREATE TABLE orders (number TEXT)")
    caller.execute("BEGIN IMMEDIATE")
    database = Database(sqlite_url, DatabaseSettings(connect_timeout=1))

    with database.read() as connection:
        assert connection.execute(text("SELECT count(*) FROM orders")).scalar_one() == 0
    caller.execute("COMMIT")

    with database.connect_apart() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar_one() == "wal"
    caller.close()
    database.dispose()


def test_every_write_transaction_locks_the_file_at_once(database: Database) -> None:
    begun: list[str] = []

    @event.listens_for(database.engine, "before_cursor_execute")
    def keep(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        begun.append(statement)

    with database.begin():
        pass
    with database.read():
        pass

    assert begun == ["BEGIN IMMEDIATE", "BEGIN"]


def test_a_reader_does_not_wait_for_a_writer(database: Database) -> None:
    with database.begin() as connection:
        write(connection, "a")
        assert notes(database) == []


def test_a_writer_that_waits_too_long_gets_the_reason(database: Database) -> None:
    with (
        database.begin(),
        pytest.raises(StorageUnavailable, match="no turn to write"),
        database.begin(),
    ):
        pass


def test_a_writer_of_another_process_is_waited_for_and_then_counts_as_an_outage(
    database: Database, sqlite_url: str
) -> None:
    other = Database(sqlite_url, DatabaseSettings(write_wait=0.2))

    with other.begin(), pytest.raises(StorageUnavailable, match="locked"), database.begin():
        pass
    other.dispose()


def test_a_write_that_has_waited_for_a_writer_of_another_process_is_not_tried_again(
    database: Database, sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "timeoutmgr.database.engine")
    seconds = itertools.count().__next__
    other = Database(sqlite_url, DatabaseSettings(write_wait=5), monotonic=seconds)

    with database.begin(), pytest.raises(StorageUnavailable, match="locked"):
        other.run(lambda connection: write(connection, "a"))
    other.dispose()

    assert caplog.messages == []


def test_many_threads_write_without_an_error(sqlite_url: str, database: Database) -> None:
    patient = Database(sqlite_url)
    start = threading.Barrier(8)
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            start.wait(SOON)
            for no in range(5):
                patient.run(lambda connection, no=no: write(connection, f"{number}-{no}"))  # type: ignore[misc]  # the default binds the number
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    patient.dispose()

    assert failed == []
    assert len(notes(database)) == 40


def test_run_returns_the_result_of_its_work(database: Database) -> None:
    assert database.run(lambda connection: connection.execute(text("SELECT 7")).scalar_one()) == 7


@pytest.mark.behaviour(125)
def test_run_tries_again_after_a_conflict(database: Database) -> None:
    tries: list[int] = []

    def work(connection: Connection) -> None:
        tries.append(1)
        write(connection, f"try {len(tries)}")
        if len(tries) < 3:
            raise _locked()

    database.run(work)

    assert notes(database) == ["try 3"]


@pytest.mark.behaviour(125)
def test_run_gives_up_on_a_conflict_that_does_not_end(database: Database) -> None:
    tries: list[int] = []

    def work(_: Connection) -> None:
        tries.append(1)
        raise _locked()

    with pytest.raises(StorageUnavailable, match="locked"):
        database.run(work)

    assert len(tries) == 8


def test_run_does_not_repeat_a_refused_value(database: Database) -> None:
    tries: list[int] = []

    def work(connection: Connection) -> None:
        tries.append(1)
        raise exc.DataError("INSERT", {}, Exception("string or blob too big"))

    with pytest.raises(exc.DataError):
        database.run(work)

    assert len(tries) == 1


def test_a_database_without_a_clock_takes_the_hosts(database: Database) -> None:
    assert database.now(FakeClock()) == START


def test_frozen_time_does_not_delay_a_write(database: Database) -> None:
    with freeze_time("2030-06-01", ignore=["sqlalchemy"]), database.begin() as connection:
        write(connection, "a")

    assert notes(database) == ["a"]


def test_ping_of_a_file_that_cannot_be_opened_is_an_outage(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/missing/x.db", DatabaseSettings(connect_timeout=1))

    with pytest.raises(StorageUnavailable):
        database.ping()
    database.dispose()


def test_a_description_has_neither_password_nor_query() -> None:
    database = Database("postgresql+psycopg://u:secret@h/d?sslpassword=hidden")

    assert database.describe() == "postgresql+psycopg://u:***@h/d"


def test_one_url_is_one_database_of_this_process(tmp_path: Path) -> None:
    one = Database.shared(f"sqlite:///{tmp_path}/x.db")
    other = Database.shared(f"sqlite:///{tmp_path}/../{tmp_path.name}/x.db")

    assert one is other


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("sqlite:///x.db", "sqlite:///./x.db", True),
        ("sqlite:///x.db", "sqlite:///y.db", False),
        ("sqlite:///d", "postgresql://localhost/d", False),
        ("postgresql://h/d", "postgresql+psycopg://u:p@h:5432/d", True),
        ("postgresql://localhost/d", "postgresql://127.0.0.1/d", True),
        ("postgresql://h/d", "postgresql://h/e", False),
        ("postgresql://h/d", "postgresql://h:5433/d", False),
        ("postgresql://h/d", "postgresql://i/d", False),
        ("mysql+pymysql://h/d", "mariadb+pymysql://h:3306/d", True),
        ("mysql://h/d", "postgresql://h/d", False),
    ],
)
def test_urls_with_other_drivers_or_users_name_the_same_database(
    one: str, other: str, same: bool
) -> None:
    assert same_database(make_url(one), make_url(other)) is same


def _locked() -> exc.OperationalError:
    return exc.OperationalError("COMMIT", {}, _Locked("database is locked"))


class _Locked(Exception):
    """The driver's error while another connection writes."""


def test_options_of_the_url_apply_to_each_connection(postgres_url: str) -> None:
    url = make_url(postgres_url).update_query_dict({"application_name": "mine"})
    database = Database(url)

    with database.read() as connection:
        name = connection.exec_driver_sql("SHOW application_name").scalar_one()

    database.dispose()
    assert name == "mine"


@pytest.mark.parametrize("level", ["serializable", "repeatable read"])
def test_transactions_are_read_committed_whatever_the_database_has_by_default(
    postgres_url: str, level: str
) -> None:
    name = make_url(postgres_url).database
    database = Database(postgres_url)
    with database.apart.begin() as connection:
        connection.execute(
            text(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = '{level}'")
        )
    ours = Database(postgres_url)
    try:
        ours.now(FakeClock(START))  # in AUTOCOMMIT
        for engine in ours.engine, ours.apart, ours._alone:
            with engine.begin() as connection:
                found = connection.execute(text("SHOW transaction_isolation")).scalar_one()
            assert found == "read committed"
    finally:
        with database.apart.begin() as connection:
            connection.execute(text(f'ALTER DATABASE "{name}" RESET default_transaction_isolation'))
        ours.dispose()
        database.dispose()


def test_a_clock_that_falls_back_within_a_statement_is_not_read_before_its_start(
    mysql_url: str,
) -> None:
    """As in a caller's zone, when the hour begins that it repeats; sends would be early."""
    database = Database(mysql_url)
    with database.engine.connect() as connection:
        connection.exec_driver_sql("SET timestamp = UNIX_TIMESTAMP() + 3600")  # of statements
        begun = connection.exec_driver_sql("SELECT UNIX_TIMESTAMP(UTC_TIMESTAMP(6)) * 1000000")

        assert database.now_in(connection) >= begun.scalar_one()

        connection.exec_driver_sql("SET timestamp = DEFAULT")
    database.dispose()


def test_a_url_that_would_replace_the_settings_of_sessions_is_refused(mysql_url: str) -> None:
    url = make_url(mysql_url).update_query_dict({"init_command": "SET time_zone = 'SYSTEM'"})

    with pytest.raises(ConfigurationError, match="leave it out"):
        Database(url)


@pytest.mark.parametrize("name", ["autocommit", "context", "cursor_factory", "row_factory"])
def test_a_url_with_an_argument_that_no_text_can_be_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{name} .* leave it out"):
        Database(f"postgresql+psycopg://h/d?{name}=true")
