"""The tables of the SQL queue, for any schema and prefix."""

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    literal_column,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeEngine

from timeoutmgr.database.places import OwnTable
from timeoutmgr.database.texts import KeyText, is_storable
from timeoutmgr.errors import ConfigurationError, InvalidMessage
from timeoutmgr.message.headers import BROKER_HEADERS, filled
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Message, Outgoing, Received
from timeoutmgr.transport.envelope import check_direct

QUEUE_NAME_LENGTH: Final = 250
MESSAGE_ID_LENGTH: Final = 255
"""Maximum length of a message id in characters; longer ids are refused at once."""
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
    owners: Table


@lru_cache(maxsize=16)  # cached: SQLAlchemy recompiles a statement for new Table objects
def tables(schema: str | None, prefix: str) -> QueueTables:
    """Return the tables as they stand after the newest revision."""
    metadata = MetaData(schema=schema)
    name = KeyText(QUEUE_NAME_LENGTH)
    queues = OwnTable(
        f"{prefix}queues",
        metadata,
        Column("name", name, primary_key=True),
        Column("dead_letter_to", name),
        Column("created", BigInteger(), nullable=False),
        # For a queue that kombu declared with options; NULL for a plain queue.
        Column("options", Text()),
        # When an unused queue is deleted, and how many messages a full queue has dropped.
        Column("expires_at", BigInteger()),
        Column("dropped", BigInteger(), nullable=False, server_default="0"),
    )
    messages = _messages(metadata, prefix)
    bindings = OwnTable(
        f"{prefix}queue_bindings",
        metadata,
        Column("exchange", name, primary_key=True),
        Column("routing_key", name, primary_key=True),
        Column("queue", name, primary_key=True),
        Column("kind", KeyText(16), nullable=False),
    )
    markers = OwnTable(
        f"{prefix}queue_markers",
        metadata,
        Column("endpoint", name, primary_key=True),
        Column("marker", KeyText(64), nullable=False),
    )
    owners = OwnTable(
        f"{prefix}queue_owners",
        metadata,
        Column("queue", name, primary_key=True),
        Column("owner", KeyText(64), primary_key=True),
        Column("consuming", Integer(), nullable=False),
    )
    return QueueTables(metadata, queues, messages, bindings, markers, owners)


def _messages(metadata: MetaData, prefix: str) -> Table:
    # An instant, or the order of arrival. SQLite numbers only an INTEGER key by itself.
    number: TypeEngine[int] = BigInteger().with_variant(Integer(), "sqlite")
    long_text: TypeEngine[str] = Text().with_variant(
        mysql.LONGTEXT(charset="utf8mb4"), "mysql", "mariadb"
    )
    blob: TypeEngine[bytes] = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
    messages = OwnTable(
        f"{prefix}queue_messages",
        metadata,
        Column("sequence", number, primary_key=True, autoincrement=True),
        Column("queue", KeyText(QUEUE_NAME_LENGTH), nullable=False),
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
        # Further properties of a message that kombu sent.
        Column("properties", long_text),
        # When a sweep removes it from its queue; NULL for never.
        Column("expires_at", BigInteger()),
        # When it is dropped silently, by kombu's time to live; NULL for never.
        Column("discard_at", BigInteger()),
        # AUTOINCREMENT never reuses a number, so an old acknowledgement can never meet a new
        # message.
        sqlite_autoincrement=True,
    )
    Index(f"{prefix}queue_order", messages.c.queue, messages.c.sequence)
    expires = messages.c.expires_at.is_not(None)
    Index(
        f"{prefix}queue_expiry",
        messages.c.expires_at,
        postgresql_where=expires,
        sqlite_where=expires,
    )
    ends = messages.c.discard_at.is_not(None)
    Index(f"{prefix}queue_discard", messages.c.discard_at, postgresql_where=ends, sqlite_where=ends)
    ranked = messages.c.priority < literal_column("0")
    Index(
        f"{prefix}queue_priority",
        messages.c.queue,
        messages.c.priority,
        messages.c.sequence,
        postgresql_where=ranked,
        sqlite_where=ranked,
    )
    return messages


# --- A message as a row of the queue table, and back ------------------------------------------

LeaseTag = tuple[int, int]
"""Sequence and delivery count: they identify the row and its delivery."""


