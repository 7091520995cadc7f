"""The memory of cleared sagas, and the place in the manager's queue of a saga's timeouts.

Rows that are there have no place: the time of sending decides whether a clear reaches them.
"""

from typing import Any, Final

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, Table, Text

from timeoutmgr.database.texts import KeyText
from timeoutmgr.database.upgrade import add_missing_columns, create_missing, revision_attributes

revision = "0011"
down_revision = "0010"

_WORD: Final = KeyText(255)
_INNODB: Final[dict[str, Any]] = {"mysql_engine": "InnoDB", "mariadb_engine": "InnoDB"}


def upgrade() -> None:
    """Create the table with its index, and add the column."""
    attributes = revision_attributes()
    prefix, metadata = attributes["prefix"], MetaData(schema=attributes["schema"])
    sagas = Table(
        f"{prefix}cleared_sagas",
        metadata,
        Column("endpoint", _WORD, primary_key=True),
        Column("saga_id", _WORD, primary_key=True),
        Column("order_id", Text()),
        Column("cleared_at", BigInteger()),
        Column("sent", BigInteger()),
        Column("receiver", Integer()),
        Column("kept", Text()),
        Column("channel", Text()),
        **_INNODB,
    )
    Index(f"{prefix}cleared_sagas_age", sagas.c.endpoint, sagas.c.cleared_at)
    create_missing(sagas)
    add_missing_columns(Table(f"{prefix}timeouts", metadata), Column("place", BigInteger()))
