"""Programs of two versions share the tables of the newer version, and both start."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.waiting import eventually
from timeoutmgr import Endpoint, EndpointConfiguration
from timeoutmgr.database import Database
from timeoutmgr.database.upgrade import current, folder_of, head
from timeoutmgr.errors import SchemaMissing
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.testing import Inbox

pytestmark = pytest.mark.installs

STORE = "timeoutmgr.persistence:sql/migrations"
HEAD = head(STORE)
OURS = HEAD.partition("since")[0]
NEXT = f"{int(OURS) + 1:04}"
REVISION = """\
import sqlalchemy as sa
from alembic import op
from timeoutmgr.database.upgrade import revision_attributes

revision, down_revision = "{revision}", "{ours}"
branch_labels = depends_on = None


def upgrade():
    given = revision_attributes()
    op.create_table(f"{{given['prefix']}}gadgets", sa.Column("id", sa.Integer, primary_key=True))
    for name in ("timeouts", "timeout_keys"):
        gadget = sa.Column("gadget", sa.String(20), server_default="none")
        op.add_column(f"{{given['prefix']}}{{name}}", gadget, schema=given["schema"])
"""


@pytest.fixture(params=["sqlite_url", "postgres_url", "mysql_url"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def upgraded(url: str, unique: str, tmp_path: Path) -> Callable[[str], None]:
    """A call that brings the tables to a revision of the next version, by its name."""

    def upgrade(revision: str) -> None:
        folder = tmp_path / "migrations"
        shutil.copytree(folder_of(STORE), folder)
        new = folder / "versions" / f"{revision}_gadgets.py"
        new.write_text(REVISION.format(revision=revision, ours=HEAD))
        with pytest.MonkeyPatch.context() as next_version:
            next_version.setattr("timeoutmgr.persistence.sql.persistence._MIGRATIONS", folder)
            with closing(SqlPersistence(url, prefix=f"{unique}_")) as persistence:
                persistence.install()
                persistence.check()

    return upgrade


def configured(url: str, prefix: str, inbox: Inbox, *, install: bool) -> EndpointConfiguration:
    config = EndpointConfiguration("sales")
    config.use_transport(url, prefix=f"{prefix}_")
    config.use_persistence(url, prefix=f"{prefix}_")
    config.install = install
    config.enable_feature(TimeoutManager())
    config.add_handler("Note", inbox)
    return config


def test_processes_of_both_versions_start_and_deliver_each_message_once(
    url: str, unique: str, upgraded: Callable[[str], None]
) -> None:
    inbox = Inbox()
    sent: set[str] = set()

    def send(endpoint: Endpoint) -> None:
        for _ in range(5):
            sent.add(endpoint.send_local("Note", 1, delay=0.2).message_id)

    with Endpoint(configured(url, unique, inbox, install=True)) as running:
        send(running)
        upgraded(f"{NEXT}since{OURS}")
        send(running)
        with (
            Endpoint(configured(url, unique, inbox, install=False)) as started,
            Endpoint(configured(url, unique, inbox, install=True)) as installing,
        ):
            send(started)
            send(installing)
            eventually(lambda: len(inbox.arrived) >= len(sent), "all have come")

    assert sorted(arrival.id for arrival in inbox.arrived) == sorted(sent)
    with closing(SqlPersistence(url, prefix=f"{unique}_")) as persistence:
        found = current(persistence.database, f"{unique}_timeouts_version", None)
    assert found == f"{NEXT}since{OURS}", "the older version has left the tables alone"


def test_the_version_before_starts_on_the_tables_of_ours_and_uses_them(
    url: str, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(SqlPersistence(url, prefix=f"{unique}_")) as persistence:
        persistence.install()
    folder = tmp_path / "before"
    shutil.copytree(folder_of(STORE), folder)
    next((folder / "versions").glob(f"{HEAD}_*")).unlink()
    monkeypatch.setattr("timeoutmgr.persistence.sql.persistence._MIGRATIONS", folder)
    inbox = Inbox()

    with Endpoint(configured(url, unique, inbox, install=True)) as started:
        sent = started.send_local("Note", 1, delay=0.2)
        eventually(lambda: len(inbox.arrived) == 1, "it has come")

    assert [arrival.id for arrival in inbox.arrived] == [sent.message_id]
    with closing(SqlPersistence(url, prefix=f"{unique}_")) as persistence:
        assert current(persistence.database, f"{unique}_timeouts_version", None) == HEAD


@pytest.mark.parametrize(
    "revision", [NEXT, f"{int(OURS) + 2:04}since{NEXT}"], ids=["plain", "later"]
)
def test_tables_that_serve_no_program_of_ours_are_refused(
    sqlite_url: str, tmp_path: Path, revision: str
) -> None:
    with closing(SqlPersistence(sqlite_url)) as persistence:
        persistence.install()
        _set_revision(persistence.database, revision)

        with pytest.raises(SchemaMissing, match="which is newer than this version"):
            persistence.check()


def _set_revision(database: Database, revision: str) -> None:
    with database.begin() as connection:
        connection.exec_driver_sql(
            f"UPDATE timeoutmgr_timeouts_version SET version_num = '{revision}'"
        )
