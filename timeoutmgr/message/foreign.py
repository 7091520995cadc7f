"""Foreign messages, of other programs: opaque, in their broker's encoding, sent by a route.

A foreign message has headers of any kind, and properties that our messages lack. It travels as one
of our messages, whose header ``TimeoutManager.Foreign`` has the encoded headers and properties, so
that queues, stores, error queues and migrations need not know about it. Its route travels in the
header ``TimeoutManager.Route``. The session that sends it to its destination decodes both (ADR 33).
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any, Final

from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message import headers
from timeoutmgr.message.message import NO_NUMBERS, Message, Outgoing, with_headers

AMQP: Final = "amqp-0-9-1"
"""The codec of AMQP brokers: property flags and property list, as in a content header."""
KOMBU: Final = "kombu"
"""The codec of kombu's virtual transports: headers, properties and content type as JSON."""
UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")
"""NUL and lone surrogates, which databases and brokers refuse in a text."""
_OF_AN_EXCHANGE: Final = "exchange:"
_NAME_BYTES: Final = 255
"""Maximum bytes of UTF-8 in a name of AMQP."""
_NAMES: Final = frozenset({"queue", "exchange", "exchange_type", "routing_key"})
_CODECS: Final = frozenset({AMQP, KOMBU})


@dataclass(frozen=True, slots=True)
class QueueDeclaration:
    """A queue to declare before a message is routed, with its exchange and its binding.

    An empty *exchange* binds nothing: the broker routes to each queue by its name.
    """

    queue: str
    exchange: str = ""
    exchange_type: str = "direct"
    routing_key: str = ""
    durable: bool = True
    exclusive: bool = False
    auto_delete: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)
    exchange_durable: bool = True
    exchange_auto_delete: bool = False
    exchange_arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def queue_options(self) -> dict[str, Any]:
        """The options with which the queue is declared."""
        flags = {"durable": self.durable, "exclusive": self.exclusive}
        return {**flags, "auto_delete": self.auto_delete, "arguments": dict(self.arguments)}

    @property
    def exchange_options(self) -> dict[str, Any]:
        """The options with which the exchange is declared."""
        flags = {"durable": self.exchange_durable, "auto_delete": self.exchange_auto_delete}
        return {**flags, "arguments": dict(self.exchange_arguments)}


@dataclass(frozen=True, slots=True)
class Route:
    """A destination on a broker with exchanges; a ``Via`` of a message that is sent.

    Each queue of *declare* is declared before the send, so that it exists before its first
    consumer starts.
    """

    exchange: str
    routing_key: str
    declare: tuple[QueueDeclaration, ...] = field(default=(), hash=False)

    @property
    def destination(self) -> str:
        """The route as the name of a destination, for allow-lists and for lists.

        The default exchange routes to queues by their names, so its routes are named like queues.
        Any two other routes have different destinations.
        """
        if not self.exchange:
            return self.routing_key
        exchange = self.exchange.replace("%", "%25").replace("/", "%2F")
        return f"{_OF_AN_EXCHANGE}{exchange}/{self.routing_key}"

    def address(self) -> tuple[str, str]:
        """Return exchange and routing key."""
        return self.exchange, self.routing_key

    def numbers(self, message: Message) -> Mapping[str, int]:
        """Return no headers: a foreign message is sent unchanged."""
        return NO_NUMBERS

    def as_headers(self) -> dict[str, str]:
        """Return the header with the route for queues and stores. Raises InvalidMessage."""
        try:
            return {headers.ROUTE: json.dumps(asdict(self), separators=(",", ":"))}
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidMessage(
                f"the route to {self.destination!r:.80} cannot be written as JSON: "
                f"{str(error)[:200]}; declare its queues with plain arguments"
            ) from error


def is_of_an_exchange(destination: str) -> bool:
    """Return whether *destination* names a route by an exchange, not a queue."""
    return destination.startswith(_OF_AN_EXCHANGE)


def route_of(message: Message) -> Route | None:
    """Return the route that *message* carries; None if it carries none.

    Raises InvalidMessage for a malformed header, which a stranger may have written.
    """
    text = message.headers.get(headers.ROUTE)
    if text is None:
        return None
    try:
        found = json.loads(text, parse_constant=_finite, parse_float=_finite)
        declare = tuple(_declaration(each) for each in found.pop("declare"))
        route = Route(**found, declare=declare)
        _check_names(exchange=route.exchange, routing_key=route.routing_key)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidMessage(
            f"header {headers.ROUTE!r} of message {message.id!r:.80} is not a route: "
            f"{str(error)[:200]}; send the message again"
        ) from error
    return route


def _finite(number: str) -> float:
    if not isfinite(found := float(number)):
        raise ValueError(f"a broker reads finite numbers only, and no {number:.80}")
    return found


def _declaration(found: dict[str, Any]) -> QueueDeclaration:
    declared = QueueDeclaration(**found)
    _check_names(**{what: name for what, name in found.items() if what in _NAMES})
    if not declared.queue:
        raise ValueError("a declaration has the name of its queue")
    return declared


