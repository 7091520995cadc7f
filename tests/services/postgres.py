"""PostgreSQL for the tests."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy import make_url

from tests.services.private import PrivateServer, made_once
from tests.services.processes import DidNotStart

APT = ["postgresql"]


def candidates() -> list[str]:
    """Return the URLs where a local server would answer without a password."""
    users = dict.fromkeys(["postgres", getpass.getuser(), "root"])
    places = ["127.0.0.1:5432/postgres", "/postgres?host=/var/run/postgresql"]
    return [f"postgresql+psycopg://{user}@{place}" for place in places for user in users]


def refusal(url: str) -> str | None:
    """Return why the server at *url* will not do, or None if it will."""
    try:
        with _connect(url) as connection:
            row = connection.execute(
                "SELECT rolcreatedb OR rolsuper FROM pg_roles WHERE rolname = current_user"
            ).fetchone()
    except psycopg.Error as error:
        return " ".join(str(error).split())
    return None if row is not None and row[0] else "its user may not create databases"


def create(url: str, name: str) -> str:
    """Create the database *name* and return its URL."""
    with _connect(url) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return make_url(url).set(database=name).render_as_string(hide_password=False)


def sweep(url: str, ours: Callable[[str], bool]) -> None:
    """Drop the databases that are *ours*, with all their connections."""
    with _connect(url) as connection:
        for (name,) in connection.execute("SELECT datname FROM pg_database").fetchall():
            if ours(name):
                drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
                connection.execute(drop.format(sql.Identifier(name)))


def _connect(url: str) -> psycopg.Connection[tuple[Any, ...]]:
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg.connect(plain, autocommit=True, connect_timeout=5)


class PrivatePostgres(PrivateServer):
    """A PostgreSQL cluster of our own."""

    ask_to_stop = signal.SIGINT  # "fast": SIGTERM would wait for every client to leave

    @classmethod
    def missing_programs(cls) -> list[str]:
        """Return the programs that are needed and not installed."""
        return [name for name in ("initdb", "postgres") if _program(name) is None]

    @property
    def url(self) -> str:
        """Where it answers once it is started."""
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/postgres"

    def _user(self) -> str | None:
        return "postgres" if os.geteuid() == 0 else None  # it refuses to run as root

    def _prepare(self) -> None:
        def make() -> None:
            self._make_data("initdb", "-A", "trust", "-U", "postgres")

        self._own(self.folder)
        made_once("postgres", self.folder / "data", make)

    def _make_data(self, program: str, *arguments: str) -> None:
        user = self._user()
        self._own(self.folder)
        made = subprocess.run(
            [str(_program(program)), "-D", "data", "--no-sync", *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
        if made.returncode:
            raise DidNotStart(f"{program}: {made.stderr[-500:]}")

    def _own(self, path: Path) -> None:
        """Give *path* to the user of the server."""
        user = self._user()
        if user is not None:
            shutil.chown(path, user, user)

    def _command(self) -> list[str]:
        return [
            str(_program("postgres")),
            *("-D", "data", "-p", str(self.port), "-h", "127.0.0.1", "-k", str(self.folder)),
            *("-c", "max_connections=200"),
        ]

    def _answers(self) -> bool:
        return refusal(self.url) is None


class PrivateRecovery(PrivatePostgres):
    """A base backup of a *primary*, and the archive of what the primary writes from now on."""

    def __init__(self, folder: Path, primary: PrivatePostgres) -> None:
        self.primary = primary
        super().__init__(folder)

    def recover(self, at: datetime) -> None:
        """Kill the primary; start as of the instant *at*, which a later commit must follow."""
        self._archive_all()
        self.primary.kill()
        data = self.folder / "data"
        with (data / "postgresql.auto.conf").open("a") as settings:
            settings.write(
                f"archive_mode = off\nrestore_command = 'cp {self.folder}/wal/%f %p'\n"
                f"recovery_target_time = '{at.isoformat()}'\nrecovery_target_action = promote\n"
            )
        signal_file = data / "recovery.signal"
        signal_file.touch()
        self._own(signal_file)
        self.start()

    def _prepare(self) -> None:
        archive = self.folder / "wal"
        archive.mkdir()
        self._own(archive)
        self._own(self.folder)
        with _connect(self.primary.url) as connection:
            connection.execute("ALTER SYSTEM SET archive_mode = on")
            connection.execute(f"ALTER SYSTEM SET archive_command = 'cp %p {archive}/%f'")
        self.primary.stop()
        self.primary.start()
        source = f"host=127.0.0.1 port={self.primary.port} user=postgres"
        self._make_data("pg_basebackup", "-X", "stream", "-c", "fast", "-d", source)

    def _archive_all(self) -> None:
        """Return when all that the primary has written is in the archive."""
        with _connect(self.primary.url) as connection:
            [last] = connection.execute("SELECT pg_walfile_name(pg_switch_wal())").fetchone() or [
                ""
            ]
            while not connection.execute(
                "SELECT 1 FROM pg_stat_archiver WHERE last_archived_wal >= %s", [last]
            ).fetchone():
                connection.execute("SELECT pg_sleep(0.05)")

    def _answers(self) -> bool:
        if not super()._answers():
            return False
        with _connect(self.url) as connection:
            row = connection.execute("SELECT pg_is_in_recovery()").fetchone()
        return row == (False,)


class PrivateStandby(PrivatePostgres):
    """A hot standby of a *primary* that runs; it begins as its base backup."""

    def __init__(self, folder: Path, primary: PrivatePostgres) -> None:
        self.primary = primary
        super().__init__(folder)

    def promote(self) -> None:
        """Make it a primary, and return when it is one."""
        with _connect(self.url) as connection:
            connection.execute("SELECT pg_promote()")

    def require(self) -> None:
        """Have each commit of the primary wait until this standby has it on its disk."""
        with _connect(self.primary.url) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("SELECT pg_reload_conf()")
            while not connection.execute(
                "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
            ).fetchone():
                connection.execute("SELECT pg_sleep(0.05)")

    def catch_up(self) -> None:
        """Return when it has all that the primary has committed."""
        with _connect(self.primary.url) as connection:
            while not connection.execute(
                "SELECT 1 FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_lsn()"
            ).fetchone():
                connection.execute("SELECT pg_sleep(0.05)")

    def _prepare(self) -> None:
        source = f"host=127.0.0.1 port={self.primary.port} user=postgres"
        self._make_data("pg_basebackup", "-R", "-X", "stream", "-c", "fast", "-d", source)


def _program(name: str) -> Path | None:
    """Return the newest *name*; Debian keeps servers off the path."""
    versions = sorted(
        Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[4])
    )
    if versions:
        return versions[-1]
    found = shutil.which(name)
    return None if found is None else Path(found)
