"""The first process creates the tables, once; schema and prefix keep tables apart."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import inspect
from sqlalchemy.engine.interfaces import ReflectedIndex

from chaos.forkserver_client import ForkServer
from tests.persistence.first_revision import store_as_before
from tests.persistence.making import NOW, SetClock, dispatch, ids, timeout
from tests.support.forked import PATIENCE, start
from timeoutmgr.contracts import RepeatKind, TimeoutFilter
from timeoutmgr.contracts.sagas import SagaClear
from timeoutmgr.database import Database
from timeoutmgr.database.upgrade import folder_of
from timeoutmgr.errors import CombinationRefused, ConfigurationError, SchemaMissing
from timeoutmgr.persistence import MemoryPersistence, SqlPersistence, SqlSettings
from timeoutmgr.persistence.sql.tables import TimeoutTables, tables

pytestmark = pytest.mark.installs

Made = Callable[..., SqlPersistence]


@pytest.mark.behaviour(123)
def test_check_names_the_command_until_installed(
    empty_url: str, unique: str, persistence_of: Made
) -> None:
    persistence = persistence_of(empty_url, prefix=f"{unique}_")

    with pytest.raises(SchemaMissing, match="timeoutmgr install"):
        persistence.check()
    persistence.install()
    persistence.install()

    persistence.check()
    persistence.close()
    persistence.close()


@pytest.mark.behaviour(122)
def test_processes_that_install_at_once_all_succeed(
    empty_url: str, unique: str, fork_server: ForkServer
) -> None:
    program = (
        "import sys, warnings; from timeoutmgr.persistence import SqlPersistence; "
        "warnings.simplefilter('error'); "
        "p = SqlPersistence(sys.argv[1], prefix=sys.argv[2]); p.install(); p.check()"
    )

    running = [start(fork_server, program, empty_url, f"{unique}_") for _ in range(3)]

    assert [process.wait(PATIENCE) for process in running] == [0, 0, 0]


@pytest.mark.filterwarnings("ignore:Did not recognize type 'xid8'")
def test_queries_and_migrations_know_the_same_columns(
    empty_url: str, unique: str, persistence_of: Made
) -> None:
    persistence = persistence_of(empty_url, prefix=f"{unique}_")
    persistence.install()
    known = tables(None, f"{unique}_")

    inspector = inspect(persistence.database.engine)

    for field in TimeoutTables.__slots__:
        table = getattr(known, field)
        there = {column["name"] for column in inspector.get_columns(table.name)} - {"xid"}
        assert there == set(table.columns.keys()), table.name
        key = inspector.get_pk_constraint(table.name)["constrained_columns"]
        assert key == [column.name for column in table.primary_key], table.name


@pytest.mark.filterwarnings("ignore:Did not recognize type 'xid8'")
@pytest.mark.parametrize("revision", ["0001"])
def test_an_upgrade_ends_in_the_schema_of_a_fresh_installation(
    empty_url: str, unique: str, persistence_of: Made, revision: str
) -> None:
    # An upgrade does not move the rows into ranges, which a fresh installation has.
    settings = SqlSettings(clock="host", partitions="off")
    old = persistence_of(empty_url, prefix=f"{unique}o_", settings=settings)
    _install_up_to(revision, old.database, f"{unique}o_")
    store = old.timeouts("e", SetClock(NOW + 9))
    store_as_before(
        old.database,
        f"{unique}o_",
        [
            *(timeout(name, NOW + n, saga=name * 2) for n, name in enumerate("abc")),
            timeout("d", NOW + 3),
        ],
    )
    fresh = persistence_of(empty_url, prefix=f"{unique}f_", settings=settings)
    fresh.install()
    before = _schema(old.database, f"{unique}o_")

    old.install()

    old.check()
    after = _schema(old.database, f"{unique}o_")
    assert before != after == _schema(fresh.database, f"{unique}f_")
    # A row from before the upgrade has no digest, and is never a conflict.
    [repeat] = store.store_many([timeout("d", NOW, body=b"other")])
    assert repeat.kind is RepeatKind.DUPLICATE
    assert len(store.cancel_saga("bb")) == 1
    store.reschedule("c", NOW + 9)
    assert [one.due for one in store.list(TimeoutFilter(id="c"))] == [NOW + 9]
    assert dispatch(store, store.claim(NOW + 9, 9, "o"), NOW + 9) == ["a", "d", "c"]


@pytest.mark.filterwarnings("ignore:Did not recognize type 'xid8'")
def test_an_upgrade_that_was_cut_off_is_finished_by_the_next(
    empty_url: str, unique: str, persistence_of: Made
) -> None:
    persistence = persistence_of(empty_url, prefix=f"{unique}_")
    persistence.install()
    whole = _schema(persistence.database, f"{unique}_")
    # As if MySQL had died after the last DDL statement: the new version is not recorded.
    with persistence.database.begin() as connection:
        connection.exec_driver_sql(f"UPDATE {unique}_timeouts_version SET version_num = '0001'")

    persistence.install()

    persistence.check()
    assert _schema(persistence.database, f"{unique}_") == whole


def test_an_upgrade_makes_room_for_the_ids_that_a_clear_keeps(
    mysql_url: str, unique: str, persistence_of: Made
) -> None:
    settings = SqlSettings(clock="host")
    persistence = persistence_of(mysql_url, prefix=f"{unique}_", settings=settings)
    _install_up_to("0014since0013", persistence.database, f"{unique}_")
    persistence.install()
    store = persistence.timeouts("e", SetClock())
    kept = frozenset(f"{n:036}" for n in range(2_000))  # 80,000 bytes
    store.store_many([timeout(min(kept), saga="s"), timeout("other", saga="s")])

    store.clear_saga(SagaClear(saga_id="s", order_id="o", sent=NOW, kept=kept))

    assert [one.id for one in store.list(TimeoutFilter())] == [min(kept)]


def test_timeouts_have_only_the_indexes_of_sagas_and_of_retries(
    empty_url: str, unique: str, persistence_of: Made
) -> None:
    persistence = persistence_of(empty_url, prefix=f"{unique}_")
    persistence.install()

    found = inspect(persistence.database.engine).get_indexes(f"{unique}_timeouts")

    retried, saga = sorted(found, key=lambda index: str(index["name"]))
    for index, columns in (
        (retried, ["endpoint", "original_due"]),
        (saga, ["saga_id", "endpoint"]),
    ):
        assert index["column_names"] == columns
        some = f"{columns[-1] if index is retried else columns[0]} IS NOT NULL"
        assert _where(index) == {
            "sqlite": {"sqlite_where": some},
            "postgresql": {"postgresql_where": f"({some})"},
        }.get(persistence.database.dialect.name, {})


def _install_up_to(revision: str, database: Database, prefix: str) -> None:
    with database.begin() as connection:
        options = {"schema": None, "prefix": prefix, "version_table": f"{prefix}timeouts_version"}
        config = Config(attributes={**options, "connection": connection})
        folder = folder_of("timeoutmgr.persistence:sql/migrations")
        config.set_main_option("script_location", str(folder))
        config.set_main_option("path_separator", "os")
        command.upgrade(config, revision)


def _schema(database: Database, prefix: str) -> dict[str, list[Any]]:
    """Return the columns, keys and indexes of each table, without the prefix."""
    inspector = inspect(database.engine)
    found: dict[str, list[Any]] = {}
    for name in inspector.get_table_names():
        if name.startswith(prefix):
            columns = [{**one, "type": repr(one["type"])} for one in inspector.get_columns(name)]
            indexes = [
                {**one, "dialect_options": _where(one)} for one in inspector.get_indexes(name)
            ]
            known = [columns, inspector.get_pk_constraint(name), indexes]
            found[name.removeprefix(prefix)] = [str(one).replace(prefix, "") for one in known]
    return found


def _where(index: ReflectedIndex) -> dict[str, str]:
    options = index.get("dialect_options", {})
    return {key: str(value) for key, value in options.items() if key.endswith("_where")}


@pytest.mark.behaviour(126)
def test_prefixes_are_kept_apart(empty_url: str, unique: str, persistence_of: Made) -> None:
    settings = SqlSettings(clock="host")
    one, other = (
        persistence_of(empty_url, prefix=f"{unique}{n}_", settings=settings) for n in "ab"
    )
    one.install()
    other.install()

    one.timeouts("e", SetClock()).store_many([timeout("a")])

    assert other.timeouts("e", SetClock()).count(TimeoutFilter()) == 0


@pytest.mark.parametrize("kind", ["postgres", "mysql"])
@pytest.mark.behaviour(126)
def test_a_schema_is_created_and_used(
    kind: str, unique: str, request: pytest.FixtureRequest, persistence_of: Made
) -> None:
    url = request.getfixturevalue(f"{kind}_url")
    settings = SqlSettings(clock="host")
    schema = f"{unique}_schema"
    inside = persistence_of(url, schema=schema, prefix=f"{unique}_", settings=settings)
    outside = persistence_of(url, prefix=f"{unique}_", settings=settings)
    try:
        inside.install()
        outside.install()
        store = inside.timeouts("e", SetClock())
        store.store_many([timeout("a")])

        assert ids(store.claim(NOW, 5, "o")) == ["a"]
        assert outside.timeouts("e", SetClock()).count(TimeoutFilter()) == 0
    finally:
        cascade = " CASCADE" if kind == "postgres" else ""
        with inside.database.begin() as connection:
            connection.exec_driver_sql(f"DROP SCHEMA {schema}{cascade}")


def test_ddl_creates_the_same_tables_as_install(
    sqlite_url: str, unique: str, persistence_of: Made
) -> None:
    text = persistence_of(sqlite_url, prefix=f"{unique}_").ddl()
    database = Database(sqlite_url)

    with database.begin() as connection:
        for statement in text.split(";"):
            lines = [line for line in statement.splitlines() if not line.startswith("--")]
            if (statement := "\n".join(lines).strip()) not in {"", "BEGIN", "COMMIT"}:
                connection.exec_driver_sql(statement)

    persistence_of(database, prefix=f"{unique}_").check()


@pytest.mark.parametrize("bad", ["x; drop table y", "", "9", "ä", "a" * 50])
def test_names_that_are_no_plain_identifiers_are_refused(
    sqlite_url: str, bad: str, persistence_of: Made
) -> None:
    with pytest.raises(ConfigurationError):
        persistence_of(sqlite_url, prefix=bad)
    with pytest.raises(ConfigurationError):
        persistence_of(sqlite_url, schema=bad)


def test_sqlite_takes_no_schema(sqlite_url: str, persistence_of: Made) -> None:
    with pytest.raises(CombinationRefused):
        persistence_of(sqlite_url, schema="other")


@pytest.mark.parametrize(
    "wrong",
    [
        {"history": "some"},
        {"clock": "wrist"},
        {"claim_time": timedelta(0)},
        {"history_retention": timedelta(seconds=-1)},
        {"tombstone_retention": timedelta(days=6)},
        *({name: timedelta.max} for name in ("claim_time", "history_retention")),
        {"tombstone_retention": timedelta.max},
        {"claim_time": 60},
        {"tombstone_retention": "30d"},
        {"max_in_flight": "5000"},
        {"copy": "false"},
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        SqlSettings(**wrong)  # type: ignore[arg-type]  # wrong on purpose


def test_memory_wants_its_loss_accepted() -> None:
    with pytest.raises(CombinationRefused, match="accept_loss"):
        MemoryPersistence()
