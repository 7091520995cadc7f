"""The delayed messages of one endpoint, in the order in which they are to be fetched.

Every step can be run again: MySQL commits each DDL statement by itself.
"""

from typing import Any, Final

from alembic import op
from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, MetaData, Table
from sqlalchemy.dialects import mysql

from timeoutmgr.database.texts import LONG_TEXT, KeyText
from timeoutmgr.database.upgrade import create_missing, revision_attributes

revision = "0001"
down_revision = None

_WORD: Final[KeyText] = KeyText(255)
_LONG = LONG_TEXT.with_variant(mysql.LONGTEXT(charset="utf8mb4"), "mysql", "mariadb")
_BLOB = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
_CLUSTERED: Final[dict[str, Any]] = {
    "mysql_engine": "InnoDB",
    "mariadb_engine": "InnoDB",
    "sqlite_with_rowid": False,
}


def upgrade() -> None:
    """Create the table."""
    attributes = revision_attributes()
    name = attributes["table"]
    table = Table(
        name,
        MetaData(schema=attributes["schema"]),
        Column("next_try", BigInteger(), primary_key=True, autoincrement=False),
        Column("id", _WORD, primary_key=True),
        Column("due", BigInteger(), nullable=False),
        Column("destination", _WORD, nullable=False),
        Column("saga_id", _WORD),
        Column("message_id", _WORD, nullable=False),
        Column("headers", _LONG, nullable=False),
        Column("body", _BLOB, nullable=False),
        Column("content_type", _WORD, nullable=False),
        Column("content_encoding", _WORD, nullable=False),
        Column("created", BigInteger(), nullable=False),
        Column("attempts", Integer(), nullable=False),
        # Where there are no row locks a row in hand is marked, see ``FencingToken``.
        Column("claimed_by", _WORD),
        Column("claimed_until", BigInteger(), nullable=False, server_default="0"),
        **_CLUSTERED,
    )
    Index(f"{name}.id", table.c.id, unique=True)
    if op.get_context().dialect.name == "sqlite":
        claimed = table.c.claimed_by.is_not(None)
        Index(f"{name}.claims", table.c.claimed_by, sqlite_where=claimed)
    create_missing(table)
