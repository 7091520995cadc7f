"""The channel of each event in the history: by which way the order came that caused it."""

from sqlalchemy import Column, MetaData, Table

from timeoutmgr.database.texts import LONG_TEXT
from timeoutmgr.database.upgrade import add_missing_columns, revision_attributes

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add the column; it is empty in the rows that are there, whose channel is not known."""
    attributes = revision_attributes()
    add_missing_columns(
        Table(f"{attributes['prefix']}timeout_history", MetaData(schema=attributes["schema"])),
        Column("channel", LONG_TEXT),
    )
