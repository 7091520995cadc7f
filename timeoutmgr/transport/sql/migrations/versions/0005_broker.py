"""Queues with options: priority, lengths of life, limit, owners.

Neither index has an entry of a plain queue's message, but for MySQL, which has no partial index.
"""

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, Table, Text, literal_column

from timeoutmgr.database.indexes import create_index_patiently
from timeoutmgr.database.texts import KeyText
from timeoutmgr.database.upgrade import add_missing_columns, create_missing, revision_attributes

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the columns, the table of owners, and the indexes."""
    attributes = revision_attributes()
    prefix, metadata = attributes["prefix"], MetaData(schema=attributes["schema"])
    add_missing_columns(
        Table(f"{prefix}queues", metadata),
        Column("options", Text()),
        Column("expires_at", BigInteger()),
        Column("dropped", BigInteger(), nullable=False, server_default="0"),
    )
    owners = Table(
        f"{prefix}queue_owners",
        metadata,
        Column("queue", KeyText(250), primary_key=True),
        Column("owner", KeyText(64), primary_key=True),
        Column("consuming", Integer(), nullable=False),
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )
    create_missing(owners)
    _add_ranks_and_ends(prefix, metadata)


def _add_ranks_and_ends(prefix: str, metadata: MetaData) -> None:
    messages = Table(f"{prefix}queue_messages", metadata)
    discard_at = Column("discard_at", BigInteger())
    add_missing_columns(messages, discard_at)
    for column in (
        discard_at._copy(),
        Column("queue", KeyText(250)),
        Column("priority", Integer()),
        Column("sequence", BigInteger()),
    ):
        messages.append_column(column)
    columns = messages.c
    for name, keys, condition in (
        ("discard", [columns.discard_at], columns.discard_at.is_not(None)),
        (
            "priority",
            [columns.queue, columns.priority, columns.sequence],
            columns.priority < literal_column("0"),
        ),
    ):
        create_index_patiently(
            Index(
                f"{prefix}queue_{name}", *keys, postgresql_where=condition, sqlite_where=condition
            )
        )
