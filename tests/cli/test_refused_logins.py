"""A database that refuses user, password or name: a wrong configuration, which no wait mends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import psycopg
import pytest
from click.testing import CliRunner, Result
from sqlalchemy.engine import URL, make_url

from tests.services.private import PrivateServer
from timeoutmgr.cli.main import cli

SECRET: Final = "c4n4ry-s3cret"
HBA: Final = """
host all clerk 127.0.0.1/32 scram-sha-256
host all guest 127.0.0.1/32 reject
host all all 127.0.0.1/32 trust
"""


@pytest.fixture
def guarded(private_server: Callable[[str], PrivateServer]) -> URL:
    """The URL of a PostgreSQL that asks *clerk* for a password and lets *guest* in never."""
    server = private_server("postgres")
    (server.folder / "data" / "pg_hba.conf").write_text(HBA)
    url = make_url(server.url)
    plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute("CREATE ROLE clerk LOGIN PASSWORD 'right'")
        connection.execute("CREATE ROLE guest LOGIN PASSWORD 'right'")
        connection.execute("CREATE ROLE visitor LOGIN")
        connection.execute("SELECT pg_reload_conf()")
    return url


def run(folder: Path, url: URL, word: str) -> Result:
    """Run a command of an endpoint that has everything in the database at *url*."""
    shown = url.render_as_string(hide_password=False)
    settings = folder / "sales.toml"
    settings.write_text(
        f'endpoint = "sales"\ntransport = "{shown}"\npersistence = "{shown}"\n'
        'features = ["timeout-manager"]\n'
    )
    return CliRunner().invoke(cli, ["--config", str(settings), word])


def assert_refused(ended: Result) -> None:
    assert ended.exit_code == 4, ended.output
    assert "correct user, password and database in its URL" in ended.output
    assert SECRET not in ended.output


@pytest.mark.parametrize("user", ["clerk", "guest"])
@pytest.mark.parametrize("word", ["install", "list"])
def test_a_password_that_postgresql_refuses_ends_a_command_as_configuration(
    guarded: URL, tmp_path: Path, user: str, word: str
) -> None:
    assert_refused(run(tmp_path, guarded.set(username=user, password=SECRET), word))


@pytest.mark.parametrize("word", ["install", "list", "run"])
def test_a_user_without_rights_ends_a_command_as_configuration(
    guarded: URL, tmp_path: Path, word: str
) -> None:
    if word != "install":
        assert run(tmp_path, guarded, "install").exit_code == 0

    ended = run(tmp_path, guarded.set(username="visitor"), word)

    assert ended.exit_code == 4, ended.output
    assert "permission denied for" in ended.output


@pytest.mark.parametrize("service", ["postgres", "mysql"])
def test_an_unknown_user_ends_a_command_as_configuration(
    request: pytest.FixtureRequest, tmp_path: Path, service: str
) -> None:
    right = make_url(request.getfixturevalue(f"{service}_url"))

    assert_refused(run(tmp_path, right.set(username="nobody", password=SECRET), "list"))


@pytest.mark.parametrize("service", ["postgres", "mysql"])
def test_an_unknown_database_ends_a_command_as_configuration(
    request: pytest.FixtureRequest, tmp_path: Path, service: str
) -> None:
    right = make_url(request.getfixturevalue(f"{service}_url"))

    assert_refused(run(tmp_path, right.set(database="nosuch"), "list"))


@pytest.mark.parametrize("scheme", ["postgresql+psycopg", "mysql+pymysql"])
def test_a_database_that_is_away_ends_a_command_as_unavailable(tmp_path: Path, scheme: str) -> None:
    ended = run(tmp_path, make_url(f"{scheme}://clerk:{SECRET}@127.0.0.1:1/none"), "list")

    assert ended.exit_code == 5
    assert "cannot be used now" in ended.output
    assert SECRET not in ended.output
