"""Other programs' messages on kombu's virtual transports: routes and payloads."""

from __future__ import annotations

from typing import Any

from kombu.transport.virtual.base import NotEquivalentError
from kombu.utils import json as kombu_json

from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message.foreign import KOMBU, Foreign, QueueDeclaration, Route

json: Any = kombu_json  # has no annotations


def encoded_payload(payload: dict[str, Any]) -> bytes:
    """Return kombu's *payload* without its body, as the properties of a foreign message."""
    kept = {name: value for name, value in payload.items() if name != "body"}
    return str(json.dumps(kept)).encode("utf-8", "surrogatepass")


def kombu_payload(foreign: Foreign) -> dict[str, Any]:
    """Return *foreign* as kombu's channel publishes it.

    Raises InvalidMessage for properties that are of another codec or cannot be read: another
    program may have written them.
    """
    foreign.require_codec(KOMBU, "its broker")
    try:
        found = json.loads(foreign.properties.decode("utf-8", "surrogatepass"))
        properties = {**found["properties"], "delivery_info": {}}
        return {**found, "headers": {**found["headers"]}, "properties": properties} | {
            "body": foreign.body
        }
    except Exception as error:  # kombu's JSON hooks can raise anything on another program's text
        raise InvalidMessage(
            f"a foreign message for {foreign.route.destination!r:.80} has no readable headers and "
            f"properties ({type(error).__name__}: {str(error)[:200]}); send it again"
        ) from error


def has_queues(channel: Any, route: Route) -> bool:
    """Declare what *route* asks for; return whether it leads to a queue.

    Only the process that declares an exchange of a virtual transport knows it, so the declaration
    is repeated. The default exchange reaches every queue, as it does for other programs. Raises
    InvalidMessage if kombu refuses the route: another program may have written it, and other
    messages are sent together with this message.
    """
    try:
        for one in route.declare:
            _declare(channel, one)
        return not route.exchange or _leads_to_a_queue(channel, route)
    except NotEquivalentError as error:
        raise InvalidMessage(
            f"an exchange of a foreign message's route to {route.destination!r:.80} is declared "
            f"otherwise in this process: {error}; send it with that declaration"
        ) from error
    except (LookupError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise InvalidMessage(
            f"the route of a foreign message for {route.destination!r:.80} declares what is "
            f"refused: {type(error).__name__}: {str(error)[:200]}; send it again by another route"
        ) from error


def _leads_to_a_queue(channel: Any, route: Route) -> bool:
    try:
        table = channel.get_table(route.exchange)
    except KeyError:  # as kombu's memory transport answers for an undeclared exchange
        return False
    kind = channel.typeof(route.exchange)
    return bool(kind.lookup(table, route.exchange, route.routing_key, None))


def _declare(channel: Any, one: QueueDeclaration) -> None:
    if one.exchange:
        channel.exchange_declare(one.exchange, one.exchange_type, **one.exchange_options)
    channel.queue_declare(one.queue, **one.queue_options)
    if one.exchange:
        channel.queue_bind(one.queue, one.exchange, one.routing_key)
