"""Foreign messages: made from messages that kombu prepared for another program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message import headers as names
from timeoutmgr.message.foreign import AMQP, KOMBU, Foreign, Route, finally_to, foreign_of
from timeoutmgr.message.instants import Micros, from_micros, from_wire
from timeoutmgr.message.message import Message as OwnMessage
from timeoutmgr.message.message import with_headers


def foreign_from_kombu(
    prepared: Any, route: Route, content: str = "", due_header: str = ""
) -> Foreign:
    """Return as a foreign message what a channel's ``prepare_message`` returned.

    The channel belongs to the destination's broker: a dictionary comes from a virtual transport,
    anything else from AMQP.
    """
    if isinstance(prepared, dict):
        from timeoutmgr.transport.virtual.foreign import encoded_payload

        body = _as_bytes(prepared["body"])
        return Foreign(route, KOMBU, encoded_payload(prepared), body, content, due_header)
    try:
        properties = prepared._serialize_properties()
    except Exception as error:  # py-amqp raises many error types for values that AMQP cannot carry
        raise InvalidMessage(
            f"a message for {route.destination!r:.80} has headers or properties that AMQP cannot "
            f"carry ({type(error).__name__}: {str(error)[:200]}); send texts, numbers, lists and "
            "tables"
        ) from error
    from timeoutmgr.transport.amqp.foreign import defect_of

    if (defect := defect_of(properties)) is not None:
        raise InvalidMessage(
            f"a message for {route.destination!r:.80} cannot be sent by AMQP: {defect}; send it "
            "without"
        )
    return Foreign(route, AMQP, properties, _as_bytes(prepared.body), content, due_header)


def headers_of(foreign: Foreign) -> dict[str, Any]:
    """Return the headers of *foreign*. Raises InvalidMessage if they cannot be read."""
    if foreign.codec == KOMBU:
        from timeoutmgr.transport.virtual.foreign import kombu_payload

        headers: dict[str, Any] = kombu_payload(foreign)["headers"]
        return headers
    return dict(_amqp_properties(foreign).get("application_headers") or {})


def with_foreign_headers(foreign: Foreign, changed: Mapping[str, Any]) -> Foreign:
    """Return *foreign* with *changed* headers. Raises InvalidMessage if they cannot be read."""
    if foreign.codec == KOMBU:
        from timeoutmgr.transport.virtual.foreign import encoded_payload, kombu_payload

        payload = kombu_payload(foreign)
        payload["headers"] |= changed
        return replace(foreign, properties=encoded_payload(payload))
    from amqp import Message

    properties = _amqp_properties(foreign)
    properties["application_headers"] = {**properties.get("application_headers", {}), **changed}
    encoded = Message(b"", **properties)._serialize_properties()
    return replace(foreign, properties=encoded)


def moved_to(message: OwnMessage, destination: str, at: Micros) -> OwnMessage:
    """Return *message*, dispatched at the instant *at*, without a later due time in its headers.

    A timeout that was moved to an earlier time still has its first due time in its foreign header.
    An unreadable message is returned as it is: the session that should send it reports the reason.
    """
    given = message.headers
    name, due = given.get(names.FOREIGN_DUE), given.get(names.DELIVER_AT)
    if name is None or due is None or from_wire(due) <= at:
        return message
    try:
        foreign = foreign_of(finally_to(destination, message))
        if foreign is None:
            return message
        moved = with_foreign_headers(foreign, {name: from_micros(at).isoformat()})
    except InvalidMessage:
        return message
    return with_headers(message, {**given, names.FOREIGN: moved.as_headers()[names.FOREIGN]})


def _amqp_properties(foreign: Foreign) -> dict[str, Any]:
    from timeoutmgr.transport.amqp.frames import read_properties

    properties, defect = read_properties(foreign.properties, 0)
    if defect is not None:
        raise InvalidMessage(
            f"a foreign message for {foreign.route.destination!r:.80} has unreadable properties: "
            f"{defect}; send it again"
        )
    return properties


def _as_bytes(body: Any) -> bytes:
    return body.encode() if isinstance(body, str) else bytes(body)
