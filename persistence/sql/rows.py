"""Timeouts as rows and back."""

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Row

from timeoutmgr.contracts import Timeout
from timeoutmgr.errors import MessageRejected
from timeoutmgr.message import Message

from .tables import TEXT_LENGTH

_to_json = json.JSONEncoder(separators=(",", ":")).encode


def to_row(endpoint: str, timeout: Timeout, *, version: int = 0) -> dict[str, Any]:
    """Return *timeout* as a row of ``timeouts``.

    Raises MessageRejected for text that some database could not hold or would change.
    """
    message = timeout.message
    return {
        "endpoint": endpoint,
        "due": timeout.due,
        "id": _checked("id", timeout.id),
        "destination": _checked("destination", timeout.destination),
        "saga_id": None if timeout.saga_id is None else _checked("saga id", timeout.saga_id),
        "message_id": _checked("message id", message.id),
        "headers": _to_json(dict(message.headers)),
        "body": message.body,
        "content_type": _checked("content type", message.content_type),
        "content_encoding": _checked("content encoding", message.content_encoding),
        "created": timeout.created,
        "version": version,
        "attempts": timeout.attempts,
        "next_try": 0,
        "maybe_sent": 0,
    }


def from_row(row: Row[Any] | Any) -> Timeout:
    """Return the timeout that *row*, with all columns of ``timeouts``, holds."""
    return Timeout(
        id=row.id,
        due=row.due,
        destination=row.destination,
        saga_id=row.saga_id,
        created=row.created,
        attempts=row.attempts,
        message=Message(
            id=row.message_id,
            headers=json.loads(row.headers),
            body=bytes(row.body),
            content_type=row.content_type,
            content_encoding=row.content_encoding,
        ),
    )


def to_json(state: Mapping[str, str]) -> str:
    """Return *state* as JSON text."""
    return _to_json(dict(state))


def _checked(what: str, value: str) -> str:
    if len(value) > TEXT_LENGTH:
        raise MessageRejected(
            f"the {what} has {len(value)} characters, at most {TEXT_LENGTH} can be stored: "
            f"{value[:64]!r}…"
        )
    # PostgreSQL takes no NUL; half a surrogate pair is no UTF-8.
    if "\0" in value or (not value.isascii() and not _is_utf8(value)):
        raise MessageRejected(f"the {what} {value[:64]!r} cannot be stored; expected plain text")
    return value


def _is_utf8(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
