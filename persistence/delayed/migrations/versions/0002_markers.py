"""The marker of the endpoint, which the broker of its queues bears too."""

from sqlalchemy import Column, MetaData, SmallInteger, Table

from timeoutmgr.database.texts import LONG_TEXT, KeyText
from timeoutmgr.database.upgrade import create_missing, revision_attributes

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the table."""
    attributes = revision_attributes()
    create_missing(
        Table(
            f"{attributes['table']}.marker",
            MetaData(schema=attributes["schema"]),
            Column("endpoint", KeyText(255), primary_key=True),
            Column("marker", KeyText(64)),
            Column("broker", LONG_TEXT),
            Column("marker_confirmed", SmallInteger(), nullable=False, server_default="0"),
            mysql_engine="InnoDB",
            mariadb_engine="InnoDB",
        )
    )
