"""A private PostgreSQL server: only the benchmark writes its log and executes statements."""

import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.services.postgres import PrivatePostgres, create


class Measured(PrivatePostgres):
    """A server that syncs like a real server, but makes no automatic checkpoints."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        self._settings = {
            "fsync": "on",
            "max_wal_size": "64GB",
            "checkpoint_timeout": "1d",
            "shared_buffers": "512MB",
            **settings,
        }
        super().__init__(folder)

    def _command(self) -> list[str]:
        return [*super()._command(), *(f"--{name}={text}" for name, text in self._settings.items())]

    @property
    def pid(self) -> int:
        """The server's first process, the ancestor of all its processes."""
        return int((self.folder / "data" / "postmaster.pid").read_text().split()[0])

    def create(self, name: str) -> str:
        """Create a database and return its URL."""
        return create(self.url, name)

    def statements(self) -> list[str]:
        """Return the statements that were logged so far; needs ``log_statement=all``."""
        marks = ("statement: ", "execute ")
        lines = (self.folder / "output.txt").read_text(errors="replace").splitlines()
        return [line for line in lines if any(marker in line for marker in marks)]


@contextmanager
def private_postgres(**settings: str) -> Iterator[Measured]:
    """Start a server with *settings*; remove it with all its files at the end."""
    folder = Path(tempfile.gettempdir(), f"tmbench-{secrets.token_hex(4)}")
    server = Measured(folder, settings)
    try:
        server.start()
        yield server
    finally:
        server.remove()
