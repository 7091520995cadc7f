"""The ledger of bulk work: runs and their batches.

Every step can be run again: MySQL commits each DDL statement by itself.
"""

from sqlalchemy import BigInteger, Column, Integer, MetaData, Table
from sqlalchemy.dialects import mysql

from timeoutmgr.database.texts import LONG_TEXT, KeyText
from timeoutmgr.database.upgrade import add_missing_columns, revision_attributes

revision = "0003"
down_revision = "0002"

_LONG = LONG_TEXT.with_variant(mysql.LONGTEXT(charset="utf8mb4"), "mysql", "mariadb")


def upgrade() -> None:
    """Add the columns."""
    attributes = revision_attributes()
    prefix, metadata = attributes["prefix"], MetaData(schema=attributes["schema"])
    add_missing_columns(
        Table(f"{prefix}runs", metadata),
        Column("endpoint", KeyText(255)),
        Column("runner", KeyText(255)),
        Column("ended", BigInteger()),
        Column("report", _LONG),
    )
    add_missing_columns(
        Table(f"{prefix}batches", metadata),
        Column("from_due", BigInteger()),
        Column("from_id", KeyText(255)),
        Column("to_due", BigInteger()),
        Column("to_id", KeyText(255)),
        *(
            Column(name, Integer(), nullable=False, server_default="0")
            for name in ("taken", "arrived", "known", "returned", "repeated")
        ),
    )
