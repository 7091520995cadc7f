"""What of a PostgreSQL server's settings speed hangs on."""

from collections.abc import Iterator
from typing import Final

from sqlalchemy import text

from timeoutmgr.cli.findings import Finding, ok
from timeoutmgr.database import Database

_COMPRESSION: Final = "wal_compression"


def server_settings(database: Database) -> Iterator[Finding]:
    """Yield what would make the server faster."""
    with database.read() as connection:
        found = connection.execute(text(f"SHOW {_COMPRESSION}")).scalar_one()
    if found == "off":
        yield ok(
            _COMPRESSION,
            "off; with millions pending, lz4 makes what checkpoints add to the log a tenth",
        )
