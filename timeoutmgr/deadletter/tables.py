"""The tables as queries see them; the migrations create them.

The key of a copy is node, message id and destination: a node has at most one copy of a message for
a destination, in ``awaiting_final_ack`` or ``dead_letters``. Journals copy delivered messages.
"""

from dataclasses import dataclass
from typing import Any, Final

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

from timeoutmgr.database import checked_identifier
from timeoutmgr.database.texts import KeyText

NODE_LENGTH: Final = 64
NAME_LENGTH: Final = 250
ID_LENGTH: Final = 255
REASON_LENGTH: Final = 2_000


@dataclass(frozen=True, slots=True)
class DeadLetterTables:
    """The tables of one schema and prefix."""

    metadata: MetaData
    nodes: Table
    dead_letters: Table
    awaiting: Table
    journals: Table

    def counter(self, table: Table) -> str:
        """Return the prefix of the columns that count the rows of *table* in a node's row."""
        if table is self.journals:
            return "journal"
        return "awaiting" if table is self.awaiting else "letters"


def dead_letter_tables(schema: str | None, prefix: str) -> DeadLetterTables:
    """Return the tables in *schema* (None: the connection's own) whose names begin with *prefix*.

    Raises ConfigurationError if either is not a plain identifier.
    """
    checked_identifier("prefix", prefix)
    if schema is not None:
        checked_identifier("schema", schema)
    metadata = MetaData(schema=schema)

    def table(name: str, *columns: Column[Any]) -> Table:
        return Table(
            prefix + name, metadata, *columns, mysql_engine="InnoDB", mariadb_engine="InnoDB"
        )

    nodes = table(
        "dead_letter_nodes",
        Column("node", KeyText(NODE_LENGTH), primary_key=True),
        Column("guid", KeyText(36), nullable=False),
        Column("created", BigInteger(), nullable=False),
        # Every change updates these sums: a quota must not cost a count of all rows.
        *(
            Column(f"{what}_{unit}", BigInteger(), nullable=False, server_default="0")
            for what in ("letters", "awaiting", "journal")
            for unit in ("count", "bytes")
        ),
    )
    dead_letters = table("dead_letters", *_copy_columns(), *_place_columns())
    awaiting = table(
        "awaiting_final_ack",
        *_copy_columns(),
        *_place_columns(),
        Column("deadline", BigInteger()),
        Column("received_by", BigInteger()),
    )
    journals = table("journal", *_copy_columns(_target()))
    for made, order in (
        (dead_letters, ("node", "xact", "app_queue", "kept")),
        (awaiting, ("node", "deadline")),
        (journals, ("node", "target", "destination", "kept")),
    ):
        Index(f"{made.name}_order", *(made.c[column] for column in order))
    return DeadLetterTables(metadata, nodes, dead_letters, awaiting, journals)


def _copy_columns(*more_key: Column[Any]) -> list[Column[Any]]:
    long_text = Text().with_variant(mysql.LONGTEXT(charset="utf8mb4"), "mysql", "mariadb")
    blob = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
    return [
        Column("node", KeyText(NODE_LENGTH), primary_key=True),
        *more_key,
        Column("message_id", KeyText(ID_LENGTH), primary_key=True),
        Column("destination", KeyText(NAME_LENGTH), primary_key=True),
        Column("source", KeyText(NAME_LENGTH), nullable=False),
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
        Column("channel", Text()),
        Column("headers", long_text, nullable=False),
        Column("body", blob, nullable=False),
        Column("content_type", KeyText(255), nullable=False),
        Column("content_encoding", KeyText(255), nullable=False),
        Column("bytes", BigInteger(), nullable=False),
    ]


def _target() -> Column[Any]:
    return Column("target", SmallInteger(), primary_key=True, autoincrement=False)


def _place_columns() -> list[Column[Any]]:
    return [Column("app_queue", KeyText(NAME_LENGTH), nullable=False, server_default="")]
