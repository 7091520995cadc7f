"""The channel of the final acknowledgement that settled a copy: the path by which it came."""

from sqlalchemy import Column, MetaData, Table, Text

from timeoutmgr.database.upgrade import add_missing_columns, revision_attributes

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the column; it is empty in existing rows, whose channel is unknown."""
    attributes = revision_attributes()
    metadata = MetaData(schema=attributes["schema"])
    for name in ("dead_letters", "awaiting_final_ack", "journal"):
        add_missing_columns(Table(attributes["prefix"] + name, metadata), Column("channel", Text()))
