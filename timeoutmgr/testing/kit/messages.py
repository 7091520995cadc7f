"""Messages as a test sees them: sent, scheduled or failed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from timeoutmgr.contracts import Timeout
from timeoutmgr.message import headers
from timeoutmgr.message.instants import from_micros, from_wire
from timeoutmgr.message.message import Message, enclosed_types
from timeoutmgr.message.validation import decode_body


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedMessage:
    """A message and its destination; *due* and *timeout_id* are None if it was not delayed."""

    destination: str
    type: str | None
    body: Any
    message_id: str
    saga_id: str | None = None
    due: datetime | None = None
    timeout_id: str | None = None
    headers: Mapping[str, str]

    def __str__(self) -> str:
        """Return the message's line in the text of a failed assertion."""
        saga = "" if self.saga_id is None else f", saga {self.saga_id}"
        due = "" if self.due is None else f", due {self.due}"
        return f"{self.type} to {self.destination}{saga}{due}, body {self.body!r:.80}"


@dataclass(frozen=True, slots=True)
class ObservedFailure:
    """A message in the error queue, and the exception with which it failed."""

    message: ObservedMessage
    exception: Exception


def observed(message: Message, destination: str) -> ObservedMessage:
    """Return *message*, which was sent to *destination*, as a test sees it."""
    given = message.headers
    types = enclosed_types(message)
    deliver_at = given.get(headers.DELIVER_AT)
    return ObservedMessage(
        destination=given.get(headers.DESTINATION) or given.get(headers.FAILED_QUEUE, destination),
        type=types[0] if types else None,
        body=_body(message),
        message_id=message.id,
        saga_id=given.get(headers.SAGA_ID),
        due=None if deliver_at is None else from_micros(from_wire(deliver_at)),
        timeout_id=given.get(headers.RELATED_TO_TIMEOUT),
        headers=given,
    )


def observed_timeout(timeout: Timeout) -> ObservedMessage:
    """Return a pending *timeout*, perhaps rescheduled, as a test sees it."""
    return replace(
        observed(timeout.message, timeout.destination),
        destination=timeout.destination,
        saga_id=timeout.saga_id,
        due=from_micros(timeout.due),
        timeout_id=timeout.id,
    )


def _body(message: Message) -> Any:
    try:
        return decode_body(message.body, message.content_type)
    except (ValueError, RecursionError):
        return message.body
