"""Queues, their messages, and the bindings of kombu's exchanges.

Every step can be run again: MySQL commits each DDL statement by itself.
"""

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, MetaData, Table, Text
from sqlalchemy.dialects import mysql

from timeoutmgr.database.texts import KeyText
from timeoutmgr.database.upgrade import create_missing, revision_attributes

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the three tables."""
    attributes = revision_attributes()
    prefix = attributes["prefix"]
    metadata = MetaData(schema=attributes["schema"])
    number = BigInteger().with_variant(Integer(), "sqlite")
    long_text = Text().with_variant(mysql.LONGTEXT(charset="utf8mb4"), "mysql", "mariadb")
    blob = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")

    queues = Table(
        f"{prefix}queues",
        metadata,
        Column("name", KeyText(250), primary_key=True),
        Column("dead_letter_to", KeyText(250)),
        Column("created", BigInteger(), nullable=False),
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )
    messages = Table(
        f"{prefix}queue_messages",
        metadata,
        Column("sequence", number, primary_key=True, autoincrement=True),
        Column("queue", KeyText(250), nullable=False),
        Column("message_id", KeyText(255), nullable=False),
        Column("headers", long_text, nullable=False),
        Column("body", blob, nullable=False),
        Column("content_type", KeyText(255), nullable=False),
        Column("content_encoding", KeyText(64), nullable=False),
        Column("enqueued", BigInteger(), nullable=False),
        Column("available_at", BigInteger(), nullable=False, server_default="0"),
        Column("priority", Integer(), nullable=False, server_default="0"),
        Column("delivery_count", Integer(), nullable=False, server_default="0"),
        Column("lease_owner", KeyText(64)),
        Column("lease_until", BigInteger(), nullable=False, server_default="0"),
        Column("properties", long_text),
        sqlite_autoincrement=True,
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )
    Index(f"{prefix}queue_order", messages.c.queue, messages.c.sequence)
    bindings = Table(
        f"{prefix}queue_bindings",
        metadata,
        Column("exchange", KeyText(250), primary_key=True),
        Column("routing_key", KeyText(250), primary_key=True),
        Column("queue", KeyText(250), primary_key=True),
        Column("kind", KeyText(16), nullable=False),
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )
    create_missing(queues, messages, bindings)
