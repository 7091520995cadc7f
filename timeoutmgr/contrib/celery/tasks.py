"""A Celery task message: its ids, its due time, and its foreign message. Pure."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

from celery.utils.time import maybe_make_aware
from kombu import serialization
from kombu.entity import Queue
from kombu.message import Message
from kombu.transport import pyamqp, virtual
from kombu.utils import functional

from timeoutmgr.message.foreign import KOMBU, Foreign, QueueDeclaration, Route
from timeoutmgr.message.instants import from_micros, to_micros
from timeoutmgr.message.labels import MOST_LABELS
from timeoutmgr.message.validation import check_due
from timeoutmgr.transport.amqp.frames import read_properties
from timeoutmgr.transport.foreign import foreign_from_kombu, headers_of
from timeoutmgr.transport.virtual.foreign import kombu_payload

maybe_list: Any = functional.maybe_list  # has no annotations

RUN: Final = "timeoutmgr-run"
"""A header of each task: new for each send, except that Celery copies it into a retry."""
STAMP: Final = "stamp"
"""The name of the labels of stored tasks; a value is the name and value of a stamp."""
_OF_A_REPEAT: Final = frozenset({RUN, "origin"})
"""Headers that differ between two sends of the same task."""
_LONGEST_ID: Final = 200
_NAMESPACE: Final = uuid.UUID("0b7a5c0e-2f0b-5c37-9a55-6e0a4d1f3f58")
_LADDER: Final = "celery_delayed_27"
_LADDER_END: Final = "celery_delayed_delivery"
_LADDER_BITS: Final = 28


@dataclass(frozen=True, slots=True)
class TaskMessage:
    """A task that Celery is about to publish; with protocol 1, everything is in the body."""

    body: Any
    headers: Mapping[str, Any]

    @property
    def about(self) -> Mapping[str, Any]:
        """The fields of the task: in the headers, or with protocol 1 in the body.

        Empty for a message that is not a task.
        """
        for fields in (self.headers, self.body):
            if isinstance(fields, Mapping) and "task" in fields:
                return fields
        return {}

    @property
    def id(self) -> str:
        """The task id."""
        return str(self.about.get("id"))

    @property
    def name(self) -> str:
        """The name of the task."""
        return str(self.about.get("task"))

    @property
    def retries(self) -> int:
        """Number of the retry; 0 for a first send."""
        return int(self.about.get("retries") or 0)

    def due(self) -> datetime | None:
        """Return the eta in UTC, or None. A naive eta is UTC, as workers read it.

        Raises InvalidMessage for an eta that is outside the years 1 to 9999 in UTC.
        """
        eta = self.about.get("eta")
        if eta is None:
            return None
        found = datetime.fromisoformat(eta) if isinstance(eta, str) else eta
        return from_micros(check_due(to_micros(maybe_make_aware(found))))

    def moved_id(self, queue: str, content: str) -> str:
        """Return the id of a task that a worker received from *queue* and moved into the store.

        It also depends on *content*, since a program without the delays may reuse a task id. Each
        queue of a broadcast has its own copy.
        """
        return str(uuid.uuid5(_NAMESPACE, json.dumps(["moved", self.id, queue, content])))

    def message_id(self, run: str, *, is_delayed: bool, retried_eta: object = None) -> str:
        """Return an id that is the same if a redelivered task sends again, and otherwise unique.

        A first send is identified by task id and eta. A retry also by its run, since a task id may
        be reused, and by *retried_eta*, the eta of the retried task, since programs that retry
        endlessly reset the number of retries. An undelayed send is identified by its run alone.
        """
        if not is_delayed:
            parts = ["at once", self.id, run]
        elif self.retries:
            parts = ["retry", self.id, self.name, run, str(self.retries), str(retried_eta)]
        else:
            parts = ["first", self.id, str(self.about.get("eta"))]
        return str(uuid.uuid5(_NAMESPACE, json.dumps(parts)))


def stamp_labels(headers: Mapping[str, Any]) -> Mapping[str, Sequence[str]]:
    """Return the labels by which a store finds a task with *headers*: one for each stamp.

    A store keeps a limited number; workers know the stamps beyond it.
    """
    found = [*map(_storable, _stamp_texts(headers.get("stamps") or {}))]
    return {STAMP: found[:MOST_LABELS]} if found else {}


def bears(headers: Mapping[str, Any], stamps: Mapping[str, Any]) -> bool:
    """Return whether a task with *headers* has one of *stamps*, whose values may be lists."""
    borne, wanted = _stamp_texts(headers.get("stamps") or {}), _stamp_texts(stamps)
    return any(text in borne for text in wanted)


def labels_of_stamps(stamps: Mapping[str, Any]) -> Sequence[Mapping[str, str]]:
    """Return the label of each of *stamps*, whose values may be lists."""
    return [{STAMP: _storable(text)} for text in _stamp_texts(stamps)]


def _stamp_texts(stamps: Mapping[str, Any]) -> Mapping[str, None]:
    return {
        f"{name}={value if isinstance(value, str) else json.dumps(value, default=repr)}": None
        for name, values in stamps.items()
        for value in maybe_list(values) or ()
    }


def saga_of(task_id: str) -> str:
    """Return the saga id of a task's timeouts: the task id, hashed if it is too long."""
    return _storable(task_id)


