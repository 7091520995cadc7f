"""A session over kombu's virtual transports: Redis, memory, and those nobody has tested."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn

from kombu.exceptions import OperationalError

from timeoutmgr.contracts import Receiver, SendResult, Transaction
from timeoutmgr.errors import (
    ConfigurationError,
    MessageTooLarge,
    QueueMissing,
    TransportUnavailable,
)
from timeoutmgr.message import Outgoing, Received
from timeoutmgr.redaction import on_one_line
from timeoutmgr.transport.browsing import held
from timeoutmgr.transport.byte_budget import ByteBudget
from timeoutmgr.transport.envelope import Envelope, check_direct, check_short, seal
from timeoutmgr.transport.refusals import check_queue_names, refuse_transaction
from timeoutmgr.transport.registry import Registry
from timeoutmgr.transport.settings import KombuSettings
from timeoutmgr.transport.virtual_receiver import VirtualReceiver

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

    def create_queues(self, names: Sequence[str], *, dead_letter_to: str | None = None) -> None:
        """Create the queues that do not exist; nothing here has a delivery limit to move for."""
        check_queue_names([*names, *([dead_letter_to] if dead_letter_to else [])])
        with self._used("creating queues") as link:
            link.registry.add(names)

    def missing_queues(self, names: Collection[str]) -> list[str]:
        """Return those of *names* that do not exist."""
        check_queue_names(names)
        with self._used("looking for queues") as link:
            link.registry.refresh()
            return [name for name in names if not link.registry.has(name)]

    def delete_queues(self, names: Collection[str]) -> None:
        """Delete queues and what is in them; missing ones are fine."""
        check_queue_names(names)
        with self._used("deleting queues") as link:
            link.registry.remove(names)

    def count(self, queue: str) -> int:
        """Return how many messages wait in *queue*, those in a consumer's hands not counted."""
        check_queue_names([queue])
        with self._used("counting") as link:
            self._expect(link, queue)
            return int(link.channel.queue_declare(queue=queue).message_count)

    def send(
        self, outgoing: Sequence[Outgoing], *, transaction: Transaction | None = None
    ) -> list[SendResult]:
        """Put messages into queues, one after the other; what is put is CONFIRMED."""
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
                # What was put before is put; of this one and those behind it nobody knows.
                logger.warning(
                    "sending broke off: %s: %s", type(error).__name__, on_one_line(error)
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
            _unavailable(what, error)

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()


class VirtualLink:
    """A connected kombu connection with one channel, and the errors that it raises."""

    def __init__(self, connection: Any, make_registry: Callable[[Any], Registry]) -> None:
        self.connection = connection
        self.errors: tuple[type[BaseException], ...] = (
            OSError,
            OperationalError,
            # KeyError is in kombu's own list for Redis; here it would hide our own mistakes.
            *(
                one
                for one in (*connection.connection_errors, *connection.channel_errors)
                if one is not KeyError
            ),
        )
        try:
            # A second try, at once: kombu would otherwise wait two seconds before it.
            connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)
            self.channel: Any = connection.channel()
            self.registry = make_registry(self.channel)
        except self.errors as error:
            self.close()
            _unavailable("connecting", error)

    def close(self) -> None:
        """Close; a broker that does not answer is no reason not to."""
        try:
            self.connection.release()
        except self.errors as error:
            logger.debug("the broker did not answer a close: %s", on_one_line(error))


def _unavailable(what: str, error: BaseException) -> NoReturn:
    raise TransportUnavailable(f"{what} failed: {type(error).__name__}: {error}") from error


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
