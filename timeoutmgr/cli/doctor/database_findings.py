"""Findings that several checks of the doctor report."""

from collections.abc import Iterator
from typing import Final

from sqlalchemy import text

from timeoutmgr.contracts import SharedDatabase
from timeoutmgr.contracts.findings import Finding, Level
from timeoutmgr.database import Database


def ok(check: str, text: str) -> Finding:
    """Return a finding of a check that passed."""
    return Finding(level=Level.OK, check=check, text=text)


def no_file(database: SharedDatabase | None) -> Finding | None:
    """Return a finding if *database* is a file that does not exist; None otherwise.

    A connection would create the file, and the doctor changes nothing.
    """
    if database is None or database.path is None or database.path.exists():
        return None
    return Finding(
        level=Level.FAIL,
        check="file",
        text=f"{database.path} does not exist",
        remedy="run `timeoutmgr install`",
    )


_COMPRESSION: Final = "wal_compression"


def server_settings(database: Database) -> Iterator[Finding]:
    """Yield settings that would make the server faster."""
    with database.read() as connection:
        found = connection.execute(text(f"SHOW {_COMPRESSION}")).scalar_one()
    if found == "off":
        yield ok(
            _COMPRESSION,
            "off; with millions pending, lz4 makes what checkpoints add to the log a tenth",
        )
