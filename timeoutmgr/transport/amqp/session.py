"""A session with an AMQP broker: queues, confirmed sends, receivers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from timeoutmgr.contracts import (
    Answered,
    QueueReport,
    Receiver,
    Sending,
    SendResult,
    Topology,
    Transaction,
)
from timeoutmgr.crashpoints import reach
from timeoutmgr.errors import (
    ConfigurationError,
    InvalidMessage,
    MessageTooLarge,
    QueueMissing,
    TopologyMismatch,
    TransportUnavailable,
)
from timeoutmgr.message.foreign import Route, foreign_of, without_route
from timeoutmgr.message.message import NO_NUMBERS, Outgoing, Received
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.transport.amqp import topology as topologies
from timeoutmgr.transport.amqp.connection import AmqpConnection, broker_errors
from timeoutmgr.transport.amqp.dispatch import ConfirmWindow, EncodedMessage, Started, straight
from timeoutmgr.transport.amqp.foreign import declare_route, foreign_header
from timeoutmgr.transport.amqp.frames import FRAME_OVERHEAD, content_header, publish_method
from timeoutmgr.transport.amqp.management import ManagementApi
from timeoutmgr.transport.amqp.queue_inspection import QueueInspection, UnreadableProperties
from timeoutmgr.transport.amqp.receiver import RabbitMQReceiver
from timeoutmgr.transport.amqp.topology import ExchangeAddresses
from timeoutmgr.transport.envelope import check_short, seal
from timeoutmgr.transport.queue_view import browse
from timeoutmgr.transport.refusals import CREATE_QUEUE, check_queue_names, refuse_transaction
from timeoutmgr.transport.settings import KombuSettings
from timeoutmgr.transport.unsettled_messages import ByteBudget

logger = logging.getLogger(__name__)

_MOST_ROUTES = 10_000


class RabbitMQSession:
    """Queues on an AMQP broker. Sending has one connection, and each receiver another.

    *window* overrides how many messages the settings have sent before a wait for confirms.
    *management* tells the policies of the broker's queues. *budget* limits the bytes that the
    receivers hold. All sessions of a transport share *exchanges*.
    """

    def __init__(
        self,
        connect: Callable[[], AmqpConnection],
        settings: KombuSettings,
        *,
        window: int | None = None,
        management: ManagementApi | None = None,
        budget: ByteBudget | None = None,
        exchanges: ExchangeAddresses | None = None,
    ) -> None:
        self._connect = connect
        self._exchanges = exchanges or ExchangeAddresses(settings.routing_topology)
        self._management = management
        self._budget = budget or ByteBudget(settings.buffer_bytes)
        self._settings = settings
        self._window_size = window or settings.confirm_window
        self._connection: AmqpConnection | None = None
        self._window: ConfirmWindow | None = None
        self._held_up: AmqpConnection | None = None
        self._routes: set[Route] = set()

    def create_queues(self, names: Sequence[str], *, error_queue: str | None = None) -> None:
        """Create the queues that do not exist; an existing queue keeps its type and arguments."""
        check_queue_names([*names, *([error_queue] if error_queue else [])])
        with self._used("creating queues") as connection, closing(connection.channel()) as channel:
            arguments = self._arguments(connection, error_queue)
            for name in names:
                if not topologies.has_queue(channel, name):
                    with suppress(TopologyMismatch):  # another process was faster: leave its queue
                        topologies.declare_queue(channel, name, arguments)
                    reach("install.queue_declared")
            if self._exchanges.is_on:
                topologies.declare_own_exchanges(channel, names)

    def missing_exchanges(self, queues: Collection[str]) -> list[str] | None:
        """Return the *queues* without an exchange of their name; None if exchanges are not used.

        The type of an exchange is not checked.
        """
        check_queue_names(queues)
        if not self._exchanges.is_on:
            return None
        with self._channel("looking for exchanges") as channel:
            return [name for name in queues if not topologies.has_exchange(channel, name)]

    def missing_queues(self, names: Collection[str]) -> list[str]:
        """Return the *names* that do not exist."""
        check_queue_names(names)
        with self._channel("looking for queues") as channel:
            return [name for name in names if not topologies.has_queue(channel, name)]

    def inspect_queues(
        self, names: Collection[str], *, error_queue: str | None = None, policies: bool = True
    ) -> list[QueueReport]:
        """Report on each of *names* that exists; change and create nothing."""
        check_queue_names(names)
        with self._used("inspecting") as connection, closing(connection.channel()) as channel:
            there = [name for name in names if topologies.has_queue(channel, name)]
            inspection = self._inspection(connection, channel, error_queue, policies=policies)
            if isinstance(names, Mapping):
                inspection.meant = names
            return [inspection.report(name) for name in there]

    def dead_messages_to(self, queue: str) -> str | None:
        """Return the queue that gets the dead messages of *queue*; None if unknown."""
        check_queue_names([queue])
        with self._used("inspecting") as connection, closing(connection.channel()) as channel:
            if not topologies.has_queue(channel, queue):
                return None
            return self._inspection(connection, channel, None).dead_messages_to(queue)

    def delete_queues(self, names: Collection[str]) -> None:
        """Delete queues and their messages; a missing queue is fine."""
        check_queue_names(names)
        with self._channel("deleting queues") as channel:
            for name in names:
                if topologies.has_queue(channel, name):
                    channel.queue_delete(name)
                if self._exchanges.is_on:
                    topologies.delete_own_exchange(channel, name)

    def count(self, queue: str) -> int:
        """Return how many messages of *queue* no consumer holds."""
        check_queue_names([queue])
        with self._channel("counting") as channel:
            count = topologies.message_count(channel, queue)
        if count is None:
            raise QueueMissing([queue], CREATE_QUEUE)
        return count

    def send(
        self, outgoing: Sequence[Outgoing], *, transaction: Transaction | None = None
    ) -> list[SendResult]:
        """Publish in confirm windows.

        Raises TransportUnavailable only if nothing was written, and InvalidMessage if nothing was
        accepted.
        """
        if transaction is not None:
            refuse_transaction("AMQP")
        results = self.start_sending(outgoing).results()
        if results == [SendResult.REFUSED]:
            self._check_sizes(outgoing)  # the broker may have told its limit with the refusal
        return results

    def start_sending(self, outgoing: Sequence[Outgoing]) -> Sending:
        """Publish in confirm windows; the call for the results waits for the last window."""
        if self._exchanges.is_on:
            self._find_exchanges(outgoing)
        publishings = self._prepare(outgoing)
        ways = [one.via for one in outgoing]
        first = [] if self._is_held_up() else self._declare_routes(ways)
        if not first:
            return self.publish(publishings)
        return self._publish_around(ways, publishings, first)

    def _publish_around(
        self, ways: Sequence[object], publishings: Sequence[EncodedMessage], places: Sequence[int]
    ) -> Sending:
        """Publish the messages at *places*, the first of their *ways*, each alone; then the others.

        The broker closes the channel over a route that the user may not use, and leaves the
        messages in flight there in doubt.
        """
        found: dict[int, SendResult] = {}
        for place in places:
            answer = self._results([replace(publishings[place], on_trial=True)])[0]
            is_refused = answer is SendResult.UNROUTABLE and self._window is None
            answered = [at for at, way in enumerate(ways) if way == ways[place]]
            found |= dict.fromkeys(answered if is_refused else [place], answer)
        rest = [one for place, one in enumerate(publishings) if place not in found]
        others = iter(self._results(rest))
        return Answered(
            [found[place] if place in found else next(others) for place in range(len(publishings))]
        )

    def publish(self, publishings: Sequence[EncodedMessage]) -> Sending:
        """Publish encoded messages, as ``start_sending`` does."""
        if not publishings:
            return Answered([])
        if self._is_held_up():
            raise TransportUnavailable(
                "the broker takes no messages, its memory or disk alarm is on; nothing was sent"
            )
        with self._used("sending") as connection:
            for publishing in publishings:
                if len(publishing.header) > connection.frame_limit - FRAME_OVERHEAD:
                    raise MessageTooLarge(
                        "headers",
                        len(publishing.header),
                        connection.frame_limit - FRAME_OVERHEAD,
                        "the broker's frame_max",
                    )
            if self._window is None:
                self._window = ConfirmWindow(
                    connection,
                    self._window_size,
                    self._settings.confirm_timeout,
                    each=self._settings.confirm_window,
                )
            window = self._window
            started = window.start(publishings)
        self._part_with_spent(connection, window)
        return UnconfirmedPublishes(self, connection, window, started)

    def finish(
        self, connection: AmqpConnection, window: ConfirmWindow, started: Started
    ) -> list[SendResult]:
        """Wait for the messages *started* in the *window* of *connection*; return their results."""
        with _locked(connection, "sending"):
            results = window.finish(started)
        self._part_with_spent(connection, window)
        return results

    def publish_again(self, publishings: Sequence[EncodedMessage]) -> list[SendResult]:
        """Publish what came back to its queue, or by its route again; UNKNOWN as ``_results``."""
        for one in publishings:
            if one.to_queue is not None:
                self._exchanges.note(one.routing_key, has_exchange=False)
        routes = {one.declared for one in publishings if one.declared is not None}
        return self._results([straight(one) for one in publishings], routes)

    def _results(
        self, publishings: Sequence[EncodedMessage], routes: Collection[Route] = ()
    ) -> list[SendResult]:
        """Publish behind *routes*, and wait for the confirms; UNKNOWN while the broker is away."""
        self._routes.difference_update(routes)
        try:
            for route in routes:
                with suppress(InvalidMessage):  # its messages come back, and no others
                    self._declare_routes([route])
            return self.publish(publishings).results()
        except TransportUnavailable as error:
            logger.warning(
                "transport has %d messages to publish once more: %s",
                len(publishings),
                on_one_line(error),
                extra={"event": "messages_unconfirmed"},
            )
            return [SendResult.UNKNOWN] * len(publishings)

    @property
    def server_version(self) -> tuple[int, ...]:
        """The broker's version; empty when it is no RabbitMQ."""
        with self._used("asking for the broker's version") as connection:
            return connection.server_version

    def declare(self, topology: Topology) -> None:
        """Declare all of *topology*; queues without arguments get our usual arguments."""
        self.create_queues([one.name for one in topology.queues if one.arguments is None])
        with self._channel("declaring") as channel:
            topologies.declare(channel, topology)

    def missing(self, topology: Topology) -> list[str]:
        """Return the exchanges and queues of *topology* that do not exist."""
        with self._channel("looking for exchanges and queues") as channel:
            return topologies.missing(channel, topology)

    def remove(self, topology: Topology) -> None:
        """Delete the exchanges and queues of *topology*, and their messages."""
        with self._channel("removing exchanges and queues") as channel:
            topologies.remove(channel, topology)

    def bind_queues(
        self, queues: Collection[str], exchange: str, key_of: Callable[[str], str]
    ) -> list[str]:
        """Bind each of *queues* to *exchange*; return the missing queues."""
        check_queue_names(queues)
        with self._channel("binding queues") as channel:
            missing = topologies.bind_queues(channel, queues, exchange, key_of)
            if self._exchanges.is_on:
                # In addition to the queue, which gets a message once, whatever bindings lead to it.
                there = [name for name in queues if name not in missing]
                topologies.bind_exchanges(channel, there, exchange, key_of)
        return missing

    def is_routed(self, exchange: str, key: str, rest: str) -> bool:
        """Return whether *exchange* routes *key* to a queue; the probe may end in *rest*."""
        with self._channel("probing an exchange") as channel:
            return topologies.is_routed(channel, exchange, key, rest)

    def borne_marker(self, endpoint: str, expected: str | None) -> str | None:
        """Return the marker of *endpoint*, or None."""
        with self._channel("reading a marker") as channel:
            return topologies.read(channel, endpoint, expected)

    def bear_marker(self, endpoint: str, word: str, store: str) -> None:
        """Mark *endpoint*; another marker is removed."""
        with self._channel("writing a marker") as channel:
            topologies.write(channel, endpoint, word, store)

    def drop_marker(self, endpoint: str, expected: str | None) -> None:
        """Remove the marker of *endpoint*."""
        with self._channel("removing a marker") as channel:
            topologies.erase(channel, endpoint, expected)

    def receiver(self, queue: str, *, prefetch: int) -> Receiver:
        """Return a consumer of *queue* on a connection of its own."""
        check_queue_names([queue])
        return RabbitMQReceiver(self._connect, queue, prefetch, self._budget)

    def browse(self, queue: str, limit: int) -> Generator[Received]:
        """Yield up to *limit* messages of *queue*; refuse if browsing counts as a delivery.

        A message that is given back counts one more delivery. That harms only a queue with a
        delivery limit, which would give the message up after some browsing.
        """
        count = self.count(queue)
        with self._used("inspecting") as connection, closing(connection.channel()) as channel:
            try:
                most = self._inspection(connection, channel, None).delivery_limit(queue)
            except UnreadableProperties as reason:
                raise ConfigurationError(
                    f"a look might count towards the delivery limit of queue {queue!r}, and the "
                    f"limit is not known: {reason}; use a user with the configure permission, or "
                    "the broker's own tools"
                ) from reason
        if most is not None:
            raise ConfigurationError(
                f"queue {queue!r} gives a message up after {most} deliveries, and each look "
                "counts as a delivery; take the limit off, by a new queue or another policy"
            )
        yield from browse(lambda prefetch: self.receiver(queue, prefetch=prefetch), limit, count)

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Refuse: a broker cannot commit together with a database."""
        refuse_transaction("AMQP")

    def ping(self) -> None:
        """Make a round trip to the broker."""
        with self._used("ping") as connection, closing(connection.channel()):
            return

    def close(self) -> None:
        """Close the sending connection; receivers are closed separately."""
        connection, self._connection, self._window = self._connection, None, None
        if connection is not None:
            with connection.lock:
                connection.close()
        held_up, self._held_up = self._held_up, None
        if held_up is not None:
            with held_up.lock:
                held_up.drop("closed")

    def _part_with_spent(self, connection: AmqpConnection, window: ConfirmWindow) -> None:
        if window.spent and window is self._window:
            self._exchanges.forget(connection.broken or "")
            self._held_up = connection if connection.blocked else None
            self._connection, self._window = None, None

    def _is_held_up(self) -> bool:
        """Return whether an alarm still blocks the connection of a spent window."""
        connection = self._held_up
        if connection is None:
            return False
        with connection.lock:
            if connection.is_alive() and connection.blocked:
                return True
            connection.drop("the alarm is over, and its confirms are not to be trusted")
        self._held_up = None
        return False

    def _find_exchanges(self, outgoing: Sequence[Outgoing]) -> None:
        """Ask the broker which destinations have an exchange; a blocked broker is not asked."""
        found = self._exchanges
        unknown = found.unknown(one.destination for one in outgoing if one.via is None)
        connection = self._held_up or self._connection
        if not unknown or (connection is not None and connection.blocked):
            return
        for name in unknown:
            check_short(name, "destination")
        with self._channel("looking for exchanges") as channel:
            for name in unknown:
                found.note(name, has_exchange=topologies.has_fanout(channel, name))

    def _prepare(self, outgoing: Sequence[Outgoing]) -> list[EncodedMessage]:
        exchange_of = self._exchanges.exchange_of if self._exchanges.is_on else lambda _queue: ""
        self._check_sizes(outgoing)
        methods: dict[tuple[str, str], bytes] = {}
        publishings = []
        for one in outgoing:
            if one.via is not None:
                address = one.via.address()
            else:
                address = exchange_of(one.destination), one.destination
            exchange, key = address
            route = one.via if isinstance(one.via, Route) else None
            method = methods.get(address)
            if method is None:
                check_short(key, "destination")
                method = methods[address] = publish_method(key, exchange)
            message_id, header = _content_header(one)
            publishings.append(
                EncodedMessage(
                    routing_key=key,
                    message_id=message_id,
                    method=method,
                    header=header,
                    body=one.message.body,
                    to_queue=publish_method(key) if exchange and one.via is None else None,
                    declared=route if route in self._routes else None,
                )
            )
        return publishings

    def _check_sizes(self, outgoing: Sequence[Outgoing]) -> None:
        limit = self._exchanges.largest_body(self._settings.max_message_size)
        for one in outgoing:
            if (size := len(one.message.body)) > limit:
                raise MessageTooLarge("body", size, limit, "max_message_size, or the broker's")

    def _declare_routes(self, ways: Sequence[object]) -> list[int]:
        """Declare new routes of *ways*; return the first place of each, if it has an exchange."""
        places: dict[Route, int] = {}
        for place, way in enumerate(ways):
            if isinstance(way, Route) and way not in self._routes:
                places.setdefault(way, place)
        if places:
            with self._channel("declaring routes") as channel:
                if self._window is not None:
                    # The broker may close the connection over a route.
                    self._window.settle()
                for route in places:
                    declare_route(channel, route)
                    if len(self._routes) >= _MOST_ROUTES:
                        self._routes.clear()  # some programs use a new routing key for each message
                    self._routes.add(route)
        return [place for route, place in places.items() if route.exchange]

    def _inspection(
        self,
        connection: AmqpConnection,
        channel: Any,
        error_queue: str | None,
        *,
        policies: bool = True,
    ) -> QueueInspection:
        arguments = self._arguments(connection, error_queue)
        management = self._management if policies else None
        return QueueInspection(channel, connection.server_version, arguments, management)

    def _arguments(self, connection: AmqpConnection, error_queue: str | None) -> dict[str, Any]:
        arguments: dict[str, Any] = {"x-queue-type": self._settings.queue_type}
        if error_queue is not None:
            arguments["x-dead-letter-exchange"] = ""
            arguments["x-dead-letter-routing-key"] = error_queue
        if self._settings.queue_type == "quorum" and connection.server_version >= (4,):
            # From 4.0 on, a message is given up after 20 deliveries, and a kill counts as a
            # delivery.
            arguments["x-delivery-limit"] = -1
        return arguments

    @contextmanager
    def _channel(self, what: str) -> Iterator[Any]:
        with self._used(what) as connection, closing(connection.channel()) as channel:
            yield channel

    @contextmanager
    def _used(self, what: str) -> Iterator[AmqpConnection]:
        # A connection that died while idle is replaced: this call has written nothing yet.
        if self._connection is not None:
            with self._connection.lock:
                alive = self._connection.is_alive()
            if not alive:
                self._connection, self._window = None, None
        if self._connection is None:
            self._connection = self._connect()
            self._routes.clear()
        with _locked(self._connection, what):
            yield self._connection


_MOST_MILLISECONDS: Final = 2**32 - 1
"""The longest expiration that RabbitMQ accepts: seven weeks."""


def _expiration(outgoing: Outgoing) -> str | None:
    """Return the time to live of *outgoing* in milliseconds, rounded up; None without, or too long.

    If the time to live is too long for RabbitMQ, the receiver checks it.
    """
    if outgoing.time_to_live is None:
        return None
    milliseconds = -(-outgoing.time_to_live // 1000)
    return str(milliseconds) if milliseconds <= _MOST_MILLISECONDS else None


@dataclass(frozen=True, slots=True)
class UnconfirmedPublishes:
    """Published messages whose confirms the session has not awaited."""

    session: RabbitMQSession
    connection: AmqpConnection
    window: ConfirmWindow
    started: Started

    def results(self) -> list[SendResult]:
        """Wait for the confirms; publish once more what came back and has another way."""
        results = self.session.finish(self.connection, self.window, self.started)
        if SendResult.UNROUTABLE not in results:
            return results
        sent = self.started.publishings
        returned = [
            place
            for place, result in enumerate(results)
            if result is SendResult.UNROUTABLE and (sent[place].to_queue or sent[place].declared)
        ]
        again = self.session.publish_again([sent[place] for place in returned])
        for place, result in zip(returned, again, strict=True):
            results[place] = result
        return results


@contextmanager
def _locked(connection: AmqpConnection, what: str) -> Iterator[None]:
    """Lock *connection* for this thread; drop it on an error that may have left it half-written."""
    with connection.lock:
        try:
            with broker_errors(what), connection.asking():
                yield
        except (ConfigurationError, MessageTooLarge):
            raise
        except BaseException as error:
            # After any other error, or an interrupt, the state of the wire is unknown.
            connection.drop(f"{type(error).__name__}: {error}")
            raise


def _content_header(one: Outgoing) -> tuple[str, bytes]:
    """Return the message id and the content header of *one*."""
    if one.via is None:
        envelope = seal(one.message, NO_NUMBERS)
    elif (foreign := foreign_of(one)) is not None:
        return foreign_header(foreign)
    else:
        envelope = seal(without_route(one), one.via.numbers(one.message))
    size = len(one.message.body)
    return envelope.message_id, content_header(envelope, size, _expiration(one))
