"""The tables of the SQL queue, for any schema and prefix."""

from dataclasses import dataclass
from typing import Final

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, MetaData, Table, Text
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeEngine

from timeoutmgr.database.texts import KeyText

QUEUE_NAME_LENGTH: Final = 250
MESSAGE_ID_LENGTH: Final = 255
"""Characters of a message id that the table keeps; longer ids are refused at the door."""
CONTENT_TYPE_LENGTH: Final = 255
CONTENT_ENCODING_LENGTH: Final = 64


@dataclass(frozen=True, slots=True)
class QueueTables:
    """The tables of one schema and prefix."""

    metadata: MetaData
    queues: Table
    messages: Table
    bindings: Table
    markers: Table


def tables(schema: str | None, prefix: str) -> QueueTables:
    """Return the tables as they stand after the newest revision."""
    metadata = MetaData(schema=schema)
    # An instant or the order of arrival. SQLite only numbers an INTEGER key by itself.
    number: TypeEngine[int] = BigInteger().with_variant(Integer(), "sqlite")
    long_text: TypeEngine[str] = Text().with_variant(
        mysql.LONGTEXT(charset="utf8mb4"), "mysql", "mariadb"
    )
    blob: TypeEngine[bytes] = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
    name = KeyText(QUEUE_NAME_LENGTH)
    queues = Table(
        f"{prefix}queues",
        metadata,
        Column("name", name, primary_key=True),
        Column("dead_letter_to", name),
        Column("created", BigInteger(), nullable=False),
    )
    messages = Table(
        f"{prefix}queue_messages",
        metadata,
        Column("sequence", number, primary_key=True, autoincrement=True),
        Column("queue", name, nullable=False),
        Column("message_id", KeyText(MESSAGE_ID_LENGTH), nullable=False),
        Column("headers", long_text, nullable=False),
        Column("body", blob, nullable=False),
        Column("content_type", KeyText(CONTENT_TYPE_LENGTH), nullable=False),
        Column("content_encoding", KeyText(CONTENT_ENCODING_LENGTH), nullable=False),
        Column("enqueued", BigInteger(), nullable=False),
        Column("available_at", BigInteger(), nullable=False, server_default="0"),
        Column("priority", Integer(), nullable=False, server_default="0"),
        Column("delivery_count", Integer(), nullable=False, server_default="0"),
        Column("lease_owner", KeyText(64)),
        Column("lease_until", BigInteger(), nullable=False, server_default="0"),
        # Kombu's further properties of a message that kombu sent.
        Column("properties", long_text),
        # AUTOINCREMENT: a number is never given twice, so that an old acknowledgement can never
        # meet a new message.
        sqlite_autoincrement=True,
    )
    Index(f"{prefix}queue_order", messages.c.queue, messages.c.sequence)
    bindings = Table(
        f"{prefix}queue_bindings",
        metadata,
        Column("exchange", name, primary_key=True),
        Column("routing_key", name, primary_key=True),
        Column("queue", name, primary_key=True),
        Column("kind", KeyText(16), nullable=False),
    )
    markers = Table(
        f"{prefix}queue_markers",
        metadata,
        Column("endpoint", name, primary_key=True),
        Column("marker", KeyText(64), nullable=False),
    )
    return QueueTables(metadata, queues, messages, bindings, markers)
