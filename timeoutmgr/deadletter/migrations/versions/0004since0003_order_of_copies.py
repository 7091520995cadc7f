"""Indexes in the order of the lists of a node's own journal, and of awaiting copies."""

from sqlalchemy import BigInteger, Column, Index, MetaData, Table

from timeoutmgr.database.indexes import create_index_patiently
from timeoutmgr.database.texts import KeyText
from timeoutmgr.database.upgrade import revision_attributes

revision = "0004since0003"
down_revision = "0003"


def upgrade() -> None:
    """Create the indexes."""
    attributes = revision_attributes()
    prefix, metadata = attributes["prefix"], MetaData(schema=attributes["schema"])
    for name, numbers in (("awaiting_final_ack", ["kept"]), ("journal", ["target", "kept"])):
        columns = (Column(each, BigInteger()) for each in numbers)
        table = Table(prefix + name, metadata, Column("node", KeyText(64)), *columns)
        create_index_patiently(Index(f"{table.name}_kept", *table.c))
