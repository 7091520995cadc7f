"""What travels: opaque bytes, a content type and string headers, under an id that never changes."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message as it is sent and received; the body is never decoded on the way.

    *id* is the message's identity for good: a repeat of a message carries the same id, which is
    what lets a receiver drop it.
    """

    id: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    content_type: str = "application/json"
    content_encoding: str = "utf-8"


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message and the queue it is to be put into."""

    destination: str
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A message taken from a queue and not yet acknowledged.

    *tag* is the transport's own handle. *delivery_count* is how often it was handed out before,
    as far as the transport knows. *defect* says why the envelope could not be read (headers that
    are no UTF-8, say); *message* then holds what could be, and the whole of the body.
    """

    message: Message
    queue: str
    tag: Hashable = field(compare=False)
    delivery_count: int = 0
    defect: str | None = None
