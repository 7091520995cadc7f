"""Tables are upgraded beside processes that use them, and these processes wait only briefly."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import event, make_url, text
from sqlalchemy.exc import IntegrityError

from tests.persistence.first_revision import store_as_before
from tests.persistence.making import NOW, timeout
from tests.support.waiting import eventually
from timeoutmgr.database import Database, indexes
from timeoutmgr.database.upgrade import _alone, current, folder_of, upgrade
from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.persistence import SqlPersistence, SqlSettings

pytestmark = pytest.mark.installs

Made = Callable[..., SqlPersistence]
SOON = 60.0
_ENVIRONMENT = folder_of("timeoutmgr.persistence:sql/migrations").joinpath("env.py").read_text()
_OF_TWO_TABLES = """
from sqlalchemy import Column, Index, MetaData, String, Table
from timeoutmgr.database.indexes import create_index_patiently
from timeoutmgr.database.upgrade import add_missing_columns, revision_attributes

revision, down_revision = "0001", None


def upgrade():
    for name in ("first", "second"):
        made = Table(f"{revision_attributes()['prefix']}_{name}", MetaData())
        add_missing_columns(made, Column("gadget", String(20)))
        made.append_column(Column("gadget", String(20)))
        create_index_patiently(Index(f"{made.name}_gadgets", made.c.gadget))
"""
"""A revision of two small tables, as a new endpoint has."""
_UNHURRIED = """
from alembic import op

revision, down_revision = "0001", None


def upgrade():
    assert op.get_bind().exec_driver_sql("SHOW statement_timeout").scalar_one() == "0"
"""
"""A revision that fails if its statements have a time limit."""
_OF_A_ROLE = {"options": "-cstatement_timeout=500"}
"""The time limit that PostgreSQL's role may have for its statements, in milliseconds."""


@pytest.fixture
def old(
    postgres_url: str, unique: str, persistence_of: Made, monkeypatch: pytest.MonkeyPatch
) -> SqlPersistence:
    """The tables of the first revision, treated as large, with timeouts in two partitions."""
    monkeypatch.setattr(indexes, "FEW", 0)
    settings = SqlSettings(clock="host", partitions="off")
    persistence = persistence_of(postgres_url, prefix=f"{unique}_", settings=settings)
    database, name = persistence.database, f"{unique}_timeouts"
    _install_first(database, f"{unique}_")
    with database.begin() as connection:
        for statement in (
            f"DROP TABLE {name}_all",
            f"CREATE TABLE {name}_past PARTITION OF {name} FOR VALUES FROM (MINVALUE) TO ({NOW})",
            f"CREATE TABLE {name}_far PARTITION OF {name} FOR VALUES FROM ({NOW}) TO (MAXVALUE)",
            f"INSERT INTO {unique}_timeout_history (id, event, at, due, endpoint, destination,"
            " attempt, node) SELECT 'i', 'dispatched', 0, 0, 'e', 'd', 0, 'n'"
            " FROM generate_series(1, 2)",
        ):
            connection.execute(text(statement))
    timeouts = [timeout(f"{n}", NOW - 10 + n, saga="s") for n in range(20)]
    store_as_before(database, f"{unique}_", timeouts)
    return persistence


