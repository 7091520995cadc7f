"""A session over kombu's virtual transports: Redis, memory, and untested transports."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from timeoutmgr.contracts import Receiver, SendResult, Transaction
from timeoutmgr.errors import (
    ConfigurationError,
    MessageTooLarge,
    QueueMissing,
)
from timeoutmgr.message.message import Outgoing, Received
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.transport.byte_budget import ByteBudget
from timeoutmgr.transport.envelope import Envelope, check_direct, check_short, seal
from timeoutmgr.transport.queue_view import held
from timeoutmgr.transport.refusals import check_queue_names, refuse_transaction
from timeoutmgr.transport.settings import KombuSettings
from timeoutmgr.transport.virtual.link import Registry, VirtualLink, unavailable
from timeoutmgr.transport.virtual.receiver import VirtualReceiver

logger = logging.getLogger(__name__)

_CREATE = "install the endpoint that owns it (it creates its queues), or correct the name"


class VirtualSession:
    """Queues behind a virtual transport; the session and each receiver have a connection each."""

    def __init__(
        self,
        connect: Callable[[], Any],
        make_registry: Callable[[Any], Registry],
        settings: KombuSettings,
        budget: ByteBudget | None = None,
    ) -> None:
        self._connect = connect
        self._make_registry = make_registry
        self._settings = settings
        self._budget = budget or ByteBudget(settings.buffer_bytes)
        self._link: VirtualLink | None = None

    def create_queues(self, names: Sequence[str], *, error_queue: str | None = None) -> None:
        """Create the queues that do not exist; nothing here has a delivery limit to move for."""
        check_queue_names([*names, *([error_queue] if error_queue else [])])
        with self._used("creating queues") as link:
            link.registry.add(names)

    def missing_queues(self, names: Collection[str]) -> list[str]:
        """Return the *names* that do not exist."""
        check_queue_names(names)
        with self._used("looking for queues") as link:
            link.registry.refresh()
            return [name for name in names if not link.registry.has(name)]

    def delete_queues(self, names: Collection[str]) -> None:
        """Delete queues and their messages; a missing queue is fine."""
        check_queue_names(names)
        with self._used("deleting queues") as link:
            link.registry.remove(names)

    def count(self, queue: str) -> int:
        """Return how many messages of *queue* no consumer holds."""
        check_queue_names([queue])
        with self._used("counting") as link:
            self._expect(link, queue)
            return int(link.channel.queue_declare(queue=queue).message_count)

    def send(
        self, outgoing: Sequence[Outgoing], *, transaction: Transaction | None = None
    ) -> list[SendResult]:
        """Put messages into queues, in order; a stored message is CONFIRMED."""
        if transaction is not None:
            refuse_transaction("this transport")
        envelopes = [self._seal(one) for one in outgoing]
        if not envelopes:
            return []
        with self._used("sending") as link:
            known = self._known(link, {one.destination for one in outgoing})
            results = [
                SendResult.UNKNOWN if one.destination in known else SendResult.UNROUTABLE
                for one in outgoing
            ]
            try:
                for index, (one, envelope) in enumerate(zip(outgoing, envelopes, strict=True)):
                    if results[index] is SendResult.UNKNOWN:
                        _put(link.channel, one, envelope)
                        results[index] = SendResult.CONFIRMED
            except link.errors as error:
                # Earlier messages are stored; the result of this message and its followers is
                # unknown.
                logger.warning(
                    "session could not send all messages: %s: %s",
                    type(error).__name__,
                    on_one_line(error),
                    extra={"event": "messages_unconfirmed"},
                )
                self._drop()
            return results

    def receiver(self, queue: str, *, prefetch: int) -> Receiver:
        """Return a consumer of *queue* on a connection of its own."""
        with self._used("looking for queues") as link:
            self._expect(link, queue)
        return VirtualReceiver(self._connect_link, queue, prefetch, self._budget)

    def browse(self, queue: str, limit: int) -> Generator[Received]:
        """Yield up to *limit* messages of *queue*; no queue here has a delivery limit.

        If the process is killed meanwhile they come back after the visibility time-out.
        """
        count = self.count(queue)
        # Not a message more: a receiver that still waits takes the first that is given back.
        limit = min(limit, count)
        yield from held(lambda prefetch: self.receiver(queue, prefetch=prefetch), limit, count)

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Refuse: a broker cannot commit together with a database."""
        refuse_transaction("this transport")

    def ping(self) -> None:
        """Ask the broker for its queues."""
        with self._used("ping") as link:
            link.registry.refresh()

    def close(self) -> None:
        """Close the session's connection; receivers are closed by themselves."""
        self._drop()

    def _seal(self, one: Outgoing) -> Envelope:
        check_direct(one)
        check_short(one.destination, "destination")
        limit = self._settings.max_message_size
        if len(one.message.body) > limit:
            raise MessageTooLarge("body", len(one.message.body), limit, "max_message_size")
        return seal(one.message)

    def _known(self, link: VirtualLink, destinations: set[str]) -> set[str]:
        known = {name for name in destinations if link.registry.has(name)}
        if known != destinations:
            link.registry.refresh()
            known = {name for name in destinations if link.registry.has(name)}
        return known

    def _expect(self, link: VirtualLink, queue: str) -> None:
        link.registry.refresh()
        if not link.registry.has(queue):
            raise QueueMissing([queue], _CREATE)

    def _connect_link(self) -> VirtualLink:
        return VirtualLink(self._connect(), self._make_registry)

    @contextmanager
    def _used(self, what: str) -> Iterator[VirtualLink]:
        if self._link is None:
            self._link = self._connect_link()
        link = self._link
        try:
            yield link
        except ConfigurationError:
            raise
        except link.errors as error:
            self._drop()
            unavailable(what, error)

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()


def _put(channel: Any, one: Outgoing, envelope: Envelope) -> None:
    properties: dict[str, Any] = {
        "message_id": envelope.message_id,
        "delivery_mode": 2,
        "delivery_info": {},
        "correlation_id": envelope.correlation_id,
        "reply_to": envelope.reply_to,
        "type": envelope.type,
    }
    message = channel.prepare_message(
        one.message.body,
        content_type=envelope.content_type,
        content_encoding=envelope.content_encoding,
        headers=dict(envelope.headers),
        properties={name: value for name, value in properties.items() if value is not None},
    )
    channel.basic_publish(message, exchange="", routing_key=one.destination)


_KEY = "timeoutmgr.marker.{}"


class RedisSession(VirtualSession):
    """A session as over any virtual transport, with a key for each endpoint's marker."""

    def borne_marker(self, endpoint: str, expected: str | None) -> str | None:
        """Return the marker of *endpoint*, or None."""
        with self._used("reading a marker") as link:
            found = link.channel.client.get(_KEY.format(endpoint))
        return None if found is None else bytes(found).decode("utf-8", "replace")

    def bear_marker(self, endpoint: str, word: str, store: str) -> None:
        """Mark *endpoint*; another marker is overwritten."""
        with self._used("writing a marker") as link:
            link.channel.client.set(_KEY.format(endpoint), word)

    def drop_marker(self, endpoint: str, expected: str | None) -> None:
        """Remove the marker of *endpoint*."""
        with self._used("removing a marker") as link:
            link.channel.client.delete(_KEY.format(endpoint))
