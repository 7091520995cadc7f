"""The table of recurring timeouts: one row for each schedule of an endpoint."""

from typing import Any, Final

from sqlalchemy import BigInteger, Column, MetaData, SmallInteger, Table

from timeoutmgr.database.texts import LONG_TEXT, KeyText
from timeoutmgr.database.upgrade import create_missing, revision_attributes

revision = "0010"
down_revision = "0009"

_WORD: Final = KeyText(255)
_INNODB: Final[dict[str, Any]] = {"mysql_engine": "InnoDB", "mariadb_engine": "InnoDB"}


def upgrade() -> None:
    """Create the table."""
    attributes = revision_attributes()
    create_missing(
        Table(
            f"{attributes['prefix']}recurring",
            MetaData(schema=attributes["schema"]),
            Column("endpoint", _WORD, primary_key=True),
            Column("name", _WORD, primary_key=True),
            Column("every", LONG_TEXT, nullable=False),
            Column("configured_at", BigInteger(), nullable=False),
            Column("done_until", BigInteger()),
            Column("run_due", BigInteger()),
            Column("run_id", _WORD),
            Column("is_paused", SmallInteger(), nullable=False),
            **_INNODB,
        )
    )
