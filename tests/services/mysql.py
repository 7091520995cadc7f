"""MariaDB or MySQL for the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pymysql
from sqlalchemy import make_url

from tests.services.private import PrivateServer, made_once
from tests.services.processes import DidNotStart

APT = ["mariadb-server"]

_SOCKETS = ["/run/mysqld/mysqld.sock", "/tmp/mysql.sock"]


def candidates() -> list[str]:
    """Return the URLs where a local server would answer without a password."""
    sockets = [f"?unix_socket={path}" for path in _SOCKETS if Path(path).is_socket()]
    return [
        "mysql+pymysql://root@127.0.0.1:3306/",
        *(f"mysql+pymysql://root@localhost/{query}" for query in sockets),
    ]


def refusal(url: str) -> str | None:
    """Return why the server at *url* will not do, or None if it will."""
    try:
        connection = _connect(url)
    except pymysql.Error as error:
        return str(error.args[-1])
    connection.close()
    return None


def create(url: str, name: str) -> str:
    """Create the database *name* and return its URL."""
    execute(url, f"CREATE DATABASE `{name}`")
    # To get ready for TLS takes PyMySQL longer than most tests, again with each connection.
    more = {"charset": "utf8mb4", "ssl_disabled": "true"}
    made = make_url(url).set(database=name).update_query_dict(more)
    return made.render_as_string(hide_password=False)


def sweep(url: str, ours: Callable[[str], bool]) -> None:
    """Drop the databases that are *ours*."""
    for (name,) in execute(url, "SHOW DATABASES"):
        if ours(name):
            # A killed client's open transaction would hold the drop up.
            for (thread,) in execute(
                url, f"SELECT id FROM information_schema.processlist WHERE db = '{name}'"
            ):
                execute(url, f"KILL {thread}", may_be_dead=True)
            execute(url, f"DROP DATABASE IF EXISTS `{name}`")


def execute(url: str, statement: str, *, may_be_dead: bool = False) -> list[tuple[Any, ...]]:
    """Execute *statement* and return its rows; with *may_be_dead* also for a thread that ended."""
    connection = _connect(url)
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())
    except pymysql.Error as error:
        if may_be_dead and error.args[0] == 1094:  # unknown thread id
            return []
        raise
    finally:
        connection.close()


def _connect(url: str) -> pymysql.Connection[Any]:
    parts = make_url(url)
    options: dict[str, Any] = {}
    if "unix_socket" in parts.query:
        options["unix_socket"] = parts.query["unix_socket"]
    return pymysql.connect(
        host=parts.host or "localhost",
        port=parts.port or 3306,
        user=parts.username,
        password=str(parts.password or ""),
        connect_timeout=5,
        autocommit=True,
        **options,
    )


class PrivateMariaDB(PrivateServer):
    """A MariaDB server of our own."""

    @classmethod
    def missing_programs(cls) -> list[str]:
        """Return the programs that are needed and not installed."""
        return [name for name in ("mariadb-install-db", "mariadbd") if _program(name) is None]

    @property
    def url(self) -> str:
        """Where it answers once it is started."""
        return f"mysql+pymysql://root@127.0.0.1:{self.port}/"

    def _prepare(self) -> None:
        made_once("mariadb", self.folder / "data", self._make_data)

    def _make_data(self) -> None:
        made = subprocess.run(
            [
                str(_program("mariadb-install-db")),
                "--no-defaults",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                f"--datadir={self.folder / 'data'}",
                f"--tmpdir={self._scratch()}",
                *self._as_root(),
            ],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise DidNotStart(f"mariadb-install-db: {made.stderr[-500:]}")

    def _command(self) -> list[str]:
        return [
            str(_program("mariadbd")),
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            f"--tmpdir={self._scratch()}",
            f"--socket={self.folder / 'socket'}",
            f"--pid-file={self.folder / 'pid'}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            "--max-connections=300",
            *self._as_root(),
        ]

    def _scratch(self) -> Path:
        """Return its own place for temporary tables: a server that starts clears all it finds."""
        scratch = self.folder / "tmp"
        scratch.mkdir(exist_ok=True)
        return scratch

    def _as_root(self) -> list[str]:
        return ["--user=root"] if os.geteuid() == 0 else []  # else it refuses

    def _answers(self) -> bool:
        return refusal(self.url) is None


def _program(name: str) -> str | None:
    """Return the path of *name*; Debian keeps servers off the path of users."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/usr/libexec")
