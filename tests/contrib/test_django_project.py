"""Settings, handlers, checks and commands of a Django project."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.management import CommandError, call_command
from django.db import connection, connections, transaction
from django.test import override_settings
from sqlalchemy.engine import make_url

from timeoutmgr.contrib.django import configuration, database_url, handler
from timeoutmgr.contrib.django.configuration import ended_transactions
from timeoutmgr.contrib.django.management.commands import timeoutmgr as command
from timeoutmgr.contrib.django.system_checks import check_sqlite_transactions, check_timeoutmgr
from timeoutmgr.errors import ConfigurationError, HandlerFailed, UnknownSetting

URLS = [
    (
        {"ENGINE": "django.db.backends.sqlite3", "NAME": "file:/srv/a%20b.db?mode=rwc"},
        "sqlite:////srv/a b.db",
    ),
    ({"ENGINE": "django.db.backends.sqlite3", "NAME": Path("/srv/a.db")}, "sqlite:////srv/a.db"),
    (
        {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": "shop",
            "HOST": "db",
            "PORT": "5433",
            "USER": "me",
            "PASSWORD": "a@b",
            "OPTIONS": {"sslmode": "require", "pool": {"min_size": 2}},
        },
        "postgresql+psycopg://me:a%40b@db:5433/shop?sslmode=require",
    ),
    (
        {"ENGINE": "django.contrib.gis.db.backends.postgis", "NAME": "shop", "HOST": "/run/pg"},
        "postgresql+psycopg:///shop?host=%2Frun%2Fpg",
    ),
    (
        {"ENGINE": "django.db.backends.mysql", "NAME": "shop", "HOST": "db", "USER": "me"},
        "mysql+pymysql://me@db/shop?charset=utf8mb4",
    ),
    (
        {"ENGINE": "django.db.backends.mysql", "NAME": "shop", "HOST": "/run/my.sock"},
        "mysql+pymysql:///shop?charset=utf8mb4&unix_socket=%2Frun%2Fmy.sock",
    ),
    (
        {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": "shop",
            "HOST": "a,b",
            "PORT": "5432,5433",
            "OPTIONS": {"target_session_attrs": "read-write", "prepare_threshold": 5},
        },
        "postgresql+psycopg:///shop?host=a%3A5432&host=b%3A5433&target_session_attrs=read-write",
    ),
    (
        {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": "shop",
            "HOST": "a,b",
            "PORT": "5433",
        },
        "postgresql+psycopg:///shop?host=a%3A5433&host=b%3A5433",
    ),
    (
        {
            "ENGINE": "django.db.backends.mysql",
            "OPTIONS": {
                "read_default_file": "/etc/my.cnf",
                "init_command": "SET NAMES utf8mb4",
                "connect_timeout": 3,
                "isolation_level": "read committed",
            },
        },
        "mysql+pymysql://?charset=utf8mb4&read_default_file=%2Fetc%2Fmy.cnf&connect_timeout=3",
    ),
]
TLS = [
    ({"ssl": {"ca": "/ca.pem"}}, {"ssl_ca": "/ca.pem", "ssl_check_hostname": "false"}),
    ({"ssl_mode": "REQUIRED"}, {"ssl_check_hostname": "false"}),
    (
        {"ssl": {"ca": "/ca.pem"}, "ssl_mode": "VERIFY_IDENTITY"},
        {"ssl_ca": "/ca.pem", "ssl_check_hostname": "true"},
    ),
    ({"ssl": {"ca": "/ca.pem"}, "ssl_mode": "DISABLED"}, {}),
    ({"ssl_mode": "PREFERRED"}, {}),
    ({"ssl": True}, {"ssl_check_hostname": "false"}),
]


@pytest.mark.parametrize(("described", "url"), URLS)
def test_a_database_of_the_settings_has_a_url(described: dict[str, Any], url: str) -> None:
    assert make_url(database_url(described)) == make_url(url)


@pytest.mark.parametrize(("options", "expected"), TLS)
def test_mysql_is_spoken_to_in_private_where_django_does_it(
    options: dict[str, Any], expected: dict[str, str]
) -> None:
    database = {"ENGINE": "django.db.backends.mysql", "NAME": "shop", "OPTIONS": options}
    query = make_url(database_url(database)).query

    assert {name: query[name] for name in query if name.startswith("ssl")} == expected


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ({"ENGINE": "x.mysql", "OPTIONS": {"local_infile": 1}}, "local_infile"),
        ({"ENGINE": "x.mysql", "OPTIONS": {"ssl": {"crl": "/a"}}}, "ssl in OPTIONS .* has crl"),
        ({"ENGINE": "x.mysql", "OPTIONS": {"ssl": "yes"}}, "a table or True"),
        ({"ENGINE": "x.mysql", "OPTIONS": {"ssl_mode": "SURE"}}, "ssl_mode .* is 'SURE'"),
        ({"ENGINE": "x.mysql", "OPTIONS": {"ssl_mode": "VERIFY_IDENTITY"}}, "name them as ca"),
        ({"ENGINE": "x.postgresql", "HOST": "a,b,c", "PORT": "1,2"}, "one for each host"),
        ({"ENGINE": "x.postgresql", "HOST": "a", "PORT": "five"}, "give a whole number"),
    ],
)
def test_an_entry_that_no_url_can_say_is_refused(entry: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        database_url({"NAME": "shop", **entry})


def test_a_database_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="oracle"):
        database_url({"ENGINE": "django.db.backends.oracle", "NAME": "shop"})


def test_queues_and_timeouts_rest_in_djangos_database_unless_they_are_named(
    database: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parts() -> tuple[str, str]:
        made = configuration().settings()
        assert made.persistence is not None
        assert made.persistence.database is not None
        return made.transport.describe(), made.persistence.database.describe()

    own = f"sqlite:///{tmp_path / 'default.sqlite3'}"
    named = f"sqlite:///{tmp_path / 'named.db'}"
    assert parts() == (own, own)
    with override_settings(
        TIMEOUTMGR={
            "endpoint": "shop",
            "features": ["timeout-manager"],
            "transport": named,
            "using": "other",
        }
    ):
        assert parts() == (named, f"sqlite:///{tmp_path / 'other.sqlite3'}")
    monkeypatch.setenv("TIMEOUTMGR_TRANSPORT", named)
    assert parts() == (named, own)
    monkeypatch.setenv("TIMEOUTMGR_FEATURES", "timeout-manager")
    with override_settings(TIMEOUTMGR={"endpoint": "shop"}):
        assert parts() == (named, own)


def test_wrong_settings_are_refused_by_the_check(database: Any) -> None:
    assert check_timeoutmgr() == []

    with override_settings(TIMEOUTMGR={"endpoint": "shop", "featurs": []}):
        with pytest.raises(UnknownSetting, match="features"):
            configuration()
        [error] = check_timeoutmgr()
    assert error.id == "timeoutmgr.E001"
    assert "features" in error.msg
    for features in (None, 5):
        with override_settings(TIMEOUTMGR={"endpoint": "shop", "features": features}):
            [error] = check_timeoutmgr()
            assert "features in code: expected a list of texts" in error.msg
    for wrong in (None, ["shop"]):
        with override_settings(TIMEOUTMGR=wrong):
            [error] = check_timeoutmgr()
            assert "is a dict" in error.msg


def test_a_deferred_transaction_of_sqlite_is_warned_of(database: Any, tmp_path: Path) -> None:
    assert check_sqlite_transactions() == []

    del connections["default"].settings_dict["OPTIONS"]["transaction_mode"]

    assert [warning.id for warning in check_sqlite_transactions()] == ["timeoutmgr.W001"]
    elsewhere = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    named = {"endpoint": "shop", "transport": elsewhere, "persistence": elsewhere}
    with override_settings(TIMEOUTMGR=named):
        assert check_sqlite_transactions() == []


def test_a_handler_leaves_no_old_connection_behind(
    database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configuration.__globals__["_registry"], "_handlers", [])
    used: list[bool] = []

    @handler("Ping", batch=1)
    def ping(_message: object, _context: object) -> None:
        with connections["default"].cursor() as cursor:
            cursor.execute("SELECT 1")
        used.append(connections["default"].connection is not None)

    made = configuration().settings()
    [wrapped] = made.handlers["Ping"]
    context: Any = None
    wrapped({}, context)

    assert used == [True]
    assert made.handled_alone == {"Ping"}
    assert connections["default"].connection is None  # CONN_MAX_AGE is 0


@pytest.mark.parametrize("error", [None, ValueError("no")])
@pytest.mark.parametrize("how", ["atomic", "autocommit"])
def test_a_handler_that_leaves_a_transaction_open_fails_and_leaves_no_connection(
    how: str, error: Exception | None, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configuration.__globals__["_registry"], "_handlers", [])
    monkeypatch.setitem(database.settings_dict, "CONN_MAX_AGE", None)

    @handler("Ping")
    def ping(_message: object, _context: object) -> None:
        if how == "atomic":
            transaction.atomic().__enter__()
        else:
            transaction.set_autocommit(False)
        insert_order(database)
        if error is not None:
            raise error

    [wrapped] = configuration().settings().handlers["Ping"]
    context: Any = None
    with pytest.raises(HandlerFailed if error is None else ValueError) as failed:
        wrapped({}, context)

    sentence = "it left a transaction open in Django's database 'default', which was rolled back"
    assert sentence in "".join([str(failed.value), *getattr(failed.value, "__notes__", ())])
    assert database.connection is None
    with transaction.atomic():
        insert_order(database)
        assert count_orders(database) == 1


def test_a_transaction_that_was_open_before_a_block_stays_open_after_it(database: Any) -> None:
    with transaction.atomic():
        with ended_transactions():
            insert_order(database)
        assert count_orders(database) == 1
        transaction.set_rollback(True)

    assert count_orders(database) == 0


def insert_order(database: Any) -> None:
    with database.cursor() as cursor:
        cursor.execute("INSERT INTO orders VALUES ('1')")


def count_orders(database: Any) -> int:
    with database.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM orders")
        found: int = cursor.fetchone()[0]
    return found


@pytest.mark.parametrize("error", [None, ValueError("no")])
def test_a_coroutine_that_leaves_a_transaction_open_fails_and_leaves_its_neighbours_alone(
    error: Exception | None, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configuration.__globals__["_registry"], "_handlers", [])
    monkeypatch.setitem(database.settings_dict, "CONN_MAX_AGE", None)
    is_open, used = asyncio.Event(), []

    @handler("Leave")
    async def leave(_message: object, _context: object) -> None:
        await sync_to_async(transaction.set_autocommit)(False)
        await sync_to_async(count_orders)(connection)
        is_open.set()
        await is_written.wait()
        if error is not None:
            raise error

    @handler("Write")
    async def write(_message: object, _context: object) -> None:
        await is_open.wait()
        await sync_to_async(insert_order)(connection)
        used.append(await sync_to_async(lambda: connection.connection)())
        is_written.set()

    async def handle_both() -> list[Any]:
        made: Any = configuration().settings().handlers
        both = (made[kind][0]({}, None) for kind in ("Leave", "Write"))
        return await asyncio.gather(*both, return_exceptions=True)

    is_written = asyncio.Event()
    failed, written = asyncio.run(handle_both())

    sentence = "it left a transaction open in Django's database 'default', which was rolled back"
    assert isinstance(failed, HandlerFailed if error is None else ValueError)
    assert sentence in "".join([str(failed), *getattr(failed, "__notes__", ())])
    assert (written, count_orders(database)) == (None, 1)
    with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
        used[0].cursor()


class Awaits:
    """An object whose calls are coroutines."""

    async def __call__(self, _message: object, _context: object) -> None: ...


async def yields(_message: object, _context: object) -> AsyncIterator[int]:
    yield 1


def takes_one(_message: object) -> None: ...


def test_an_object_with_a_coroutine_function_is_registered_as_a_coroutine_function(
    database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configuration.__globals__["_registry"], "_handlers", [])
    ping = Awaits()

    handler("Ping")(ping)

    [wrapped] = configuration().settings().handlers["Ping"]
    assert iscoroutinefunction(wrapped)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (takes_one, "is called with (message, context)"),
        (yields, "is an asynchronous generator function"),
        (Awaits, "got the class Awaits"),
        (5, "got 5"),
    ],
)
def test_a_wrong_handler_is_refused_by_the_check(
    database: Any, monkeypatch: pytest.MonkeyPatch, wrong: Any, sentence: str
) -> None:
    monkeypatch.setattr(configuration.__globals__["_registry"], "_handlers", [])

    handler("Ping")(wrong)

    [error] = check_timeoutmgr()
    assert sentence in error.msg


def test_the_command_gives_its_arguments_on_without_those_of_manage_py() -> None:
    given = ["list", "--settings", "a.b", "--json", "--pythonpath=/x", "--settings=c"]

    assert list(command._without_django(given)) == ["list", "--json"]


def test_a_command_that_fails_is_a_command_error(
    database: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wrong_settings.py").write_text("TIMEOUTMGR = {}\n")
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "wrong_settings")
    monkeypatch.syspath_prepend(str(tmp_path))

    with pytest.raises(CommandError, match="exit code 4") as failed:
        call_command("timeoutmgr", "list", "--limit", "3")

    assert failed.value.returncode == 4