def _storable(text: str) -> str:
    """Return *text*, hashed if a store would refuse it as a saga id or as the value of a label."""
    if 0 < len(text) <= _LONGEST_ID and text.isprintable():
        return text
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def foreign_task(producer: Any, body: Any, options: Mapping[str, Any], *, is_amqp: bool) -> Foreign:
    """Return the task that *producer* is asked to publish with *options*, as a foreign message.

    kombu's own code prepares it, for the kind of broker that *is_amqp* says, and without a
    connection.
    """
    given = dict(options)
    headers = dict(given.pop("headers") or {})
    exchange, delivery_mode = producer._delivery_details(
        given.pop("exchange", None) or producer.exchange, given.pop("delivery_mode", None)
    )
    content, content_type, encoding = producer._prepare(
        body,
        given.pop("serializer", None),
        given.pop("content_type", None),
        given.pop("content_encoding", None),
        given.pop("compression", None) or producer.compression,
        headers,
    )
    route = _route(exchange, given.pop("routing_key", None) or "", given.pop("declare", None) or ())
    properties = {name: value for name, value in given.items() if name not in _NO_PROPERTIES}
    properties["delivery_mode"] = delivery_mode
    # kombu's own default; without it the property is missing in AMQP.
    about = (given.get("priority", 0), content_type, encoding, headers, properties)
    return _foreign(route, content, about, is_amqp=is_amqp)


def foreign_received(message: Any, queue: Queue, *, is_amqp: bool) -> Foreign:
    """Return the *message* that a worker received from *queue*, as a foreign message for it."""
    given = dict(message.properties)
    headers = {
        name: value
        for name, value in message.headers.items()
        if name not in _OF_A_DELIVERY and not name.startswith(_OF_DEATHS)
    }
    properties = {name: value for name, value in given.items() if name not in _NO_PROPERTIES}
    for name in _OF_A_CHANNEL:
        properties.pop(name, None)
    if not is_amqp and "priority" in given:
        properties["priority"] = given["priority"]
    about = message.content_type, message.content_encoding
    # By the queue's name: an exchange may have put copies into other queues.
    route = Route("", queue.name, (_declaration(queue),))
    parts = (given.get("priority"), *about, headers, properties)
    return _foreign(route, message.body, parts, is_amqp=is_amqp)


def fields_of(foreign: Foreign, accept: Sequence[str]) -> Mapping[str, Any]:
    """Return the fields of a stored task, with the chord and callbacks from its body.

    Raises ContentDisallowed for a serializer that *accept* lacks, or any error of a serializer.
    """
    headers = headers_of(foreign)
    if foreign.codec == KOMBU:
        payload = kombu_payload(foreign)
        about = payload["content-type"], payload["content-encoding"]
    else:
        properties, _defect = read_properties(foreign.properties, 0)
        about = properties.get("content_type"), properties.get("content_encoding")
    message = _MESSAGE(
        foreign.body,
        content_type=about[0],
        content_encoding=about[1],
        headers=headers,
        accept=_PREPARE_ACCEPT(accept),
    )
    decoded = message.decode()
    return {**headers, **(decoded if isinstance(decoded, Mapping) else decoded[2])}


