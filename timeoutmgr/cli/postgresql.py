"""How a PostgreSQL server is set, as far as promises or speed hang on it."""

from collections.abc import Iterator
from typing import Final

from sqlalchemy import text

from timeoutmgr.cli.findings import Finding, Level
from timeoutmgr.database import Database

_PROMISES: Final = {
    "fsync": "a power cut may lose, or tear, what was stored",
    "full_page_writes": "a power cut may tear what was stored",
    "synchronous_commit": "a crash of the server may lose the last timeouts that were accepted",
}
_COMPRESSION: Final = "wal_compression"


def server_settings(database: Database) -> Iterator[Finding]:
    """Yield what is doubtful about the server's settings; one line if nothing is."""
    with database.read() as connection:
        found = {
            name: str(connection.execute(text(f"SHOW {name}")).scalar_one())
            for name in (*_PROMISES, _COMPRESSION)
        }
    doubtful = [name for name in _PROMISES if found[name] == "off"]
    for name in doubtful:
        yield Finding(
            level=Level.WARN,
            check=name,
            text=f"off: {_PROMISES[name]}",
            remedy=f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf()",
        )
    if found[_COMPRESSION] == "off":
        yield Finding(
            level=Level.OK,
            check=_COMPRESSION,
            text="off; with millions pending, lz4 makes what checkpoints add to the log a tenth",
        )
    if not doubtful:
        yield Finding(level=Level.OK, check="durability", text="fsync and commits are synchronous")
