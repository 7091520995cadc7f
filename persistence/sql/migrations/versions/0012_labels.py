"""The table of labels: rows by which pending timeouts are found, in the order of their keys.

Timeouts that are there have no labels.
"""

from typing import Any, Final

from sqlalchemy import BigInteger, Column, MetaData, Table

from timeoutmgr.database.texts import KeyText
from timeoutmgr.database.upgrade import create_missing, revision_attributes

revision = "0012"
down_revision = "0011"

_WORD: Final = KeyText(255)
_CLUSTERED: Final[dict[str, Any]] = {
    "mysql_engine": "InnoDB",
    "mariadb_engine": "InnoDB",
    "sqlite_with_rowid": False,
}


def upgrade() -> None:
    """Create the table; its primary key is the only index."""
    attributes = revision_attributes()
    create_missing(
        Table(
            f"{attributes['prefix']}timeout_labels",
            MetaData(schema=attributes["schema"]),
            Column("endpoint", _WORD, primary_key=True),
            Column("label", _WORD, primary_key=True),
            Column("due", BigInteger(), primary_key=True, autoincrement=False),
            Column("id", _WORD, primary_key=True),
            **_CLUSTERED,
        )
    )