_MESSAGE: Final[Any] = Message  # kombu has no annotations
_PREPARE_ACCEPT: Final[Any] = serialization.prepare_accept_content


def _foreign(route: Route, content: Any, about: tuple[Any, ...], *, is_amqp: bool) -> Foreign:
    headers, properties = about[-2:]
    prepared = (_prepare_amqp if is_amqp else _prepare_virtual)(content, *about)
    digest = _digest(content, headers, properties)
    # With protocol 1, the eta is in the body, which must not be decoded.
    due_header = "eta" if headers.get("eta") else ""
    return foreign_from_kombu(prepared, route, digest, due_header)


_OF_A_DELIVERY: Final = frozenset(
    {"redelivered", "x-delivery-count", "x-acquired-count", "x-death", "x-delay", "CC", "BCC"}
    # The body of a received message is decompressed.
    | {"compression"}
)
_OF_DEATHS: Final = ("x-first-death-", "x-last-death-")
_OF_A_CHANNEL: Final = (
    *("delivery_info", "delivery_tag", "body_encoding"),
    *("application_headers", "content_type", "content_encoding"),
)
_NO_PROPERTIES: Final = frozenset(
    {"retry", "retry_policy", "mandatory", "immediate", "timeout", "confirm_timeout", "priority"}
    # Counted from the send, it would end the task early; workers obey the header ``expires``.
    | {"expiration"}
    # The broker would refuse another user's message.
    | {"user_id"}
)
_AMQP_CHANNEL: Final[Any] = pyamqp.Channel  # kombu has no annotations
_VIRTUAL_CHANNEL: Final[Any] = virtual.Channel
_prepare_amqp: Final = partial(_AMQP_CHANNEL.prepare_message, None)


def _prepare_virtual(*arguments: Any) -> Any:
    defaults = SimpleNamespace(default_priority=_VIRTUAL_CHANNEL.default_priority)
    return _VIRTUAL_CHANNEL.prepare_message(defaults, *arguments)


def _digest(content: Any, headers: Mapping[str, Any], properties: Mapping[str, Any]) -> str:
    kept = {name: value for name, value in headers.items() if name not in _OF_A_REPEAT}
    # The reply queue belongs to the sending process.
    others = {name: value for name, value in properties.items() if name != "reply_to"}
    text = json.dumps([kept, others], sort_keys=True, default=repr)
    body = content.encode() if isinstance(content, str) else bytes(content)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass") + b"\0" + body).hexdigest()


def _route(exchange: str, routing_key: str, declare: Sequence[Any]) -> Route:
    declared = tuple(_declaration(each) for each in declare if isinstance(each, Queue))
    if exchange.endswith(_LADDER):
        # Celery's own ladder of delays: the key begins with the bits of the delay.
        exchange = exchange.removesuffix(_LADDER) + _LADDER_END
        routing_key = routing_key.split(".", _LADDER_BITS)[-1]
    return Route(exchange, routing_key, declared)


def _declaration(queue: Any) -> QueueDeclaration:
    exchange = queue.exchange
    bound = exchange is not None and exchange.name
    return QueueDeclaration(
        queue=queue.name,
        exchange=exchange.name if bound else "",
        exchange_type=exchange.type if bound else "direct",
        routing_key=queue.routing_key or "",
        durable=bool(queue.durable),
        exclusive=bool(queue.exclusive),
        auto_delete=bool(queue.auto_delete),
        arguments=dict(queue.queue_arguments or {}),
        exchange_durable=bool(exchange.durable) if bound else True,
        exchange_auto_delete=bool(exchange.auto_delete) if bound else False,
        exchange_arguments=dict(exchange.arguments or {}) if bound else {},
    )