class LeasedRow(NamedTuple):
    """A leased message, with the columns in the order of the SELECT.

    *delivery_count* is the count before this delivery.
    """

    sequence: int
    message_id: str
    headers: str
    body: bytes
    content_type: str
    content_encoding: str
    delivery_count: int
    properties: str | None
    size: int


def to_row(outgoing: Outgoing, now: Micros) -> dict[str, Any]:
    """Return *outgoing* as a row; raise InvalidMessage for values that the columns cannot keep."""
    check_direct(outgoing)
    message = outgoing.message
    if not message.id:
        raise InvalidMessage("a message id must not be empty; make an id with uuid.uuid4()")
    headers = {}
    for name, value in message.headers.items():
        if not isinstance(value, str):
            raise InvalidMessage(
                f"header {name!r:.80} must be a string, got {type(value).__name__}"
            )
        if name.lower() not in BROKER_HEADERS:
            headers[name] = value
    # ASCII with escapes: every database can store it, even NUL and lone surrogates.
    return row_of(outgoing.destination, message, json.dumps(headers), None, now)


def row_of(
    queue: str, message: Message, headers: str, properties: str | None, now: Micros
) -> dict[str, Any]:
    """Return a row of *message*, with *headers* and kombu's *properties* as JSON in ASCII."""
    _check("message id", message.id, MESSAGE_ID_LENGTH)
    _check("content type", message.content_type, CONTENT_TYPE_LENGTH)
    _check("content encoding", message.content_encoding, CONTENT_ENCODING_LENGTH)
    return {
        "queue": queue,
        "message_id": message.id,
        "headers": headers,
        "body": message.body,
        "content_type": message.content_type,
        "content_encoding": message.content_encoding,
        "enqueued": now,
        "available_at": 0,
        "properties": properties,
    }


def from_row(queue: str, row: LeasedRow) -> Received:
    """Return the leased *row*, whose delivery count excludes this delivery."""
    headers, defect = _headers(row.headers)
    return Received(
        message=Message(
            id=row.message_id,
            headers=headers if row.properties is None else filled(headers, _properties(row)),
            body=bytes(row.body),
            content_type=row.content_type,
            content_encoding=row.content_encoding,
        ),
        queue=queue,
        tag=(row.sequence, row.delivery_count + 1),
        delivery_count=row.delivery_count,
        defect=defect,
    )


def checked_queue_name(name: str) -> str:
    """Return *name* if a queue can have it; otherwise raise ConfigurationError."""
    if not is_queue_name(name):
        raise ConfigurationError(
            f"{name[:80]!r} cannot be a queue; expected 1 to {QUEUE_NAME_LENGTH} characters "
            "without NUL"
        )
    return name


def is_queue_name(name: str) -> bool:
    """Return whether a queue can have this *name*."""
    return 0 < len(name) <= QUEUE_NAME_LENGTH and is_storable(name)


def _check(what: str, value: str, length: int) -> None:
    if len(value) > length or not is_storable(value):
        raise InvalidMessage(
            f"{what} {value[:80]!r} has {len(value)} characters; the SQL queue keeps at most "
            f"{length}, without NUL; send a shorter value"
        )


def _headers(text: str) -> tuple[dict[str, str], str | None]:
    try:
        headers = json.loads(text)
        if not isinstance(headers, dict):
            return {}, f"the headers are a JSON {type(headers).__name__}, not an object"
        # Unchecked, as our senders write strings: a check costs as much as the parsing.
        if {str}.issuperset(map(type, headers.values())) and BROKER_HEADERS.isdisjoint(
            map(str.lower, headers)
        ):
            return headers, None
        return {
            name: _header_text(value)
            for name, value in headers.items()
            if name.lower() not in BROKER_HEADERS
        }, None
    except ValueError as error:
        return {}, f"the headers are no JSON: {error}"
    except RecursionError:
        return {}, "the headers are JSON that is nested too deep"


def _properties(row: LeasedRow) -> dict[str, object]:
    """Return the properties that kombu's producer gave; an empty dict if they are unreadable."""
    try:
        found = json.loads(row.properties or "")
    except (ValueError, RecursionError):
        found = None
    given = found if isinstance(found, dict) else {}
    return {**given, "message_id": row.message_id, "content_type": row.content_type}


def _header_text(value: object) -> str:
    """Return *value* as a header's string; only kombu's producers put other types there."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, bool | int | float) else json.dumps(value)
