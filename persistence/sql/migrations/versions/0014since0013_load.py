"""Background counts of the pending timeouts, and how far the passes are that count them."""

from typing import Any, Final

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, Table

from timeoutmgr.database.texts import LONG_TEXT, KeyText
from timeoutmgr.database.upgrade import create_missing, revision_attributes

revision = "0014since0013"
down_revision = "0013"

_WORD: Final = KeyText(255)
_INNODB: Final[dict[str, Any]] = {"mysql_engine": "InnoDB", "mariadb_engine": "InnoDB"}


def upgrade() -> None:
    """Create the tables."""
    attributes = revision_attributes()
    prefix, metadata = attributes["prefix"], MetaData(schema=attributes["schema"])
    create_missing(_load(metadata, prefix), _load_passes(metadata, prefix))


def _load(metadata: MetaData, prefix: str) -> Table:
    load = Table(
        f"{prefix}load",
        metadata,
        Column("endpoint", _WORD, primary_key=True),
        Column("destination", _WORD, primary_key=True),
        Column("bucket", BigInteger(), primary_key=True, autoincrement=False),
        Column("width", BigInteger(), nullable=False),
        Column("count", BigInteger(), nullable=False),
        Column("as_of", BigInteger(), nullable=False),
        Column("destinations", Integer()),
        **_INNODB,
    )
    Index(f"{prefix}load_buckets", load.c.endpoint, load.c.bucket)
    return load


def _load_passes(metadata: MetaData, prefix: str) -> Table:
    return Table(
        f"{prefix}load_passes",
        metadata,
        Column("endpoint", _WORD, primary_key=True),
        Column("width", BigInteger(), primary_key=True, autoincrement=False),
        Column("asked", BigInteger(), nullable=False),
        Column("asked_by_destination", BigInteger()),
        Column("ended", BigInteger()),
        Column("since", BigInteger()),
        Column("until", BigInteger()),
        Column("due", BigInteger()),
        Column("id", _WORD),
        Column("tally", LONG_TEXT),
        **_INNODB,
    )
