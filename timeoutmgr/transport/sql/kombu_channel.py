"""A kombu channel over the SQL queue."""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import Iterable
from queue import Empty
from typing import Any, Final, NamedTuple

from amqp.exceptions import NotFound, PreconditionFailed, ResourceLocked
from amqp.protocol import queue_declare_ok_t
from kombu.transport import base as kombu_base
from kombu.transport import virtual as kombu_virtual
from kombu.utils import json as kombu_json

from timeoutmgr.errors import InvalidMessage, LeaseLost, TransportUnavailable
from timeoutmgr.message import headers as names
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Message, first_type
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.transport.sql.foreign import matching_queues
from timeoutmgr.transport.sql.options import PLAIN, QueueOptions, asked_by, declared_options
from timeoutmgr.transport.sql.owned_queues import OwnedQueues
from timeoutmgr.transport.sql.queues import SqlQueues
from timeoutmgr.transport.sql.receiver import SqlReceiver
from timeoutmgr.transport.sql.statements import as_transport
from timeoutmgr.transport.sql.tables import LeasedRow, LeaseTag, checked_queue_name, row_of
from timeoutmgr.transport.sql.transport import SqlTransport
from timeoutmgr.transport.virtual.raw_message import table

logger = logging.getLogger(__name__)

# --- A kombu message as a row of the queue table, and back ------------------------------------

json: Any = kombu_json  # has no annotations

_OF_THE_DELIVERY: Final = frozenset({"delivery_tag", "body_encoding"})
_TRANSIENT: Final = 1
_PERSISTENT: Final = 2


def from_kombu(
    queue: str, message: dict[str, Any], body: str | bytes, now: Micros
) -> dict[str, Any]:
    """Return kombu's *message*, whose *body* was decoded already, as a row.

    Headers and properties of all types that JSON knows are kept for kombu's consumers; our
    receivers see strings. Raises InvalidMessage if they are nested too deeply.
    """
    headers = message.get("headers") or {}
    properties = {
        name: value for name, value in message["properties"].items() if name not in _OF_THE_DELIVERY
    }
    message_id = headers.get(names.MESSAGE_ID) or properties.get("message_id") or uuid.uuid4()
    row = row_of(
        queue,
        Message(
            id=str(message_id),
            body=body.encode() if isinstance(body, str) else bytes(body),
            content_type=message.get("content-type") or "application/octet-stream",
            content_encoding=message.get("content-encoding") or "binary",
        ),
        _spelt(headers),
        _spelt(properties),
        now,
    )
    return row | asked_by(properties)


def to_kombu(queue: str, row: LeasedRow) -> dict[str, Any]:
    """Return the leased *row* as the payload of which kombu makes a message.

    Unreadable parts of another program's row are left out: otherwise the row would crash its
    consumer and be delivered again.
    """
    headers = _read(row.message_id, "headers", row.headers) or {}
    properties = None
    if row.properties is not None:
        properties = _read(row.message_id, "properties", row.properties)
    if properties is None:
        properties = _properties_of_ours(queue, row.message_id, headers)
    redelivered = row.delivery_count > 0
    properties["delivery_info"] = {
        **table(properties.get("delivery_info")),
        "redelivered": redelivered,
    }
    properties["delivery_tag"] = f"{row.sequence}.{row.delivery_count + 1}"
    properties["body_encoding"] = None
    return {
        "body": bytes(row.body),
        "content-type": row.content_type,
        "content-encoding": row.content_encoding,
        "headers": headers,
        "properties": properties,
        "redelivered": redelivered,
    }


def _spelt(table: dict[str, Any]) -> str:
    try:
        return str(json.dumps(table))
    except RecursionError:
        raise InvalidMessage("headers or properties are nested too deep; send flat ones") from None


def _read(message_id: str, what: str, text: str) -> dict[str, Any] | None:
    fields = {"event": "message_unreadable", "message_id": message_id}
    try:
        found = json.loads(text)
        if isinstance(found, dict):
            return found
        logger.warning(
            "message %.80r has %s that are not a JSON object", message_id, what, extra=fields
        )
    except Exception as error:  # kombu's JSON hooks can raise anything on another program's text
        logger.warning(
            "message %.80r has unreadable %s: %s",
            message_id,
            what,
            on_one_line(error),
            extra=fields,
        )
    return None


