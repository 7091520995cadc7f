"""First attempts of delayed messages that could not be sent: their transit began then."""

from sqlalchemy import BigInteger, Column, MetaData, Table

from timeoutmgr.database.texts import KeyText
from timeoutmgr.database.upgrade import create_missing, revision_attributes

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create the table."""
    attributes = revision_attributes()
    attempts = Table(
        f"{attributes['prefix']}first_attempts",
        MetaData(schema=attributes["schema"]),
        Column("node", KeyText(64), primary_key=True),
        Column("message_id", KeyText(255), primary_key=True),
        Column("destination", KeyText(250), primary_key=True),
        Column("due", BigInteger(), nullable=False),
        Column("at", BigInteger(), nullable=False),
        Column("forget_at", BigInteger(), nullable=False),
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )
    create_missing(attempts)
