"""Messages of other programs in a run: prepared like kombu's, and recognised on arrival."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from amqp import Message as AmqpMessage

from chaos.environment import Environment, scheme
from timeoutmgr.message import headers
from timeoutmgr.message.foreign import Foreign, QueueDeclaration, Route, foreign_of
from timeoutmgr.message.message import Outgoing
from timeoutmgr.transport.foreign import foreign_from_kombu, with_foreign_headers

_FLAG: Final = "Chaos.Foreign"
_NUMBER: Final = "Chaos.Number"
_KEY: Final = "consumed"


def route_of(environment: Environment) -> Route:
    """Return the route to the consumer: by an exchange that belongs to the consumer's queue."""
    exchange = f"exchange{environment.suffix}"
    queue = QueueDeclaration(
        environment.consumer, exchange, routing_key=_KEY, exchange_auto_delete=True
    )
    return Route(exchange, _KEY, (queue,))


def foreign_message(
    environment: Environment, name: str, message_type: str, body: Mapping[str, Any]
) -> Foreign:
    """Return the message *name* of another program, the same each time.

    Its headers are a text, a boolean and a number: our own messages can only have texts.
    """
    given = {headers.ENCLOSED_MESSAGE_TYPES: message_type, _FLAG: True, _NUMBER: _number_of(name)}
    properties = {"message_id": name, "correlation_id": name, "delivery_mode": 2}
    content = {"content_type": "application/json", "content_encoding": "utf-8"}
    prepared: Any
    if scheme(environment.broker) in ("amqp", "pyamqp"):
        prepared = AmqpMessage(json.dumps(body), application_headers=given, **content, **properties)
    else:
        prepared = {key.replace("_", "-"): value for key, value in content.items()}
        prepared |= {"body": json.dumps(body), "headers": given, "properties": properties}
    return foreign_from_kombu(prepared, route_of(environment))


def is_foreign(given: Mapping[str, str]) -> bool:
    """Return whether a message that an endpoint received with the headers *given* is foreign."""
    return _FLAG in given


def defect_of(name: str, given: Mapping[str, str]) -> str | None:
    """Return how the foreign message *name* differs from what was sent; None if both are equal.

    An endpoint reads each header as a text.
    """
    sent = {_FLAG: "True", _NUMBER: str(_number_of(name)), headers.CORRELATION_ID: name}
    found = {header: given.get(header) for header in sent}
    return None if found == sent else f"{name} arrived with {found}, and was sent with {sent}"


def with_traces(outgoing: Outgoing, traces: Mapping[str, str]) -> Outgoing:
    """Return a foreign *outgoing* with *traces*, and the instant of its dispatch.

    Both are added to the other program's headers: our own headers around them end with the route.
    A message of ours is returned unchanged.
    """
    foreign = foreign_of(outgoing)
    if foreign is None:
        return outgoing
    given = outgoing.message.headers
    if headers.DISPATCHED_AT in given:
        traces = {**traces, headers.DISPATCHED_AT: given[headers.DISPATCHED_AT]}
    carried = with_foreign_headers(foreign, traces).as_headers()[headers.FOREIGN]
    message = replace(outgoing.message, headers={**given, headers.FOREIGN: carried})
    return replace(outgoing, message=message)


def _number_of(name: str) -> int:
    return 2**40 + sum(name.encode())
