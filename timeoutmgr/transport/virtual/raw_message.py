"""kombu's virtual message as received, neither decompressed nor decoded."""

from __future__ import annotations

import base64
import binascii
import uuid
from typing import Any

from kombu.transport import virtual

_DEFECT = "timeoutmgr-defect"


class ReadPayload(dict[str, Any]):
    """A payload with the broker's *item* that it was parsed from; the message empties it."""

    def __init__(self, payload: dict[str, Any], item: bytes) -> None:
        super().__init__(payload)
        self.item = item


class RawMessage(virtual.Message):
    """A message whose constructor cannot fail; *defect* names the unreadable part.

    We set its tag and the queue that it goes back to: a sender may have copied the tag and queue in
    the payload from another message, or invented them. *delivery_info* keeps the other values that
    kombu's channel wrote there and needs to acknowledge. The body is kept only once: until the
    message is settled, it may take most of a worker's memory.
    """

    def __init__(self, queue: str, payload: Any, channel: Any = None, **_: Any) -> None:
        # Do not call kombu's constructors: they decompress as a header says.
        whole = table(payload)
        self._item: bytes | None = None
        if isinstance(payload, ReadPayload):
            self._item = payload.item
            payload.clear()  # kombu's stack frames keep it, with the body as text
        given = {name: whole.get(name) for name in ("headers", "properties")}
        headers, properties = table(given["headers"]), table(given["properties"])
        defect = whole.get(_DEFECT)
        for what, value in {"envelope": payload, **given}.items():
            if value is not None and not isinstance(value, dict):
                defect = defect or f"the {what} is no table but {type(value).__name__}"
        self.defect: str | None = defect
        self.redelivered = bool(whole.get("redelivered") or headers.get("redelivered") is True)
        if headers.get("redelivered") is True:  # set by kombu; a sender's value would be a string
            del headers["redelivered"]
        self.errors = []
        self.accept = None
        self.channel = channel
        self.delivery_tag = uuid.uuid4().hex
        place = {"exchange": "", "routing_key": queue}
        self.delivery_info = {**table(properties.get("delivery_info")), **place}
        self.headers = headers
        self.properties = properties
        self.content_type = whole.get("content-type")
        self.content_encoding = whole.get("content-encoding")
        self._is_base64 = False
        self._was_text = isinstance(whole.get("body"), str)
        self.body = self._read_body(whole.get("body"), properties.get("body_encoding"))
        self._state = "RECEIVED"
        self._decoded_cache = None
        if self._was_text:
            del whole["body"]  # made again from the body when it is put back
        # Put back with the body; kombu needs it in this shape.
        self._rest = {
            **whole,
            "headers": dict(headers),
            "properties": {**properties, "delivery_info": place},
            # Repaired for kombu above, it would look intact when it comes back.
            **({_DEFECT: defect} if defect else {}),
        }

    def serializable(self) -> dict[str, Any]:
        """Return the payload to put back into the queue, with body and headers untouched."""
        payload = {**self._rest, "headers": dict(self.headers)}
        if self._is_base64:
            payload["body"] = base64.b64encode(self.body).decode()
        elif self._was_text:
            payload["body"] = self.body.decode("utf-8", "surrogatepass")
        return payload

    def pop_item(self) -> bytes | None:
        """Return the item that was read if kombu can put it back as it is; only once."""
        item, self._item = self._item, None
        return item

    def _read_body(self, body: Any, encoding: Any) -> bytes:
        if body is None:
            return b""
        if not isinstance(body, str):
            self.defect = self.defect or f"the body is no text but {type(body).__name__}"
            return repr(body).encode("utf-8", "replace")
        if encoding == "base64":
            try:
                decoded = base64.b64decode(body, validate=True)
                self._is_base64 = True
                return decoded
            except (binascii.Error, ValueError):
                self.defect = self.defect or "the body is not base64, as it says"
        return body.encode("utf-8", "surrogatepass")


def unreadable(item: bytes) -> dict[str, Any]:
    """Return a payload that represents an *item* which is not a message at all."""
    return {
        "body": base64.b64encode(item).decode(),
        "headers": {},
        "properties": {"body_encoding": "base64"},
        _DEFECT: "the envelope is no JSON table",
    }


def table(value: Any) -> dict[Any, Any]:
    """Return a copy of *value* if it is a table, otherwise an empty table."""
    return dict(value) if isinstance(value, dict) else {}
