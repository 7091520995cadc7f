"""Message: opaque bytes, a content type and string headers, with an id that never changes."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import Final, Protocol

from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message import headers
from timeoutmgr.message.field_types import check_field_types
from timeoutmgr.message.instants import Micros

# --- expiry: a time to be received, after which an endpoint does not handle the message -------


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """Policy for messages that are received too late; *allowance* is for clock differences."""

    discard: bool = True
    allowance: timedelta = timedelta(0)

    def __post_init__(self) -> None:
        """Check every value."""
        check_field_types(self)
        if self.allowance < timedelta(0):
            raise ConfigurationError(
                f"the allowance for clocks must not be negative, got {self.allowance}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message as it is sent and received; only handlers decode its body.

    *id* identifies the message forever: a repeat has the same id, so that a receiver can drop it.
    """

    id: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    content_type: str = "application/json"
    content_encoding: str = "utf-8"


def with_headers(message: Message, headers: Mapping[str, str]) -> Message:
    """Return *message* with these *headers* in place of its own."""
    # Like ``replace``, which takes twice as long; each message passes here twice.
    return Message(
        id=message.id,
        headers=headers,
        body=message.body,
        content_type=message.content_type,
        content_encoding=message.content_encoding,
    )


NO_NUMBERS: Final[Mapping[str, int]] = MappingProxyType({})


class Via(Protocol):
    """A route to a queue through exchanges of a broker."""

    def address(self) -> tuple[str, str]:
        """Return the present exchange and routing key; called when the message is written."""
        ...

    def numbers(self, message: Message) -> Mapping[str, int]:
        """Return headers that must be numbers for other programs on the route."""
        ...


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message and its queue, to be sent directly, or *via* a route that delays it.

    *time_to_live*, in microseconds, expires the message in its queue unless it is received before.
    A transport that cannot do so leaves the check to the receiver.
    """

    destination: str
    message: Message
    via: Via | None = None
    time_to_live: Micros | None = None


@dataclass(frozen=True, slots=True)
class Death:
    """A broker's report on a message that it dead-lettered: in which queue, why, how often."""

    queue: str
    reason: str
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A message taken from a queue and not yet acknowledged.

    *tag* is the transport's own handle. *delivery_count* is the number of earlier deliveries, as
    far as the transport knows. *defect* says why the envelope could not be read, such as headers
    that are not UTF-8; *message* then has the readable part and the whole body. *death* is the
    newest report of a broker that moved it here. *routing_key* is the key of the publish, if the
    broker reports it.
    """

    message: Message
    queue: str
    tag: Hashable = field(compare=False)
    delivery_count: int = 0
    defect: str | None = None
    death: Death | None = None
    routing_key: str | None = field(default=None, compare=False)


def first_type(enclosed: str | None) -> str | None:
    """Return the full name of the first type that a header *enclosed* names; None without one.

    NServiceBus writes the assembly after a comma, and further types after a semicolon.
    """
    return enclosed and enclosed.partition(";")[0].partition(",")[0].strip()


def enclosed_types(message: Message) -> list[str]:
    """Return the types in the header of *message*, most specific first.

    Reads plain names and NServiceBus' ``Namespace.Type, Assembly;…`` alike; each full name is
    followed by its last part.
    """
    names: list[str] = []
    for entry in message.headers.get(headers.ENCLOSED_MESSAGE_TYPES, "").split(";"):
        full = entry.partition(",")[0].strip()
        short = full.rpartition(".")[2].rpartition("+")[2]
        names += [full, short]
    return [name for name in dict.fromkeys(names) if name]