def test_a_poll_goes_on_while_an_upgrade_waits_for_its_locks(
    old: SqlPersistence, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    waits = threading.Event()

    def note(_record: logging.LogRecord) -> bool:
        waits.set()
        return True

    caplog.set_level(logging.INFO, "timeoutmgr.database.upgrade")
    caplog.handler.addFilter(note)
    installing = threading.Thread(target=old.install, daemon=True)

    with old.database.begin() as busy:  # a long report, or a dispatcher over a slow publish
        busy.execute(text(f"SELECT count(*) FROM {unique}_timeouts"))
        installing.start()
        assert waits.wait(SOON), "the upgrade has not met the lock"
        with old.database.begin() as poll:
            poll.execute(text("SET LOCAL lock_timeout = '10s'"))
            found = poll.execute(text(f"SELECT min(due) FROM {unique}_timeouts")).scalar_one()
        assert installing.is_alive()

    installing.join(SOON)
    assert found == NOW - 10
    old.check()


def test_indexes_of_large_tables_are_built_beside_their_writers(
    old: SqlPersistence, unique: str
) -> None:
    ran: list[str] = []

    def note(_c: Any, _u: Any, statement: str, *_: Any) -> None:
        ran.append(statement)

    event.listen(old.database.apart, "before_cursor_execute", note)
    try:
        old.install()
    finally:
        event.remove(old.database.apart, "before_cursor_execute", note)

    builds = [one for one in ran if one.startswith("CREATE INDEX")]
    # The tables of cleared sagas, of the audit and of background counts are new: no writers yet.
    new = re.compile("cleared_sagas|audit|load_buckets")
    on_parts = [one for one in builds if " ON ONLY " not in one and not new.search(one)]
    assert len([one for one in on_parts if f"{unique}_timeouts" in one]) == 4  # two of two parts
    assert len([one for one in on_parts if f"{unique}_timeout_history" in one]) == 1
    assert all("CONCURRENTLY" in one for one in on_parts)
    assert _indexes(old, unique) == {
        f"{unique}_timeouts_{part}_{name}": True
        for part in ("past", "far")
        for name in ("saga", "retried")
    } | {f"{unique}_timeouts_{name}": True for name in ("saga", "retried")}


def test_the_remainder_of_an_interrupted_index_is_built_anew(
    old: SqlPersistence, unique: str
) -> None:
    part = f"{unique}_timeouts_past"
    with (
        old.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as one,
        pytest.raises(IntegrityError),
    ):
        # A failed build leaves an index that no query uses, and that every write keeps up.
        one.execute(text(f"CREATE UNIQUE INDEX CONCURRENTLY {part}_retried ON {part} (endpoint)"))
    assert _indexes(old, unique)[f"{part}_retried"] is False

    old.install()

    assert all(_indexes(old, unique).values())


def test_the_remainder_of_the_index_of_a_plain_table_is_built_anew(
    old: SqlPersistence, unique: str
) -> None:
    table = f"{unique}_timeout_history"
    with (
        old.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as one,
        pytest.raises(IntegrityError),
    ):
        one.execute(text(f"CREATE UNIQUE INDEX CONCURRENTLY {table}_few ON {table} (endpoint)"))
    assert _indexes(old, unique, table)[f"{table}_few"] is False

    old.install()

    assert _indexes(old, unique, table) == {f"{table}_at": True, f"{table}_few": True}


def test_an_upgrade_releases_each_table_before_it_waits_for_the_next(
    postgres_url: str, unique: str, persistence_of: Made, tmp_path: Path
) -> None:
    database = persistence_of(postgres_url, prefix=f"{unique}_").database
    first, second = f"{unique}_first", f"{unique}_second"
    with database.begin() as connection:
        for name in (first, second):
            connection.execute(text(f"CREATE TABLE {name} (endpoint text)"))
    (tmp_path / "env.py").write_text(_ENVIRONMENT)
    (tmp_path / "versions").mkdir()
    (tmp_path / "versions" / "0001_two.py").write_text(_OF_TWO_TABLES)
    version = f"{unique}_version"
    change = threading.Thread(
        target=upgrade, args=(database, tmp_path, version, None, {"prefix": unique}), daemon=True
    )
    indexed = text("SELECT count(*) FROM pg_indexes WHERE indexname = :name")

    with database.begin() as store:
        store.execute(text(f"INSERT INTO {second} VALUES ('sales')"))
        change.start()
        with database.engine.connect() as other:
            eventually(
                lambda: other.execute(indexed, {"name": f"{first}_gadgets"}).scalar_one() == 1,
                "the first table has its index, though the second is in use",
                SOON,
            )

    change.join(SOON)
    assert not change.is_alive()
    assert current(database, version, None) == "0001"


def test_no_time_limit_of_the_role_ends_an_upgrade(
    postgres_url: str, unique: str, tmp_path: Path
) -> None:
    database = Database(make_url(postgres_url).update_query_dict(_OF_A_ROLE))
    (tmp_path / "env.py").write_text(_ENVIRONMENT)
    (tmp_path / "versions").mkdir()
    (tmp_path / "versions" / "0001_unhurried.py").write_text(_UNHURRIED)

    upgrade(database, tmp_path, f"{unique}_version", None, {})

    with database.read() as connection:
        assert connection.execute(text("SHOW statement_timeout")).scalar_one() == "500ms"
    database.dispose()


def test_a_process_that_waits_for_an_upgrade_does_not_delay_its_indexes(
    old: SqlPersistence, postgres_url: str, unique: str
) -> None:
    """A build CONCURRENTLY waits for all snapshots, and a statement that waits has one."""
    waiting, entered = Database(postgres_url), threading.Event()
    asked = text(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE pid = :pid AND query ~ '_xact_lock|SET LOCAL idle_in'"
    )
    pids: list[int] = []

    def note(connection: Any, *_: Any) -> None:
        pids.append(connection.info.backend_pid)

    def wait() -> None:
        with _alone(waiting, unique):
            entered.set()

    event.listen(waiting.engine, "checkout", note)
    second = threading.Thread(target=wait, daemon=True)

    with _alone(old.database, unique), old.database.connect_apart() as connection:
        second.start()
        connection.execution_options(isolation_level="AUTOCOMMIT")
        eventually(
            lambda: pids and connection.execute(asked, {"pid": pids[0]}).scalar_one() == 1,
            "the other process has asked for the lock",
        )
        connection.exec_driver_sql("SET lock_timeout = '10s'")
        connection.exec_driver_sql(
            f"CREATE INDEX CONCURRENTLY {unique}_at ON {unique}_timeout_history (at)"
        )
        assert not entered.is_set()
    assert entered.wait(SOON), "the other process has not got the lock"
    second.join(SOON)
    waiting.dispose()


@pytest.mark.parametrize("server", ["postgres", "mysql"])
def test_an_upgrade_names_the_upgrade_of_another_process_that_it_waits_for(
    server: str, request: pytest.FixtureRequest, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timeoutmgr.database.upgrade._LOCK_WAIT", 1)
    url, folder = request.getfixturevalue(f"{server}_url"), "timeoutmgr.persistence:sql/migrations"
    table, given = f"{unique}_version", {"prefix": f"{unique}_"}
    limits = _OF_A_ROLE if server == "postgres" else {}
    others, ours = Database(url), Database(make_url(url).update_query_dict(limits))

    with (
        _alone(others, f".{table}"),
        pytest.raises(StorageUnavailable, match=f"another process has been upgrading .{table}"),
    ):
        upgrade(ours, folder, table, None, given)

    ours.dispose()
    others.dispose()


def _indexes(persistence: SqlPersistence, unique: str, table: str = "") -> dict[str, bool]:
    """Return the indexes but for the primary keys, and whether each is valid.

    With an empty *table*, return the indexes of the timeouts.
    """
    like = table.replace("_", r"\_") or f"{unique}\\_timeouts%"
    with persistence.database.read() as connection:
        rows = connection.execute(
            text(
                "SELECT c.relname, x.indisvalid FROM pg_index x JOIN pg_class c"
                " ON c.oid = x.indexrelid JOIN pg_class t ON t.oid = x.indrelid"
                " WHERE t.relname LIKE :like AND NOT x.indisprimary"
                " AND t.relname NOT LIKE '%version'"
            ),
            {"like": like},
        )
        return {name: valid for name, valid in rows}


def _install_first(database: Database, prefix: str) -> None:
    with database.begin() as connection:
        options = {"schema": None, "prefix": prefix, "version_table": f"{prefix}timeouts_version"}
        config = Config(attributes={**options, "connection": connection})
        folder = folder_of("timeoutmgr.persistence:sql/migrations")
        config.set_main_option("script_location", str(folder))
        config.set_main_option("path_separator", "os")
        command.upgrade(config, "0001")
