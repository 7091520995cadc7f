"""Relay of whole messages on one broker: properties and headers of all types stay as they came.

Messages between endpoints have string headers; other programs' messages in shared queues (Celery's
tasks, say) have numbers, lists and nulls, which a relay must not change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from struct import pack
from typing import Any, Final

from amqp import spec

from timeoutmgr.contracts import SendResult
from timeoutmgr.message.headers import BROKER_HEADERS
from timeoutmgr.message.message import Received
from timeoutmgr.transport.amqp.connection import AmqpConnection, broker_errors
from timeoutmgr.transport.amqp.dispatch import ConfirmWindow, EncodedMessage
from timeoutmgr.transport.amqp.frames import RawContent, publish_method
from timeoutmgr.transport.amqp.receiver import RabbitMQReceiver
from timeoutmgr.transport.settings import KombuSettings

MOST_BYTES: Final = 32 * 1024 * 1024
"""Maximum bytes of bodies that are read from the broker in one call; several copies exist while
they are stored or published again."""

_PERSISTENT: Final = 2
_HEADERS: Final = "application_headers"


@dataclass(frozen=True, slots=True)
class Relayed:
    """An unacknowledged message, with its *headers* as they came."""

    received: Received
    headers: Mapping[str, Any]
    content: RawContent

    def publishing(self, exchange: str, key: str, more: Mapping[str, str | int]) -> EncodedMessage:
        """Return the message encoded, with *more* headers and without the broker's headers."""
        table = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in BROKER_HEADERS
        }
        # "expiration" would be a second time to live; RabbitMQ refuses another user's "user_id".
        left_out = ("expiration", "user_id")
        kept = {name: v for name, v in self.content.properties.items() if name not in left_out}
        content = RawContent(**kept | {_HEADERS: table | dict(more), "delivery_mode": _PERSISTENT})
        body = self.received.message.body
        header = pack(">HHQ", spec.Basic.CLASS_ID, 0, len(body)) + content._serialize_properties()
        return EncodedMessage(
            routing_key=key,
            message_id=str(kept.get("message_id", "")),
            method=publish_method(key, exchange),
            header=header,
            body=body,
        )


class Relay:
    """Receives from one queue, and publishes in confirm windows; used by one thread."""

    def __init__(
        self,
        connect: Callable[[], AmqpConnection],
        settings: KombuSettings,
        queue: str,
        prefetch: int,
    ) -> None:
        self._connect = connect
        self._settings = settings
        self._receiver = _WholeReceiver(connect, queue, prefetch)
        self._sending: tuple[AmqpConnection, ConfirmWindow] | None = None

    def receive(self, limit: int, wait: float) -> list[Relayed]:
        """Return up to *limit* messages; wait at most *wait* seconds for the first.

        Return fewer if their bodies together reach about MOST_BYTES.
        """
        return [
            Relayed(one, content.properties.get(_HEADERS) or {}, content)
            for one in self._receiver.receive(limit, wait)
            for content in [self._receiver.content_of(one)]
        ]

    def publish(self, publishings: Sequence[EncodedMessage]) -> list[SendResult]:
        """Publish all and return the broker's answers; REFUSED for all while an alarm blocks it."""
        if self._sending is None or _is_over(*self._sending):
            self._sending = self._open()
        connection, window = self._sending
        with connection.lock, broker_errors("relaying"):
            return window.send(publishings)

    def ack(self, relayed: Sequence[Relayed]) -> None:
        """Acknowledge messages."""
        self._receiver.ack([one.received for one in relayed])

    def close(self) -> None:
        """Give back unsettled messages."""
        self._receiver.close()
        if self._sending is not None:
            connection, _window = self._sending
            with connection.lock:
                connection.close()

    def _open(self) -> tuple[AmqpConnection, ConfirmWindow]:
        connection = self._connect()
        with connection.lock, broker_errors("relaying"):
            settings = self._settings
            window = ConfirmWindow(connection, settings.confirm_window, settings.confirm_timeout)
        return connection, window


def _is_over(connection: AmqpConnection, window: ConfirmWindow) -> bool:
    """Return whether *window* is spent, and no alarm blocks its *connection* any more."""
    if not window.spent:
        return False
    with connection.lock:
        if connection.is_alive() and connection.blocked:
            return False
        connection.drop("its confirms are not to be trusted")
    return True


class _WholeReceiver(RabbitMQReceiver):
    """A receiver that keeps the raw content of each message."""

    def __init__(self, connect: Callable[[], AmqpConnection], queue: str, prefetch: int) -> None:
        self._contents: dict[object, RawContent] = {}
        self._bytes = 0
        super().__init__(connect, queue, prefetch)

    def content_of(self, received: Received) -> RawContent:
        """Return the raw content of a message, once."""
        content = self._contents.pop(received.tag)
        self._bytes -= len(received.message.body)
        return content

    def _open(self) -> None:
        self._contents.clear()
        self._bytes = 0
        super()._open()

    def _has(self, limit: int) -> bool:
        return super()._has(limit) or self._bytes >= MOST_BYTES

    def _on_delivery(self, number: int, redelivered: bool, content: RawContent) -> None:
        super()._on_delivery(number, redelivered, content)
        received = self._buffer[-1]
        self._contents[received.tag] = content
        self._bytes += len(received.message.body)
