"""The newest revision is known without Alembic, and only an upgrade imports Alembic."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import make_url, text

from timeoutmgr import Endpoint, EndpointConfiguration
from timeoutmgr.database import Database
from timeoutmgr.database.upgrade import check, current, folder_of, head
from timeoutmgr.errors import ConfigurationError, SchemaMissing
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.transport.sql import SqlTransport

pytestmark = pytest.mark.installs

_PARTS: Final = ["timeoutmgr.persistence:sql/migrations", "timeoutmgr.transport.sql:migrations"]

_START: Final = """
import json, sys
from timeoutmgr import Endpoint, EndpointConfiguration
from timeoutmgr.cli.main import cli
from timeoutmgr.satellites import TimeoutManager
config = EndpointConfiguration("sales")
config.use_transport(sys.argv[1])
config.use_persistence(sys.argv[1])
config.enable_feature(TimeoutManager())
config.install = json.loads(sys.argv[2])
with Endpoint(config):
    print(json.dumps(sorted(name for name in sys.modules if name.startswith("alembic"))))
"""


@pytest.mark.parametrize("part", _PARTS)
def test_the_names_of_the_files_are_the_revisions_that_alembic_finds(part: str) -> None:
    scripts = ScriptDirectory(str(folder_of(part)))
    revisions = [script.revision for script in scripts.walk_revisions()]

    assert head(part) == scripts.get_current_head()
    assert revisions == sorted(revisions, reverse=True), "the newest has the greatest name"
    for script in scripts.walk_revisions():
        assert Path(script.path).name.startswith(f"{script.revision}_")


def test_a_folder_without_revisions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="holds no revision"):
        head(tmp_path)


@pytest.mark.parametrize("installs", [True, False])
def test_a_start_on_installed_tables_does_without_alembic(sqlite_url: str, installs: bool) -> None:
    first = _modules_of_a_start(sqlite_url, installs=True)

    assert "alembic.command" in first, "or this test looks in the wrong place"
    assert _modules_of_a_start(sqlite_url, installs=installs) == []


def _modules_of_a_start(url: str, *, installs: bool) -> list[str]:
    arguments = [sys.executable, "-c", _START, url, json.dumps(installs)]
    found = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=True)
    modules: list[str] = json.loads(found.stdout)
    return modules


def test_a_version_table_without_a_row_counts_as_nothing_installed(sqlite_url: str) -> None:
    persistence = SqlPersistence(sqlite_url)
    persistence.install()
    with persistence.database.begin() as connection:
        connection.exec_driver_sql("DELETE FROM timeoutmgr_timeouts_version")

    assert current(persistence.database, "timeoutmgr_timeouts_version", None) is None
    with pytest.raises(SchemaMissing, match="has no tables"):
        persistence.check()
    persistence.close()


def test_several_revisions_are_refused_until_the_oldest_is_left(sqlite_url: str) -> None:
    """Statements of ``install --sql`` on tables that are there leave a second row."""
    insert = "INSERT INTO timeoutmgr_timeouts_version VALUES ('0009')"
    delete = "DELETE FROM timeoutmgr_timeouts_version WHERE version_num <> '0009'"
    with closing(SqlPersistence(sqlite_url)) as persistence:
        persistence.install()
        persistence.database.run(lambda connection: connection.exec_driver_sql(insert))
        for use in (persistence.check, persistence.install):
            with pytest.raises(SchemaMissing, match="delete all rows but '0009'"):
                use()
        persistence.database.run(lambda connection: connection.exec_driver_sql(delete))
        persistence.install()

        persistence.check()


@pytest.fixture(params=["postgres_url", "mysql_url"])
def of_a_reader(request: pytest.FixtureRequest, unique: str) -> Iterator[str]:
    """The URL of a user who may create nothing."""
    url = make_url(request.getfixturevalue(request.param))
    is_postgres = request.param == "postgres_url"
    user = unique if is_postgres else f"{unique}@'%'"
    created = f"ROLE {user} LOGIN" if is_postgres else f"USER {user} IDENTIFIED BY 'x'"
    with closing(SqlPersistence(Database(url))) as owner:
        with owner.database.begin() as connection:
            connection.execute(text(f"CREATE {created}"))
            if not is_postgres:
                connection.execute(text(f"GRANT SELECT ON {url.database}.* TO {user}"))
        yield url.set(username=unique, password="x").render_as_string(hide_password=False)
        with owner.database.begin() as connection:
            connection.execute(text(f"DROP {'ROLE' if is_postgres else 'USER'} {user}"))


def test_a_user_who_may_not_create_tables_is_refused_with_the_remedy(
    of_a_reader: str, unique: str, tmp_path: Path
) -> None:
    config = EndpointConfiguration("sales")
    config.use_transport(f"sqlite:///{tmp_path}/queues.db")
    config.use_persistence(of_a_reader, prefix=f"{unique}_")
    config.enable_feature(TimeoutManager())
    with closing(Endpoint(config)) as endpoint:
        for use in (endpoint.install, endpoint.start):
            with pytest.raises(SchemaMissing, match=r"denied .*run `timeoutmgr install` as "):
                use()


def test_an_older_revision_differs_from_a_newer_revision(sqlite_url: str) -> None:
    database = Database.shared(sqlite_url)
    transport, persistence = SqlTransport(database), SqlPersistence(database)
    persistence.install()
    transport.install()
    with database.begin() as connection:
        connection.exec_driver_sql("UPDATE timeoutmgr_timeouts_version SET version_num = '0001'")

    with pytest.raises(SchemaMissing, match=r"is at revision '0001' .* run `timeoutmgr install`"):
        check(database, _PARTS[0], "timeoutmgr_timeouts_version", None)
    transport.check()
    transport.close()
    persistence.close()
