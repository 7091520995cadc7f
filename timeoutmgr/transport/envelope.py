"""A message as a broker carries it: properties, string headers, and an untouched body."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message import headers as names
from timeoutmgr.message.foreign import is_delayed_by_broker
from timeoutmgr.message.headers import filled, remembers_short
from timeoutmgr.message.message import NO_NUMBERS, Message, Outgoing, first_type

SHORT_STRING = 255
"""Maximum bytes of an AMQP property, a routing key, a queue name or a header name."""
_MOST_DEFECTS = 8
"""Maximum number of defects listed per message; another program may cause thousands."""

_NO_ID = uuid.UUID("5a1b7b8e-5d0c-5c39-8f0e-2f2a6b0c6d11")


@dataclass(frozen=True, slots=True)
class Envelope:
    """The data around a body; optional properties that do not fit are None.

    *numbers* are numeric headers for other programs on a broker, beside the message's *headers*.
    """

    message_id: str
    content_type: str
    content_encoding: str
    headers: Mapping[str, str]
    correlation_id: str | None
    reply_to: str | None
    type: str | None
    numbers: Mapping[str, int]


def seal(message: Message, numbers: Mapping[str, int] = NO_NUMBERS) -> Envelope:
    """Return the envelope of *message*; raises InvalidMessage if no broker can carry it.

    Everything is checked here, before anything is written: a message that fails in the middle of a
    window would leave its neighbours in doubt.
    """
    headers = dict(message.headers)
    for name in _left_behind(tuple(headers)):
        del headers[name]
    if not _is_plain(headers):
        for name, value in headers.items():
            if not isinstance(value, str):
                kind = type(value).__name__
                raise InvalidMessage(f"header {name!r:.80} must be a string, got {kind}")
            _encode(value, f"value of header {name!r:.80}")
    check_short(message.id, "message id")
    if not message.id:
        raise InvalidMessage("a message id must not be empty; make an id with uuid.uuid4()")
    check_short(message.content_type, "content type")
    check_short(message.content_encoding, "content encoding")
    if headers.get(names.MESSAGE_ID, message.id) != message.id:
        headers[names.MESSAGE_ID] = message.id  # readers prefer the header to the property
    return Envelope(
        message_id=message.id,
        content_type=message.content_type,
        content_encoding=message.content_encoding,
        headers=headers,
        correlation_id=_if_short(headers.get(names.CORRELATION_ID)),
        reply_to=_if_short(headers.get(names.REPLY_TO)),
        type=_if_short(first_type(headers.get(names.ENCLOSED_MESSAGE_TYPES))),
        numbers=numbers,
    )


@remembers_short(1024)
def _left_behind(given: tuple[str, ...]) -> tuple[str, ...]:
    # Cached: a program sends a few sets of headers again and again.
    for name in given:
        check_short(name, "header name")
    return tuple(name for name in given if name.lower() in names.BROKER_HEADERS)


def _is_plain(headers: Mapping[str, str]) -> bool:
    try:
        return "".join(headers.values()).isascii()  # all at once; the culprit is found later
    except TypeError:
        return False


def check_direct(outgoing: Outgoing) -> None:
    """Raise InvalidMessage for a message that must go through exchanges, which do not exist here.

    If it were put straight into its queue, it would be early.
    """
    if outgoing.via is not None and is_delayed_by_broker(outgoing):
        raise InvalidMessage(
            f"message {outgoing.message.id!r:.80} for {outgoing.destination!r:.80} goes through "
            "delay levels, and only RabbitMQ has them; delay it with TimeoutManager on this "
            "transport"
        )


def check_short(text: str, what: str) -> None:
    """Raise InvalidMessage unless *text* fits an AMQP short string."""
    if len(text) <= SHORT_STRING and text.isascii():
        return
    size = len(_encode(text, what))
    if size > SHORT_STRING:
        raise InvalidMessage(
            f"the {what} {text[:40]!r}... has {size} bytes; at most {SHORT_STRING} can be sent"
        )


def unseal(
    properties: Mapping[str, Any], raw_headers: object, body: bytes, defect: str | None
) -> tuple[Message, str | None]:
    """Return the message, and why parts of its envelope could not be read (or None).

    Never raises: another program's message must not stop the consumer of a queue.
    """
    headers, header_defect = _read_headers(raw_headers)
    defect = defect or header_defect
    content_type = properties.get("content_type")
    content_encoding = properties.get("content_encoding")
    message_id = headers.get(names.MESSAGE_ID) or properties.get("message_id")
    message = Message(
        # Based on the headers as received.
        id=message_id if isinstance(message_id, str) and message_id else _made_id(headers, body),
        headers=filled(headers, properties),
        body=body,
        content_type=(
            content_type
            if isinstance(content_type, str) and content_type
            else headers.get(names.CONTENT_TYPE, "application/octet-stream")
        ),
        content_encoding=(
            content_encoding if isinstance(content_encoding, str) and content_encoding else "utf-8"
        ),
    )
    return message, defect


def _read_headers(raw: object) -> tuple[dict[str, str], str | None]:
    if raw is None:
        return {}, None
    if not isinstance(raw, Mapping):
        return {}, f"the headers are no table but {type(raw).__name__}"
    headers: dict[str, str] = {}
    defects = []
    for name, value in raw.items():
        if not isinstance(name, str):
            defects.append(f"the header name {name!r:.80} is not UTF-8")
        elif name.lower() in names.BROKER_HEADERS:
            continue
        elif isinstance(value, str):
            headers[name] = value
        elif isinstance(value, (bool, int, float)):
            headers[name] = str(value)
        elif isinstance(value, (bytes, bytearray)):
            try:
                headers[name] = value.decode()
            except UnicodeDecodeError:
                defects.append(f"the value of header {name!r:.80} is not UTF-8")
        else:
            defects.append(f"the value of header {name!r:.80} is of type {type(value).__name__}")
    return headers, "; ".join(defects[:_MOST_DEFECTS]) or None


def _made_id(headers: Mapping[str, str], body: bytes) -> str:
    # Based on the content alone, so that a redelivery has the same id.
    digest = hashlib.sha256(body)
    for name, value in sorted(headers.items()):
        digest.update(f"\0{name}\0{value}".encode("utf-8", "surrogatepass"))
    return str(uuid.uuid5(_NO_ID, digest.hexdigest()))


def _if_short(text: str | None) -> str | None:
    return text if text and len(text.encode()) <= SHORT_STRING else None


def _encode(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(f"the {what} {text[:40]!r} cannot be written as UTF-8") from error
