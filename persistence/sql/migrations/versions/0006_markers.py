"""The marker beside each endpoint, which the broker of its queues bears too."""

from sqlalchemy import Column, MetaData, SmallInteger, Table

from timeoutmgr.database.texts import LONG_TEXT, KeyText
from timeoutmgr.database.upgrade import add_missing_columns, revision_attributes

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the columns."""
    attributes = revision_attributes()
    add_missing_columns(
        Table(f"{attributes['prefix']}endpoints", MetaData(schema=attributes["schema"])),
        Column("marker", KeyText(64)),
        Column("broker", LONG_TEXT),
        Column("marker_confirmed", SmallInteger(), nullable=False, server_default="0"),
    )
