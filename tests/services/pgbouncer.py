"""PgBouncer for the tests: a pooler of our own before a PostgreSQL server."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from sqlalchemy import make_url

from tests.services import postgres
from tests.services.private import PrivateServer

APT = ["pgbouncer"]

_SETTINGS = """\
[databases]
* = host={host} port={port} user={user} {password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
auth_type = any
unix_socket_dir =
pool_mode = {mode}
default_pool_size = 20
"""


class PgBouncer(PrivateServer):
    """A PgBouncer before the database of *upstream*, which shares sessions by *mode*."""

    def __init__(self, folder: Path, upstream: str, mode: str) -> None:
        self._upstream = make_url(upstream)
        self._mode = mode
        super().__init__(folder)

    @classmethod
    def missing_programs(cls) -> list[str]:
        """Return the programs that are needed and not installed."""
        return [] if _program() else ["pgbouncer"]

    @property
    def url(self) -> str:
        """Where it answers once it is started: the database of the server behind it."""
        at = self._upstream.set(host="127.0.0.1", port=self.port, query={})
        return at.render_as_string(hide_password=False)

    def _user(self) -> str | None:
        return "postgres" if os.geteuid() == 0 else None  # it refuses to run as root

    def _prepare(self) -> None:
        password = self._upstream.password
        text = _SETTINGS.format(
            host=self._upstream.query.get("host") or self._upstream.host or "127.0.0.1",
            port=self._upstream.port or 5432,
            user=self._upstream.username,
            password=f"password={password}" if password else "",
            own_port=self.port,
            mode=self._mode,
        )
        (self.folder / "pgbouncer.ini").write_text(text)

    def _command(self) -> list[str]:
        return [str(_program()), "pgbouncer.ini"]

    def _answers(self) -> bool:
        return postgres.refusal(self.url) is None


def _program() -> str | None:
    """Return the path of pgbouncer; Debian keeps it off the path of users."""
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
