"""A message as a row of the queue table, and back."""

import json
from typing import Any, NamedTuple

from timeoutmgr.errors import ConfigurationError, InvalidMessage
from timeoutmgr.message.headers import BROKER_HEADERS
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Message, Outgoing, Received
from timeoutmgr.transport.envelope import check_direct
from timeoutmgr.transport.sql.tables import (
    CONTENT_ENCODING_LENGTH,
    CONTENT_TYPE_LENGTH,
    MESSAGE_ID_LENGTH,
    QUEUE_NAME_LENGTH,
)

LeaseTag = tuple[int, int]
"""Sequence and delivery count: which delivery of which row."""


class LeasedRow(NamedTuple):
    """A leased message; *delivery_count* is the count before this delivery."""

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
    # ASCII with escapes: every database keeps it, NUL and half a surrogate pair included.
    return row_of(outgoing.destination, message, json.dumps(headers), None, now)


def row_of(
    queue: str,
    message: Message,
    headers: str,
    properties: str | None,
    now: Micros,
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
            headers=headers,
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
    """Return *name* if a queue can be called so; raise ConfigurationError if not."""
    if not is_queue_name(name):
        raise ConfigurationError(
            f"{name[:80]!r} cannot be a queue; expected 1 to {QUEUE_NAME_LENGTH} characters "
            "without NUL"
        )
    return name


def is_queue_name(name: str) -> bool:
    """Return whether a queue can be called *name*."""
    return 0 < len(name) <= QUEUE_NAME_LENGTH and _is_storable(name)


def _check(what: str, value: str, length: int) -> None:
    if len(value) > length or not _is_storable(value):
        raise InvalidMessage(
            f"{what} {value[:80]!r} has {len(value)} characters; the SQL queue keeps at most "
            f"{length}, without NUL; send a shorter value"
        )


def _is_storable(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in value


def _headers(text: str) -> tuple[dict[str, str], str | None]:
    try:
        headers = json.loads(text)
        if not isinstance(headers, dict):
            return {}, f"the headers are a JSON {type(headers).__name__}, not an object"
        return {
            name: _header_text(value)
            for name, value in headers.items()
            if name.lower() not in BROKER_HEADERS
        }, None
    except ValueError as error:
        return {}, f"the headers are no JSON: {error}"
    except RecursionError:
        return {}, "the headers are JSON that is nested too deep"


def _header_text(value: object) -> str:
    """Return *value* as a header's string; only kombu's own producers put anything else there."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, bool | int | float) else json.dumps(value)
