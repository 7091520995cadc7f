"""A kombu message as a row of the queue table, and back."""

from __future__ import annotations

import logging
import uuid
from typing import Any, Final

from kombu.utils import json as kombu_json

from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message import headers as names
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Message
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.transport.sql.envelopes import LeasedRow, row_of

json: Any = kombu_json  # has no annotations
logger = logging.getLogger(__name__)

_OF_THE_DELIVERY: Final = frozenset({"delivery_tag", "body_encoding"})
_PERSISTENT: Final = 2


def from_kombu(
    queue: str, message: dict[str, Any], body: str | bytes, now: Micros
) -> dict[str, Any]:
    """Return kombu's *message*, whose *body* was decoded already, as a row.

    Headers and properties of any kind that JSON can say are kept for kombu's consumers; our
    receivers see strings. Raises InvalidMessage where they are nested too deep.
    """
    headers = message.get("headers") or {}
    properties = {
        name: value for name, value in message["properties"].items() if name not in _OF_THE_DELIVERY
    }
    message_id = headers.get(names.MESSAGE_ID) or properties.get("message_id") or uuid.uuid4()
    return row_of(
        queue,
        Message(
            id=str(message_id),
            body=body.encode() if isinstance(body, str) else bytes(body),
            content_type=message.get("content-type") or "application/octet-stream",
            content_encoding=message.get("content-encoding") or "binary",
        ),
        _spelt(headers),
        _spelt(properties),
        now,
    )


def to_kombu(queue: str, row: LeasedRow) -> dict[str, Any]:
    """Return the leased *row* as the payload that kombu makes a message of.

    Unreadable parts of a stranger's row are left out: it must not end its consumer, and come
    again.
    """
    headers = _read(row.message_id, "headers", row.headers) or {}
    properties = None
    if row.properties is not None:
        properties = _read(row.message_id, "properties", row.properties)
    if properties is None:
        properties = _properties_of_ours(queue, row.message_id, headers)
    redelivered = row.delivery_count > 0
    properties["delivery_info"] = {
        **_table(properties.get("delivery_info")),
        "redelivered": redelivered,
    }
    properties["delivery_tag"] = f"{row.sequence}.{row.delivery_count + 1}"
    properties["body_encoding"] = None
    return {
        "body": bytes(row.body),
        "content-type": row.content_type,
        "content-encoding": row.content_encoding,
        "headers": headers,
        "properties": properties,
        "redelivered": redelivered,
    }


def _spelt(table: dict[str, Any]) -> str:
    try:
        return str(json.dumps(table))
    except RecursionError:
        raise InvalidMessage("headers or properties are nested too deep; send flat ones") from None


def _read(message_id: str, what: str, text: str) -> dict[str, Any] | None:
    fields = {"event": "message_unreadable", "message_id": message_id}
    try:
        found = json.loads(text)
        if isinstance(found, dict):
            return found
        logger.warning(
            "message %.80r has %s that are not a JSON object", message_id, what, extra=fields
        )
    except Exception as error:  # any error that a stranger's text provokes in kombu's JSON hooks
        logger.warning(
            "message %.80r has unreadable %s: %s",
            message_id,
            what,
            on_one_line(error),
            extra=fields,
        )
    return None


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _properties_of_ours(queue: str, message_id: str, headers: dict[str, str]) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "message_id": message_id,
        "delivery_mode": _PERSISTENT,
        "priority": 0,
        "delivery_info": {"exchange": "", "routing_key": queue},
    }
    if names.CORRELATION_ID in headers:
        properties["correlation_id"] = headers[names.CORRELATION_ID]
    if names.REPLY_TO in headers:
        properties["reply_to"] = headers[names.REPLY_TO]
    return properties