def _properties_of_ours(queue: str, message_id: str, headers: dict[str, str]) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "message_id": message_id,
        "delivery_mode": _PERSISTENT,
        "priority": 0,
        "delivery_info": {"exchange": "", "routing_key": queue},
    }
    if names.CORRELATION_ID in headers:
        properties["correlation_id"] = headers[names.CORRELATION_ID]
    if names.REPLY_TO in headers:
        properties["reply_to"] = headers[names.REPLY_TO]
    if isinstance(enclosed := headers.get(names.ENCLOSED_MESSAGE_TYPES), str):
        properties["type"] = first_type(enclosed)
    return properties


virtual: Any = kombu_virtual  # kombu has too few annotations to check against
to_rabbitmq_queue_arguments: Any = kombu_base.to_rabbitmq_queue_arguments

_LARGEST_BATCH: Final = 20


class LeasedMessage(NamedTuple):
    """A message that kombu is processing: its receiver and its tag."""

    receiver: SqlReceiver
    tag: LeaseTag


class QoS(virtual.QoS):  # type: ignore[misc]  # kombu's is untyped
    """The unacknowledged messages. They stay in the table, so nothing need be restored."""

    def ack(self, delivery_tag: str) -> None:
        """Delete the message."""
        self.channel.settle(delivery_tag)
        self._settled(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Give the message back, or drop it."""
        if requeue:
            self.channel.give_back([delivery_tag])
        else:
            self.channel.settle(delivery_tag)
        self._settled(delivery_tag)

    def _settled(self, delivery_tag: str) -> None:
        super().ack(delivery_tag)
        self.channel.connection.room_made()

    def restore_unacked(self) -> list[Any]:
        """Give back all unacknowledged messages; none can fail to be restored."""
        self._flush()
        self.channel.give_back(list(self._delivered))
        self._delivered.clear()
        return []


class Channel(virtual.Channel):  # type: ignore[misc]  # kombu's is untyped
    """A channel; used by one thread, like kombu's channels."""

    QoS = QoS

    # Restoring would publish a second copy of a message that is still in the table.
    do_restore = False
    supports_fanout = True
    body_encoding = None

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._receivers: dict[str, SqlReceiver] = {}
        self._leased: dict[str, deque[LeasedRow]] = {}
        self._deliveries: dict[str, LeasedMessage] = {}
        self._without_ack: set[str] = set()
        self._options: dict[str, QueueOptions] = {}

    # --- queues

    @property
    def _queues(self) -> SqlQueues:
        queues: SqlQueues = self.connection.sql.queues
        return queues

    def queue_declare(self, queue: str | None = None, passive: bool = False, **kwargs: Any) -> Any:
        """Declare the queue; return its name and the number of its messages."""
        if passive or not queue:
            return super().queue_declare(queue, passive, **kwargs)
        return queue_declare_ok_t(queue, self._new_queue(queue, **kwargs), 0)

    def _new_queue(self, queue: str, **kwargs: Any) -> int:
        options = declared_options(
            kwargs.get("arguments"),
            auto_delete=kwargs.get("auto_delete", False),
            exclusive=kwargs.get("exclusive", False),
            durable=kwargs.get("durable", True),
        )
        with self._as_transport():
            standing = self.connection.sql.owned_queues.standing(checked_queue_name(queue))
            if standing is None:
                self._queues.create([queue], options=options)
        if options.has_owners and (standing is None or not standing.meets(options)):
            self._own(queue, options)
            if standing is not None and not self._has_queue(queue):
                return self._new_queue(queue, **kwargs)  # another process deleted it meanwhile
        return 0 if standing is None else standing.messages

    def prepare_queue_arguments(self, arguments: Any, **kwargs: Any) -> Any:
        """Return *arguments* with kombu's own options under RabbitMQ's names."""
        return to_rabbitmq_queue_arguments(arguments or {}, **kwargs)

    def _own(self, queue: str, options: QueueOptions, *, consuming: bool = False) -> None:
        with self._as_transport():
            owned: OwnedQueues = self.connection.sql.owned_queues
            other = owned.declare(queue, options, consuming=consuming)
        if other is not None:
            raise ResourceLocked(
                f"queue {queue!r} is exclusive to owner {other!r}; use a queue of your own",
                (50, 10),
                "Channel.queue_declare",
            )

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        with self._as_transport():
            return not self._queues.missing([queue])

    def _size(self, queue: str) -> int:
        with self._as_transport():
            return self._queues.count_unexpired(queue)

    def _purge(self, queue: str) -> int:
        with self._as_transport():
            return self._queues.purge(queue)

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any
    ) -> None:
        """Delete the queue with its messages and bindings."""
        if if_empty and self._size(queue):
            return
        with self._as_transport():
            self._queues.delete([queue])

    # --- exchanges: their bindings are in the database, so that every process sees them

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **kwargs: Any,
    ) -> None:
        """Bind the queue; twice is fine."""
        exchange = exchange or "amq.direct"
        with self._as_transport():
            self._queues.bind(exchange, routing_key or "", queue, self.typeof(exchange).type)

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **kwargs: Any,
    ) -> None:
        """Undo a binding."""
        with self._as_transport():
            self._queues.unbind(exchange or "amq.direct", routing_key or "", queue)

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        """Delete the exchange and its bindings, not the queues."""
        self.state.exchanges.pop(exchange, None)
        with self._as_transport():
            self._queues.delete_exchange(exchange)

    def get_table(self, exchange: str) -> list[tuple[str, str | None, str]]:
        """Return routing key, pattern and queue of each binding."""
        kind = self.typeof(exchange)
        return [
            (*kind.prepare_bind(queue, exchange, routing_key, None)[:2], queue)
            for routing_key, queue, _ in self._bindings(exchange)
        ]

    def typeof(self, exchange: str, default: str = "direct") -> Any:
        """Return the exchange's type, even if another process declared the exchange."""
        if exchange not in self.state.exchanges:
            for _, _, kind in self._bindings(exchange):
                return self.exchange_types[kind]
        return super().typeof(exchange, default)

    def _lookup(self, exchange: str, routing_key: str, default: str | None = None) -> list[str]:
        if not exchange:
            return super()._lookup(exchange, routing_key, default)  # type: ignore[no-any-return]  # kombu is untyped
        return sorted(matching_queues(self._bindings(exchange), routing_key))

    def _bindings(self, exchange: str) -> list[tuple[str, str, str]]:
        with self._as_transport():
            return self._queues.bindings(exchange)

    # --- sending

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        if queue not in self._store([queue], message):
            if self._has_queue(queue):
                raise PreconditionFailed(
                    f"queue {queue!r} is full; consume from it, or send later",
                    (60, 40),
                    "Channel.put",
                )
            # A broker would drop it silently.
            raise NotFound(
                f"no queue {queue!r}; declare it before publishing to it", (50, 10), "Channel.put"
            )

    def _put_fanout(
        self, exchange: str, message: dict[str, Any], routing_key: str, **kwargs: Any
    ) -> None:
        # Queues of dead owners must not grow.
        with self._as_transport():
            self.connection.sql.owned_queues.sweep_in_time()
        self._store({queue for _, queue, _ in self._bindings(exchange)}, message)

    def _store(self, queues: Iterable[str], message: dict[str, Any]) -> set[str]:
        properties = message["properties"]
        body = self.decode_body(message["body"], properties.get("body_encoding"))
        now = self.connection.sql.clock.now()
        rows = [from_kombu(queue, message, body, now) for queue in queues]
        with self._as_transport():
            transient = properties.get("delivery_mode") == _TRANSIENT
            kept = self._queues.put(rows, None, transient=transient)
            return {row["queue"] for row in kept}

    # --- receiving

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any
    ) -> None:
        """Consume from the queue."""
        # As with kombu's callback, the last consumer's setting counts.
        (self._without_ack.add if no_ack else self._without_ack.discard)(queue)
        self._receiver(queue)
        if (options := self._options[queue]).has_owners:
            self._own(queue, options, consuming=True)
            self.connection.consumed[queue] += 1
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)

    def basic_cancel(self, consumer_tag: str) -> None:
        """Stop consuming; messages leased ahead go back."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        self._without_ack.discard(queue)  # kombu no longer calls any consumer of the queue
        ahead = () if queue in self._active_queues else self._leased.pop(queue, ())
        if ahead:
            self._receivers[queue].release_tags([_tag(row) for row in ahead])
        if queue is not None and self._options.get(queue, PLAIN).has_owners:
            self._leave(queue)

    def _leave(self, queue: str) -> None:
        self.connection.consumed[queue] -= 1
        if self.connection.consumed[queue] > 0:
            return
        try:
            with self._as_transport():
                self.connection.sql.owned_queues.leave(queue)
        except TransportUnavailable as error:
            # Releasing our session lock ends our ownership of the queue.
            logger.warning(
                "consumer of queue %s could not leave it: %s",
                queue,
                on_one_line(error),
                extra={"event": "queue_not_left"},
            )

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Return one message, or None."""
        rows = self._receiver(queue).receive_rows(1, 0, for_good=no_ack)
        if (options := self._options[queue]).expires is not None:
            self._own(queue, options)
        if not rows:
            return None
        if no_ack:
            return self.Message(to_kombu(queue, rows[0]), channel=self)
        message = self.Message(self._deliver(queue, rows[0]), channel=self)
        self.qos.append(message, message.delivery_tag)
        return message

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        if queue in self._without_ack:
            # One by one: messages fetched ahead could not be given back.
            for row in self._receiver(queue).poll_rows(1, for_good=True):
                return to_kombu(queue, row)
            raise Empty
        ahead = self._leased.setdefault(queue, deque())
        if not ahead:
            ahead.extend(self._receiver(queue).poll_rows(self._room()))
        if not ahead:
            raise Empty
        return self._deliver(queue, ahead.popleft())

    def _deliver(self, queue: str, row: LeasedRow) -> dict[str, Any]:
        payload = to_kombu(queue, row)
        self._deliveries[payload["properties"]["delivery_tag"]] = LeasedMessage(
            self._receiver(queue), _tag(row)
        )
        return payload

    def _receiver(self, queue: str) -> SqlReceiver:
        if queue not in self._receivers:
            sql: SqlTransport = self.connection.sql
            with self._as_transport():
                self._options[queue] = options = sql.queues.options(queue)
            statements = sql.lease_statements
            front = statements.by_priority if options.max_priority else statements.unexpired
            self._receivers[queue] = sql.make_receiver(queue, 0, front)
        return self._receivers[queue]

    def _room(self) -> int:
        room = self.qos.can_consume_max_estimate()
        if room is None:
            return _LARGEST_BATCH
        return int(min(_LARGEST_BATCH, room - sum(map(len, self._leased.values()))))

    # --- settling

    def settle(self, delivery_tag: str) -> None:
        """Delete the message."""
        delivery = self._deliveries.get(delivery_tag)
        if delivery is None:
            return
        try:
            delivery.receiver.ack_tags([delivery.tag], lazily=True)
        except LeaseLost as error:
            # As with a broker that redelivered meanwhile: consumers of kombu know no such error.
            logger.warning(
                "consumer of queue %s acknowledged a message without its lease: %s",
                delivery.receiver.queue,
                on_one_line(error),
                extra={"event": "lease_lost"},
            )
        del self._deliveries[delivery_tag]

    def give_back(self, delivery_tags: list[str]) -> None:
        """Let messages be delivered again."""
        for delivery_tag in delivery_tags:
            if (delivery := self._deliveries.get(delivery_tag)) is not None:
                delivery.receiver.release_tags([delivery.tag])
                del self._deliveries[delivery_tag]

    def close(self) -> None:
        """Give back unacknowledged messages, and close."""
        receivers, self._receivers = self._receivers, {}
        self._leased.clear()
        for receiver in receivers.values():
            try:
                receiver.close()
            except TransportUnavailable as error:
                # Releasing our session lock frees it, or the end of the lease.
                logger.warning(
                    "receiver of queue %s could not give a message back: %s",
                    receiver.queue,
                    on_one_line(error),
                    extra={"event": "message_not_released"},
                )
        super().close()

    def _as_transport(self) -> Any:
        return as_transport(self.connection.sql.database)


def _tag(row: LeasedRow) -> LeaseTag:
    return row.sequence, row.delivery_count + 1
