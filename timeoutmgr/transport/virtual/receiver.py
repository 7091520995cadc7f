"""A consumer of one queue of a virtual transport."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from timeoutmgr.contracts import Transaction
from timeoutmgr.errors import QueueMissing
from timeoutmgr.message.message import Received
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.transport.envelope import unseal
from timeoutmgr.transport.refusals import CREATE_QUEUE, refuse_transaction
from timeoutmgr.transport.unsettled_messages import BrokerReceiver, ByteBudget, DeliveryTag
from timeoutmgr.transport.virtual.link import VirtualLink, unavailable
from timeoutmgr.transport.virtual.raw_message import RawMessage
from timeoutmgr.transport.work import FEW, LINGER

logger = logging.getLogger(__name__)

# Time until an interrupt is noticed, and the duration of a first query if it must ask Redis.
_SLICE = 0.1
_FIRST_POLL = 0.005


class VirtualReceiver(BrokerReceiver):
    """Consumes on its own connection, and on a new connection after a loss.

    It asks for one message at a time, and for none while the *budget* is spent.
    """

    def __init__(
        self,
        connect: Callable[[], VirtualLink],
        queue: str,
        prefetch: int,
        budget: ByteBudget | None = None,
    ) -> None:
        if prefetch < 1:
            raise ValueError(f"prefetch must be at least 1, got {prefetch}")
        super().__init__(queue, budget)
        self._connect = connect
        self._prefetch = prefetch
        self._interrupted = threading.Event()
        self._link: VirtualLink | None = None
        self._open()

    def receive(self, limit: int, wait: float) -> list[Received]:
        """Return buffered messages; otherwise wait up to *wait* for the first messages."""
        with self._used("receiving", reopen=True) as link:
            if not self._buffer:
                self._fill(link, limit, wait)
            return [self._buffer.popleft() for _ in range(min(limit, len(self._buffer)))]

    def ack(self, received: Sequence[Received], *, transaction: Transaction | None = None) -> None:
        """Settle the messages one by one."""
        if transaction is not None:
            refuse_transaction("this transport")
        with self._used("acknowledging") as link:
            for tag in self._own(received):
                link.channel.basic_ack(tag)
                self._forget([tag])

    def release(self, received: Sequence[Received]) -> None:
        """Put messages back; in order if the transport can put them to the front.

        Messages of a lost connection are back already, or come back by themselves.
        """
        live = [one for one in received if self._is_live(one.tag)]
        if not live:
            return
        with self._used("releasing") as link:
            self._put_back(link, self._own(live))

    def resize(self, prefetch: int) -> None:
        """Limit unacknowledged messages to *prefetch* from now on."""
        self._prefetch = prefetch
        if self._link is not None:
            self._link.channel.basic_qos(prefetch_count=prefetch)

    def interrupt(self) -> None:
        """End the wait of ``receive`` within a tenth of a second."""
        self._interrupted.set()

    def close(self) -> None:
        """Put back unacknowledged messages, and close the connection."""
        if self._closed:
            return
        self._closed = True
        link, self._link = self._link, None
        if link is None:
            return
        try:
            self._put_back(link, list(self._unacked))
        except link.errors as error:
            logger.warning(
                "%d messages of queue %.80r come back only after the visibility timeout: %s",
                len(self._unacked),
                self._queue,
                on_one_line(error),
                extra={"event": "messages_not_released"},
            )
        self._drop_unsettled()
        link.close()

    def _fill(self, link: VirtualLink, limit: int, wait: float) -> None:
        deadline = time.monotonic() + wait
        pause = _FIRST_POLL
        while not self._buffer:
            if self._unsettled.is_full:
                self._interrupted.wait(pause)
            else:
                self._drain(link, pause)
            remaining = deadline - time.monotonic()
            if self._interrupted.is_set() or remaining <= 0:
                self._interrupted.clear()
                return
            pause = min(remaining, _SLICE)
        while limit > FEW and len(self._buffer) < limit and self._drain(link, LINGER):
            pass

    def _drain(self, link: VirtualLink, seconds: float) -> bool:
        if self._unsettled.is_full:
            return False
        try:
            link.connection.drain_events(timeout=seconds)
        except TimeoutError:
            return False
        return True

    def _on_message(self, message: RawMessage) -> None:
        kinds = {"content_type": message.content_type, "content_encoding": message.content_encoding}
        content, defect = unseal(
            message.properties | kinds, message.headers, message.body, message.defect
        )
        tag = str(message.delivery_tag)
        self._unacked[tag] = None
        self._unsettled.add(tag, len(message.body))
        self._buffer.append(
            Received(
                message=content,
                queue=self._queue,
                tag=DeliveryTag(self._connection_number, tag),
                delivery_count=int(message.redelivered),
                defect=defect,
            )
        )

    def _open(self) -> None:
        link = self._connect()
        self._drop_unsettled()
        try:
            link.registry.refresh()
            if not link.registry.has(self._queue):
                raise QueueMissing([self._queue], CREATE_QUEUE)
            channel = link.channel
            channel.Message = functools.partial(RawMessage, self._queue)
            channel.basic_qos(prefetch_count=self._prefetch)
            channel.basic_consume(
                self._queue, no_ack=False, callback=self._on_message, consumer_tag="timeoutmgr"
            )
        except BaseException as error:
            link.close()
            if isinstance(error, link.errors):
                unavailable(f"consuming queue {self._queue!r}", error)
            raise
        self._link = link

    @contextmanager
    def _used(self, what: str, *, reopen: bool = False) -> Iterator[VirtualLink]:
        self._check_open()
        if self._link is None:
            if not reopen:
                raise self._lost()
            self._open()
        link = self._link
        assert link is not None
        try:
            yield link
        except link.errors as error:
            self._link = None
            self._drop_unsettled()
            link.close()
            unavailable(f"{what} (queue {self._queue!r})", error)

    def _put_back(self, link: VirtualLink, tags: Sequence[str]) -> None:
        # If messages go back to the front, return the last message first, to keep the order.
        for tag in reversed(tags) if link.puts_back_to_front else tags:
            link.channel.basic_reject(tag, requeue=True)
            self._forget([tag])
