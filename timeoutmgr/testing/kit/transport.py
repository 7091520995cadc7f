"""The transport of a testing kit: queues in memory, in which every destination exists."""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Final

from sqlalchemy import Connection

from timeoutmgr.clock import Clock
from timeoutmgr.contracts import SendResult, Transaction, TransactionMode, TransportCapabilities
from timeoutmgr.message import headers
from timeoutmgr.message.instants import Micros, from_wire, to_wire
from timeoutmgr.message.message import Message, Outgoing, Received, with_headers
from timeoutmgr.testing.kit.database import KitDatabase


class KitTransport:
    """Queues in memory. A transaction is a transaction of the kit's database.

    A queue is created by its first message; queues of other endpoints keep their messages.
    """

    capabilities: Final = TransportCapabilities(
        name="memory", modes=frozenset(TransactionMode), durable=False, note="for tests"
    )
    database: Final = None

    def __init__(self, clock: Clock, handler_database: KitDatabase) -> None:
        self.handler_database: Final = handler_database
        self.queues: dict[str, deque[Received]] = {}
        self.accepted: list[Outgoing] = []
        """All messages that queues have accepted, in order."""
        self.on_arrival: Callable[[Received], None] = lambda _received: None
        """Called with each message that a queue has accepted."""
        self._clock = clock
        self._last_sent: Micros = 0

    def describe(self) -> str:
        """Return the URL."""
        return "memory://"

    def install(self) -> None:
        """Do nothing; there is nothing to create."""

    def ddl(self) -> str:
        """Return no statements."""
        return ""

    def check(self) -> None:
        """Return; nothing can be missing."""

    def session(self) -> "KitSession":
        """Return a new session."""
        return KitSession(self)

    def close(self) -> None:
        """Keep the messages: a test reads them after its program has ended."""

    def put(self, outgoing: Outgoing) -> None:
        """Append a message to its queue."""
        message = self._with_order_of_sending(outgoing.message)
        self.accepted.append(replace(outgoing, message=message))
        received = Received(message=message, queue=outgoing.destination, tag=object())
        self.queues.setdefault(outgoing.destination, deque()).append(received)
        self.on_arrival(received)

    def _with_order_of_sending(self, message: Message) -> Message:
        """Return *message* with a time of sending that no earlier message has.

        The clock stands still, but a store compares these times: a clear of a saga cancels
        timeouts sent before it, and a replacement is sent after the message that it replaces.
        """
        given = message.headers.get(headers.TIME_SENT)
        if given is None or headers.DISPATCHED_AT in message.headers:
            return message
        if given != to_wire(self._clock.now()):
            return message
        self._last_sent = max(self._last_sent + 1, from_wire(given))
        return with_headers(
            message, {**message.headers, headers.TIME_SENT: to_wire(self._last_sent)}
        )


class KitSession:
    """A session of the kit's transport."""

    def __init__(self, transport: KitTransport) -> None:
        self._transport = transport
        self._on_commit: list[Callable[[], None]] = []

    def create_queues(self, names: Sequence[str], *, error_queue: str | None = None) -> None:
        """Do nothing; a queue is created by its first message."""

    def missing_queues(self, names: Collection[str]) -> list[str]:
        """Return no names: every destination exists."""
        return []

    def delete_queues(self, names: Collection[str]) -> None:
        """Delete queues and their messages."""
        for name in names:
            self._transport.queues.pop(name, None)

    def count(self, queue: str) -> int:
        """Return how many messages wait in *queue*."""
        return len(self._transport.queues.get(queue, ()))

    def send(
        self, outgoing: Sequence[Outgoing], *, transaction: Transaction | None = None
    ) -> list[SendResult]:
        """Put messages into queues, with the commit if there is a transaction."""
        for each in outgoing:
            self.follow(transaction, partial(self._transport.put, each))
        return [SendResult.CONFIRMED for _ in outgoing]

    def receiver(self, queue: str, *, prefetch: int) -> "KitReceiver":
        """Return a consumer of *queue*."""
        return KitReceiver(self._transport.queues.setdefault(queue, deque()), self)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Open a transaction of the kit's database; sends and receipts take effect on commit."""
        self._on_commit = []
        with self._transport.handler_database.begin() as connection:
            yield connection
        for action in self._on_commit:
            action()

    def follow(self, transaction: Transaction | None, action: Callable[[], None]) -> None:
        """Call *action* after the commit of *transaction*; without a transaction, immediately."""
        if transaction is None:
            action()
        else:
            self._on_commit.append(action)

    def ping(self) -> None:
        """Return; memory is always there."""

    def close(self) -> None:
        """Do nothing; a session keeps nothing open."""


class KitReceiver:
    """A consumer of a queue; it leases messages until it settles them."""

    def __init__(self, waiting: deque[Received], session: KitSession) -> None:
        self._waiting = waiting
        self._session = session
        self._leased: list[Received] = []

    def receive(self, limit: int, wait: float) -> list[Received]:
        """Return up to *limit* waiting messages immediately, perhaps none."""
        batch = [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]
        self._leased += batch
        return batch

    def ack(self, received: Sequence[Received], *, transaction: Transaction | None = None) -> None:
        """Settle messages, with the commit if there is a transaction."""
        self._session.follow(transaction, lambda: self._forget(received))

    def release(self, received: Sequence[Received]) -> None:
        """Return messages to the front of the queue, in their order."""
        tags = {each.tag for each in received}
        back = [each for each in self._leased if each.tag in tags]
        self._forget(back)
        again = [replace(each, delivery_count=each.delivery_count + 1) for each in back]
        self._waiting.extendleft(reversed(again))

    def interrupt(self) -> None:
        """Do nothing; no receiver waits."""

    def close(self) -> None:
        """Return unsettled messages to the queue."""
        self.release(list(self._leased))

    def _forget(self, received: Sequence[Received]) -> None:
        tags = {each.tag for each in received}
        self._leased = [each for each in self._leased if each.tag not in tags]
