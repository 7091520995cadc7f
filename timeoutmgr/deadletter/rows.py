"""Conversion of stored copies to rows and back."""

import json
from typing import Any, Final

from sqlalchemy import Row

from timeoutmgr.contracts.dead_letters import JournalLevel
from timeoutmgr.deadletter.stored_copy import StoredCopy
from timeoutmgr.deadletter.tables import ID_LENGTH, NAME_LENGTH, REASON_LENGTH
from timeoutmgr.errors import MessageRejected
from timeoutmgr.message.message import Message

_to_json: Final = json.JSONEncoder(separators=(",", ":")).encode


def to_row(node: str, copy: StoredCopy) -> dict[str, Any]:
    """Return *copy* as a row of *node*.

    Raises MessageRejected for text that a database could not hold or would change.
    """
    message = copy.message
    headers = _to_json(dict(message.headers))
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
        "reason": _storable(copy.reason),
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
    if "\0" in value or not _is_utf8(value):
        raise MessageRejected(f"the {what} {value[:64]!r} cannot be stored; expected plain text")
    return value


def _is_utf8(value: str) -> bool:
    return value.isascii() or value == value.encode("utf-8", "replace").decode()


def _storable(text: str) -> str:
    # An exception's text may contain any character; the stored text must not fail the insert.
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")[:REASON_LENGTH]
