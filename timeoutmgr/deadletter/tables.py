"""The tables as queries see them; the migrations create them.

The key of a copy is node, message id and destination: a node has at most one copy of a message for
a destination, in ``awaiting_final_ack`` or ``dead_letters``. Journals copy delivered messages.
"""

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Row,
    SmallInteger,
    Table,
    Text,
)
from sqlalchemy.dialects import mysql

from timeoutmgr.contracts.dead_letters import JournalLevel
from timeoutmgr.database.places import OwnTable
from timeoutmgr.database.texts import KeyText, checked_metadata, is_storable
from timeoutmgr.deadletter.stored_copy import StoredCopy
from timeoutmgr.errors import MessageRejected
from timeoutmgr.message.message import Message

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
    first_attempts: Table

    def counter(self, table: Table) -> str:
        """Return the prefix of the columns that count the rows of *table* in a node's row."""
        if table is self.journals:
            return "journal"
        return "awaiting" if table is self.awaiting else "letters"


@lru_cache(maxsize=16)  # cached: SQLAlchemy recompiles a statement for new Table objects
def dead_letter_tables(schema: str | None, prefix: str) -> DeadLetterTables:
    """Return the tables in *schema* (None: the connection's own) whose names begin with *prefix*.

    Raises ConfigurationError if either is not a plain identifier.
    """
    metadata = checked_metadata(schema, prefix)

    def table(name: str, *columns: Column[Any]) -> Table:
        return OwnTable(
            prefix + name, metadata, *columns, mysql_engine="InnoDB", mariadb_engine="InnoDB"
        )

    nodes = table(
        "dead_letter_nodes",
        Column("node", KeyText(NODE_LENGTH), primary_key=True),
        Column("guid", KeyText(36), nullable=False),
        Column("created", BigInteger(), nullable=False),
        # Every change updates these sums: a quota must not require a count of all rows.
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
        *(Column(name, BigInteger()) for name in ("deadline", "received_by")),
    )
    target = Column("target", SmallInteger(), primary_key=True, autoincrement=False)
    journals = table("journal", *_copy_columns(target))
    # For delayed messages that could not be sent at once; *due* distinguishes messages of one id.
    first_attempts = table(
        "first_attempts",
        Column("node", KeyText(NODE_LENGTH), primary_key=True),
        Column("message_id", KeyText(ID_LENGTH), primary_key=True),
        Column("destination", KeyText(NAME_LENGTH), primary_key=True),
        *(Column(name, BigInteger(), nullable=False) for name in ("due", "at", "forget_at")),
    )
    for made, name, columns in (
        (dead_letters, "order", ("node", "xact", "app_queue", "kept")),
        (awaiting, "order", ("node", "deadline")),
        (awaiting, "kept", ("node", "kept")),
        (journals, "order", ("node", "target", "destination", "kept")),
        (journals, "kept", ("node", "target", "kept")),
    ):
        Index(f"{made.name}_{name}", *(made.c[column] for column in columns))
    return DeadLetterTables(metadata, nodes, dead_letters, awaiting, journals, first_attempts)


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
        *(Column(name, Integer(), nullable=False) for name in ("hops", "attempts")),
        Column("reason", long_text, nullable=False),
        Column("late_ack", SmallInteger(), nullable=False, server_default="0"),
        Column("channel", Text()),
        Column("headers", long_text, nullable=False),
        Column("body", blob, nullable=False),
        *(Column(f"content_{name}", KeyText(255), nullable=False) for name in ("type", "encoding")),
        Column("bytes", BigInteger(), nullable=False),
    ]


def _place_columns() -> list[Column[Any]]:
    return [Column("app_queue", KeyText(NAME_LENGTH), nullable=False, server_default="")]


# --- conversion of stored copies to rows and back ---------------------------------------------

_to_json: Final = json.JSONEncoder(separators=(",", ":")).encode


def to_row(node: str, copy: StoredCopy) -> dict[str, Any]:
    """Return *copy* as a row of *node*.

    Raises MessageRejected for text that a database could not hold or would change.
    """
    message = copy.message
    headers = _to_json(dict(message.headers))
    # An exception's text may contain any character; the stored text must not fail the insert.
    reason = copy.reason.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
    return {
        "node": node,
        "message_id": _checked("message id", message.id, ID_LENGTH),
        "destination": _checked("destination", copy.destination, NAME_LENGTH),
        "source": _checked("source", copy.source, NAME_LENGTH),
        "xact": int(copy.transactional),
        "app_queue": _checked("dead-letter queue", copy.application_queue, NAME_LENGTH),
        "class": copy.message_class,
        "level": int(copy.journal),
        "sent": copy.sent,
        "kept": copy.kept,
        "time_to_reach_queue": copy.time_to_reach_queue,
        "time_to_be_received": copy.time_to_be_received,
        "hops": copy.hops,
        "attempts": copy.attempts,
        "reason": reason[:REASON_LENGTH],
        "late_ack": int(copy.late),
        "channel": copy.channel,
        "headers": headers,
        "body": message.body,
        "content_type": _checked("content type", message.content_type, 255),
        "content_encoding": _checked("content encoding", message.content_encoding, 255),
        "bytes": len(message.body) + len(headers),
    }


def from_row(row: Row[Any]) -> StoredCopy:
    """Return the stored copy in *row*, which has all columns of a stored copy."""
    given = row._mapping
    return StoredCopy(
        message=Message(
            id=given["message_id"],
            headers=json.loads(given["headers"]),
            body=bytes(given["body"]),
            content_type=given["content_type"],
            content_encoding=given["content_encoding"],
        ),
        destination=given["destination"],
        message_class=given["class"],
        kept=given["kept"],
        source=given["source"],
        transactional=bool(given["xact"]),
        application_queue=given.get("app_queue", ""),
        journal=JournalLevel(given["level"]),
        sent=given["sent"],
        time_to_reach_queue=given["time_to_reach_queue"],
        time_to_be_received=given["time_to_be_received"],
        hops=given["hops"],
        attempts=given["attempts"],
        reason=given["reason"],
        late=bool(given["late_ack"]),
        channel=given["channel"],
    )


def _checked(what: str, value: str, longest: int) -> str:
    if len(value) > longest:
        raise MessageRejected(
            f"the {what} has {len(value)} characters, and a stored copy at most {longest}: "
            f"{value[:64]!r}…"
        )
    if not is_storable(value):
        raise MessageRejected(f"the {what} {value[:64]!r} cannot be stored; expected plain text")
    return value
