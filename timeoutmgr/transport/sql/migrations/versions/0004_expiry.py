"""Messages with an end: the instant at which a sweep takes them out of their queue.

The index has no entry of a message without an end, but for MySQL, which has no partial index: there
the entry of a message without an end is the last of its kind, and cost nothing that was measured.
"""

from sqlalchemy import BigInteger, Column, Index, MetaData, Table

from timeoutmgr.database.indexes import create_index_patiently
from timeoutmgr.database.upgrade import add_missing_columns, revision_attributes

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the column, which is empty in all rows that are there, and its index."""
    attributes = revision_attributes()
    prefix = attributes["prefix"]
    messages = Table(f"{prefix}queue_messages", MetaData(schema=attributes["schema"]))
    expires_at = Column("expires_at", BigInteger())
    add_missing_columns(messages, expires_at)
    messages.append_column(expires_at._copy())
    some = messages.c.expires_at.is_not(None)
    create_index_patiently(
        Index(
            f"{prefix}queue_expiry", messages.c.expires_at, postgresql_where=some, sqlite_where=some
        )
    )
