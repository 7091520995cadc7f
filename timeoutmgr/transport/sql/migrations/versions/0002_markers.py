"""The markers that name the store of an endpoint's queues."""

from sqlalchemy import Column, MetaData, Table

from timeoutmgr.database.texts import KeyText
from timeoutmgr.database.upgrade import create_missing, revision_attributes

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the table."""
    attributes = revision_attributes()
    markers = Table(
        f"{attributes['prefix']}queue_markers",
        MetaData(schema=attributes["schema"]),
        Column("endpoint", KeyText(250), primary_key=True),
        Column("marker", KeyText(64), nullable=False),
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )
    create_missing(markers)
