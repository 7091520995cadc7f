"""Messages of other programs on an AMQP broker: their routes, and their properties as sent."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from math import isfinite
from struct import error as StructError
from struct import pack, unpack_from
from typing import Any, Final

from amqp import spec
from amqp.exceptions import (
    AccessRefused,
    AMQPNotImplementedError,
    FrameSyntaxError,
    InvalidCommand,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
)

from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message.foreign import AMQP, Foreign, QueueDeclaration, Route
from timeoutmgr.message.headers import BROKER_HEADERS
from timeoutmgr.transport.amqp import topology
from timeoutmgr.transport.amqp.frames import PROPERTIES, read_properties

_STEERING: Final = BROKER_HEADERS - {"compression"}
"""Headers that would send the message elsewhere, or make the broker drop it."""
_OF_A_DECLARATION: Final = (
    *(AccessRefused, AMQPNotImplementedError, FrameSyntaxError, InvalidCommand, NotAllowed),
    *(NotFound, PreconditionFailed, ResourceLocked),
    *(OverflowError, RecursionError, StructError, TypeError, ValueError),
)
"""Errors about a declaration itself, by broker or encoder; not about the broker's state."""
_SIZES: Final = dict(
    zip("otbBUusIiLlfdDTV", (1, 1, 1, 1, 2, 2, 2, 4, 4, 8, 8, 4, 8, 5, 8, 0), strict=True)
)
"""Bytes of the properties and fields of fixed size, by their letter."""


def foreign_header(foreign: Foreign) -> tuple[str, bytes]:
    """Return the message id and the payload of the content header of *foreign*, as it was sent.

    Raises InvalidMessage for properties that are of another codec, cannot be read, or steer the
    broker: another program may have written them.
    """
    foreign.require_codec(AMQP, "its broker")
    properties, defect = read_properties(foreign.properties, 0)
    steering = _steering(properties)
    if defect is None and not steering:
        defect = defect_of(foreign.properties)
    if defect is not None or steering:
        raise InvalidMessage(
            f"a foreign message for {foreign.route.destination!r:.80} has properties that cannot "
            f"be sent: {defect or f'{steering:.80} steers the broker'}; send it again without"
        )
    header = pack(">HHQ", spec.Basic.CLASS_ID, 0, len(foreign.body)) + foreign.properties
    return str(properties.get("message_id", "")), header


def defect_of(written: bytes) -> str | None:
    """Return why a broker would close the connection over the property list *written*, or None.

    At each retry, that would leave the messages of all senders on the connection in doubt.
    """
    try:
        fits = _list_end(written) == len(written)
    except (IndexError, KeyError, StructError, RecursionError):
        fits = False
    except _NotFinite as error:
        return str(error)
    return None if fits else "the sizes in the property list do not fit"


class _NotFinite(Exception):
    """A header has a number that RabbitMQ cannot read: Erlang's floats are finite."""


def _list_end(buf: bytes) -> int:
    (flags,) = unpack_from(">H", buf, 0)
    at = 2
    for position, (_, kind) in enumerate(PROPERTIES):
        if flags & (0x8000 >> position):
            if kind == "s":
                at += 1 + buf[at]
            elif kind == "F":
                at = _block_end(buf, at, _named_field_end)
            else:
                at += _SIZES[kind]
    return at


def _block_end(buf: bytes, at: int, item_end: Callable[[bytes, int], int]) -> int:
    """Return the end of the table or array at *at*; raise IndexError if its items overrun it."""
    (size,) = unpack_from(">I", buf, at)
    at += 4
    end = int(at + size)
    while at < end:
        at = item_end(buf, at)
    if at != end or end > len(buf):
        raise IndexError(f"items end at {at}, their block at {end} of {len(buf)} bytes")
    return end


def _named_field_end(buf: bytes, at: int) -> int:
    return _field_end(buf, at + 1 + buf[at])


def _field_end(buf: bytes, at: int) -> int:
    kind = chr(buf[at])
    at += 1
    if kind in "Sx":
        return int(at + 4 + unpack_from(">I", buf, at)[0])
    if kind in "FA":
        return _block_end(buf, at, _named_field_end if kind == "F" else _field_end)
    if kind in "fd" and not isfinite(number := unpack_from(f">{kind}", buf, at)[0]):
        raise _NotFinite(f"a header has the number {number}, and a broker reads finite ones only")
    return at + _SIZES[kind]


def _steering(properties: dict[str, Any]) -> str:
    """Return a part of *properties* that steers the broker; empty if there is none."""
    if "user_id" in properties:
        return "the property user_id"
    for name in properties.get("application_headers") or ():
        if str(name).lower() in _STEERING:
            return f"the header {name}"
    return ""


def declare_route(channel: Any, route: Route) -> None:
    """Declare what *route* asks for, unless it exists; existing queues are left as they are.

    Raises InvalidMessage if its exchange does not exist, or the broker refuses the declaration:
    another program may have written the route, and a publish by it would fail in the same way.
    """
    try:
        for one in route.declare:
            _declare(channel, one)
    except _OF_A_DECLARATION as error:
        raise InvalidMessage(
            f"the route of a foreign message for {route.destination!r:.80} declares what is "
            f"refused: {type(error).__name__}: {str(error)[:200]}; send it again by another route"
        ) from error
    if route.exchange and not topology.has_exchange(channel, route.exchange):
        raise InvalidMessage(
            f"exchange {route.exchange!r:.80} of a foreign message's route does not exist; create "
            "it, or start the program that owns it"
        )


def _declare(channel: Any, one: QueueDeclaration) -> None:
    if not topology.has_queue(channel, one.queue):
        # Its owner may declare it first, with other arguments.
        with suppress(PreconditionFailed):
            channel.queue_declare(one.queue, **one.queue_options)
    if not one.exchange:
        return
    if not topology.has_exchange(channel, one.exchange):
        channel.exchange_declare(one.exchange, one.exchange_type, **one.exchange_options)
    channel.queue_bind(one.queue, one.exchange, one.routing_key)