def require_storable(what: str, text: str) -> None:
    """Raise InvalidMessage for a *text* that databases refuse."""
    if UNSTORABLE.search(text):
        raise InvalidMessage(
            f"{what}, {text!r:.80}, has NUL or half a surrogate pair, which databases refuse; "
            "leave them out"
        )


def _check_names(**names: object) -> None:
    """Raise ValueError for a name that is invalid in AMQP: each transport would refuse it later.

    By then the message is in a batch, and a refusal that names no message affects the whole batch.
    """
    for what, name in names.items():
        if not isinstance(name, str):
            raise TypeError(f"{what} is text, got {name!r:.80}")
        if len(name.encode("utf-8", "surrogatepass")) > _NAME_BYTES or UNSTORABLE.search(name):
            raise ValueError(
                f"{what} {name!r:.80} has NUL, half a surrogate pair or more than {_NAME_BYTES} "
                "bytes of UTF-8"
            )


def outgoing_to(destination: str, message: Message) -> Outgoing:
    """Return *message* addressed to *destination*: by its route, if that leads there.

    Otherwise *destination* is a queue, such as a satellite's or an error queue.
    """
    if headers.ROUTE not in message.headers:
        return Outgoing(destination, message)
    route = route_of(message)
    leads_there = route is not None and route.destination == destination
    return Outgoing(destination, message, route if leads_there else None)


def finally_to(destination: str, message: Message) -> Outgoing:
    """Return *message* addressed to its final *destination*, the queue of its consumer.

    If a foreign message was rerouted to a queue, the default exchange delivers it.
    """
    outgoing = outgoing_to(destination, message)
    is_rerouted = outgoing.via is None and headers.FOREIGN in message.headers
    if not is_rerouted or is_of_an_exchange(destination):
        return outgoing
    return Outgoing(destination, message, Route("", destination))


@dataclass(frozen=True, slots=True)
class Foreign:
    """A message of another program, as the body of a send to ``route.destination``.

    *codec* names the encoding of *properties*: everything in the message except its *body*. The
    destination's broker must have the same codec. *content*, if given, decides whether two messages
    with one id are the same (see ``content_of``), because programs add headers that differ in each
    repeat. *due_header* names a header with the due time as ISO 8601. It changes when the timeout
    is moved: a consumer that obeys it would otherwise wait again after a move to an earlier time.
    """

    route: Route
    codec: str
    properties: bytes
    body: bytes = b""
    content: str = ""
    due_header: str = ""

    def __post_init__(self) -> None:
        """Check the codec."""
        if self.codec not in _CODECS:
            raise InvalidMessage(
                f"a foreign message has the codec {self.codec!r:.40}; expected one of "
                f"{', '.join(sorted(_CODECS))}"
            )

    def require_codec(self, codec: str, reader: str) -> None:
        """Raise InvalidMessage unless *reader*, a broker or queue, reads the properties."""
        if self.codec != codec:
            raise InvalidMessage(
                f"a foreign message for {self.route.destination!r:.80} is encoded as "
                f"{self.codec!r}, and {reader} reads {codec!r}; send it again for "
                f"this {reader.rpartition(' ')[2]}"
            )

    def as_headers(self) -> dict[str, str]:
        """Return the headers that represent the message in queues and stores."""
        text = f"{self.codec} {base64.b64encode(self.properties).decode()}"
        carried = {**self.route.as_headers(), headers.FOREIGN: text}
        if self.content:
            carried[headers.FOREIGN_CONTENT] = self.content
        if self.due_header:
            carried[headers.FOREIGN_DUE] = self.due_header
        return carried


def foreign_of(outgoing: Outgoing) -> Foreign | None:
    """Return the foreign message that *outgoing* delivers by its route; None for a message of ours.

    Raises InvalidMessage for a malformed header, which a stranger may have written.
    """
    message, route = outgoing.message, outgoing.via
    text = message.headers.get(headers.FOREIGN)
    if text is None or not isinstance(route, Route):
        return None
    codec, _, encoded = text.partition(" ")
    try:
        properties = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidMessage(
            f"header {headers.FOREIGN!r} of message {message.id!r:.80} is not a codec and base64: "
            f"{error}; send the message again"
        ) from error
    return Foreign(route, codec, properties, message.body)


def is_delayed_by_broker(outgoing: Outgoing) -> bool:
    """Return whether *outgoing* goes through a broker's delay levels."""
    return outgoing.via is not None and not isinstance(outgoing.via, Route)


def without_route(outgoing: Outgoing) -> Message:
    """Return the message of *outgoing* as its destination gets it: not with a route that ends."""
    message = outgoing.message
    if not isinstance(outgoing.via, Route):
        return message
    kept = {name: value for name, value in message.headers.items() if name != headers.ROUTE}
    return with_headers(message, kept)
