"""Sessions over kombu's virtual transports: Redis, memory, and untested transports."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from timeoutmgr.contracts import Receiver, SendResult, Transaction
from timeoutmgr.errors import ConfigurationError, MessageTooLarge, QueueMissing
from timeoutmgr.message.foreign import Route, foreign_of, without_route
from timeoutmgr.message.message import Outgoing, Received
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.transport.envelope import Envelope, check_direct, check_short, seal
from timeoutmgr.transport.queue_view import browse
from timeoutmgr.transport.refusals import CREATE_QUEUE, check_queue_names, refuse_transaction
from timeoutmgr.transport.settings import KombuSettings
from timeoutmgr.transport.unsettled_messages import ByteBudget
from timeoutmgr.transport.virtual.foreign import has_queues, kombu_payload
from timeoutmgr.transport.virtual.link import Registry, VirtualLink, unavailable
from timeoutmgr.transport.virtual.receiver import VirtualReceiver

logger = logging.getLogger(__name__)


class VirtualSession:
    """Queues behind a virtual transport; session and receivers have separate connections."""

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
        """Create the queues that do not exist; no queue here has a delivery limit."""
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
        payloads = [self._payload(one) for one in outgoing]
        if not payloads:
            return []
        with self._used("sending") as link:
            there = self._existing(link, outgoing)
            results = [
                SendResult.UNKNOWN if is_there else SendResult.UNROUTABLE for is_there in there
            ]
            try:
                for index, (one, payload) in enumerate(zip(outgoing, payloads, strict=True)):
                    if results[index] is SendResult.UNKNOWN:
                        _publish(link.channel, one, payload)
                        results[index] = SendResult.CONFIRMED
            except link.errors as error:
                # If a route leads to several queues, the first may already have the message.
                is_refused = isinstance(error, link.refusals) and one.via is None
                if is_refused and SendResult.CONFIRMED not in results:
                    raise  # and reconnect: another server may be the master by now
                # Earlier messages are stored; the results of this and later messages are unknown.
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

        If the process is killed meanwhile, they come back after the visibility time-out.
        """
        count = self.count(queue)
        # No more messages: a waiting receiver would take the first message that is given back.
        limit = min(limit, count)
        yield from browse(lambda prefetch: self.receiver(queue, prefetch=prefetch), limit, count)

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Refuse: a broker cannot commit together with a database."""
        refuse_transaction("this transport")

    def ping(self) -> None:
        """Ask the broker for its queues."""
        with self._used("ping") as link:
            link.registry.refresh()

    def close(self) -> None:
        """Close the session's connection; receivers are closed separately."""
        self._drop()

    def _payload(self, one: Outgoing) -> dict[str, Any]:
        """Return *one* as kombu's channel publishes it; raise InvalidMessage if it cannot."""
        check_direct(one)
        check_short(one.destination, "destination")
        limit = self._settings.max_message_size
        if len(one.message.body) > limit:
            raise MessageTooLarge("body", len(one.message.body), limit, "max_message_size")
        if (foreign := foreign_of(one)) is not None:
            return kombu_payload(foreign)
        return payload_of(seal(without_route(one)), one)

    def _existing(self, link: VirtualLink, outgoing: Sequence[Outgoing]) -> list[bool]:
        """Return for each of *outgoing* whether a queue exists for it."""
        direct = {one.destination for one in outgoing if not isinstance(one.via, Route)}
        known = self._known(link, direct)
        routes = {one.via for one in outgoing if isinstance(one.via, Route)}
        leading = {route for route in routes if has_queues(link.channel, route)}
        return [
            one.via in leading if isinstance(one.via, Route) else one.destination in known
            for one in outgoing
        ]

    def _known(self, link: VirtualLink, destinations: set[str]) -> set[str]:
        known = {name for name in destinations if link.registry.has(name)}
        if known != destinations:
            link.registry.refresh()
            known = {name for name in destinations if link.registry.has(name)}
        return known

    def _expect(self, link: VirtualLink, queue: str) -> None:
        link.registry.refresh()
        if not link.registry.has(queue):
            raise QueueMissing([queue], CREATE_QUEUE)

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


def payload_of(envelope: Envelope, one: Outgoing) -> dict[str, Any]:
    """Return one of our messages as kombu's channel publishes it."""
    properties: dict[str, Any] = {
        "message_id": envelope.message_id,
        "delivery_mode": 2,
        "delivery_info": {},
        "priority": 0,
        "correlation_id": envelope.correlation_id,
        "reply_to": envelope.reply_to,
        "type": envelope.type,
    }
    return {
        "body": one.message.body,
        "content-type": envelope.content_type,
        "content-encoding": envelope.content_encoding,
        "headers": dict(envelope.headers),
        "properties": {name: value for name, value in properties.items() if value is not None},
    }


def _publish(channel: Any, one: Outgoing, payload: dict[str, Any]) -> None:
    exchange, key = ("", one.destination) if one.via is None else one.via.address()
    channel.basic_publish(payload, exchange=exchange, routing_key=key)


_KEY = "timeoutmgr.marker.{}"


class RedisSession(VirtualSession):
    """A virtual session that also keeps a key for each endpoint's marker."""

    def borne_marker(self, endpoint: str, expected: str | None) -> str | None:
        """Return the marker of *endpoint*, or None."""
        with self._used("reading a marker") as link:
            found = _on_marker(link, "GET", endpoint)
        return None if found is None else bytes(found).decode("utf-8", "replace")

    def bear_marker(self, endpoint: str, word: str, store: str) -> None:
        """Mark *endpoint*; another marker is overwritten."""
        with self._used("writing a marker") as link:
            _on_marker(link, "SET", endpoint, word)

    def drop_marker(self, endpoint: str, expected: str | None) -> None:
        """Remove the marker of *endpoint*."""
        with self._used("removing a marker") as link:
            _on_marker(link, "DEL", endpoint)


def _on_marker(link: VirtualLink, command: str, endpoint: str, *arguments: str) -> Any:
    """Execute *command* on the marker of *endpoint*, and return Redis' answer.

    kombu's client adds the key prefix in SET and DEL, but not in GET.
    """
    from redis import Redis

    key = f"{link.channel.global_keyprefix}{_KEY.format(endpoint)}"
    execute: Any = Redis.execute_command  # kombu has too few annotations to check against
    return execute(link.channel.client, command, key, *arguments)
