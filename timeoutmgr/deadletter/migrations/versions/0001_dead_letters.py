"""Nodes, their dead letters, copies awaiting acknowledgement, and journals.

Every step can be run again: MySQL commits each DDL statement by itself.
"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
)
from sqlalchemy.dialects import mysql

from timeoutmgr.database.texts import KeyText
from timeoutmgr.database.upgrade import create_missing, revision_attributes

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the four tables."""
    attributes = revision_attributes()
    prefix = attributes["prefix"]
    metadata = MetaData(schema=attributes["schema"])
    long_text = Text().with_variant(mysql.LONGTEXT(charset="utf8mb4"), "mysql", "mariadb")
    blob = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")

    def table(name: str, *columns: Column[Any]) -> Table:
        return Table(
            prefix + name, metadata, *columns, mysql_engine="InnoDB", mariadb_engine="InnoDB"
        )

    def copy(*more_key: Column[Any]) -> list[Column[Any]]:
        return [
            Column("node", KeyText(64), primary_key=True),
            *more_key,
            Column("message_id", KeyText(255), primary_key=True),
            Column("destination", KeyText(250), primary_key=True),
            Column("source", KeyText(250), nullable=False),
            Column("xact", SmallInteger(), nullable=False, autoincrement=False),
            Column("class", Integer(), nullable=False),
            Column("level", SmallInteger(), nullable=False),
            Column("sent", BigInteger()),
            Column("kept", BigInteger(), nullable=False),
            Column("time_to_reach_queue", BigInteger(), nullable=False),
            Column("time_to_be_received", BigInteger()),
            Column("hops", Integer(), nullable=False),
            Column("attempts", Integer(), nullable=False),
            Column("reason", long_text, nullable=False),
            Column("late_ack", SmallInteger(), nullable=False, server_default="0"),
            Column("headers", long_text, nullable=False),
            Column("body", blob, nullable=False),
            Column("content_type", KeyText(255), nullable=False),
            Column("content_encoding", KeyText(255), nullable=False),
            Column("bytes", BigInteger(), nullable=False),
        ]

    def application_queue() -> Column[Any]:
        return Column("app_queue", KeyText(250), nullable=False, server_default="")

    nodes = table(
        "dead_letter_nodes",
        Column("node", KeyText(64), primary_key=True),
        Column("guid", KeyText(36), nullable=False),
        Column("created", BigInteger(), nullable=False),
        *(
            Column(f"{what}_{unit}", BigInteger(), nullable=False, server_default="0")
            for what in ("letters", "awaiting", "journal")
            for unit in ("count", "bytes")
        ),
    )
    dead_letters = table("dead_letters", *copy(), application_queue())
    awaiting = table(
        "awaiting_final_ack",
        *copy(),
        application_queue(),
        Column("deadline", BigInteger()),
        Column("received_by", BigInteger()),
    )
    target = Column("target", SmallInteger(), primary_key=True, autoincrement=False)
    journals = table("journal", *copy(target))
    c = dead_letters.c
    Index(f"{prefix}dead_letters_order", c.node, c.xact, c.app_queue, c.kept)
    Index(f"{prefix}awaiting_final_ack_order", awaiting.c.node, awaiting.c.deadline)
    c = journals.c
    Index(f"{prefix}journal_order", c.node, c.target, c.destination, c.kept)
    create_missing(nodes, dead_letters, awaiting, journals)
