"""A consumer of one AMQP queue: it receives raw messages, and acknowledges in few frames."""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

from amqp import spec
from amqp.exceptions import NotFound

from timeoutmgr.contracts import Transaction
from timeoutmgr.errors import QueueMissing, TransportUnavailable
from timeoutmgr.message.message import Death, Received
from timeoutmgr.transport.amqp.connection import AmqpConnection, WakePipe, broker_errors
from timeoutmgr.transport.amqp.frames import RawContent, delivered_key, settle_frame
from timeoutmgr.transport.envelope import unseal
from timeoutmgr.transport.refusals import CREATE_QUEUE, refuse_transaction
from timeoutmgr.transport.unsettled_messages import (
    BrokerReceiver,
    ByteBudget,
    DeliveryTag,
    PrefetchWindow,
)
from timeoutmgr.transport.work import FEW, LINGER

logger = logging.getLogger(__name__)

_LONGEST_ANSWER = 1.0
"""Seconds to wait for the broker's answer, if the next ``receive`` can go on waiting."""


class _Change(Enum):
    """Progress of a change of the window: one consumer is cancelled, and another started."""

    NONE = "none"
    ASKED = "asked"
    ENDED = "ended"


class RabbitMQReceiver(BrokerReceiver):
    """Consumes on its own connection, and on a new connection after a loss.

    The call that meets a lost connection raises; the next ``receive`` connects again.
    Unacknowledged messages are delivered again, so settling them afterwards raises LeaseLost.

    The *budget* limits the bodies that it holds (None: no limit). At first the broker may send one
    message ahead, then as many, up to *prefetch*, as fit by the sizes so far. Since sizes change,
    more messages may come: they stay unread on the socket while the budget is spent.
    """

    def __init__(
        self,
        connect: Callable[[], AmqpConnection],
        queue: str,
        prefetch: int,
        budget: ByteBudget | None = None,
    ) -> None:
        if not 1 <= prefetch <= 65_535:
            raise ValueError(f"prefetch must be from 1 to 65535, got {prefetch}")
        super().__init__(queue, budget)  # deliveries are in the order of the broker's ids
        self._connect = connect
        self._prefetch = prefetch
        self._wake = WakePipe()
        self._connection: AmqpConnection | None = None
        self._limit = None if budget is None else budget.limit
        self._window = PrefetchWindow(prefetch, self._limit, self._unsettled)
        self._channel: Any = None
        self._consumers = 0
        self._last_older = 0
        self._change = _Change.NONE
        try:
            self._open()
        except BaseException:
            self._wake.close()
            raise

    def receive(self, limit: int, wait: float) -> list[Received]:
        """Return buffered messages; otherwise wait up to *wait* for the first messages."""
        with self._used("receiving", reopen=True) as connection:
            self._fit(connection)  # the heartbeat thread may have read deliveries
            if not self._has(limit):
                self._fill(connection, limit, wait)
            return [self._buffer.popleft() for _ in range(min(limit, len(self._buffer)))]

    def ack(self, received: Sequence[Received], *, transaction: Transaction | None = None) -> None:
        """Settle messages; the longest run from the oldest on takes a single frame."""
        if transaction is not None:
            refuse_transaction("AMQP")
        with self._used("acknowledging") as connection:
            own = self._own(received)
            numbers = set(own)
            last = 0
            for number in self._unacked:
                if number not in numbers:
                    break
                last = number
                numbers.discard(number)
            frames = [] if not last else [self._settle(spec.Basic.Ack, last, True)]
            frames += [self._settle(spec.Basic.Ack, number, False) for number in sorted(numbers)]
            connection.write(b"".join(frames))
            self._forget(own)

    def release(self, received: Sequence[Received]) -> None:
        """Return messages to their old position; messages of a lost connection are back already."""
        live = [one for one in received if self._is_live(one.tag)]
        if not live:
            return
        with self._used("releasing") as connection:
            self._return(live, connection)

    def stand_back(
        self, received: Sequence[Received], may_return: Callable[[Received], bool]
    ) -> int:
        """Release *received* and the buffered messages; stop consuming until ``receive``."""
        with self._used("standing back") as connection:
            if not received and not self._buffer and self._window.size <= len(self._unacked):
                return 0  # the broker sends none ahead
            if self._change is _Change.NONE:
                self._ask_to_end()
            # Otherwise messages that the broker sent before its answer would stay here.
            while self._change is _Change.ASKED and connection.pump(_LONGEST_ANSWER):
                pass
            ahead = [one for one in self._buffer if may_return(one)]
            self._buffer = deque(one for one in self._buffer if not may_return(one))
            given = [*(one for one in received if self._is_live(one.tag)), *ahead]
            self._return(given, connection)
            return len(given)

    def resize(self, prefetch: int) -> None:
        """Have the broker send at most *prefetch* ahead; a later read puts it into effect."""
        self._prefetch = prefetch
        self._window.most = prefetch

    def interrupt(self) -> None:
        """End the wait of ``receive``, at once."""
        self._wake.set()

    def close(self) -> None:
        """Close the connection, which gives back unacknowledged messages."""
        if self._closed:
            return
        self._closed = True
        self._let_go("closed", politely=True)
        self._wake.close()

    def _fill(self, connection: AmqpConnection, limit: int, wait: float) -> None:
        while self._pump(connection, 0) and not self._has(limit):
            pass
        if self._buffer and self._change is _Change.NONE:
            return
        deadline = time.monotonic() + wait
        longest = connection.heartbeat / 4 or wait
        while not self._buffer or self._change is not _Change.NONE:
            connection.tick()
            remaining = deadline - time.monotonic()
            if self._wake.clear() or remaining <= 0:
                return
            if self._unsettled.is_full:
                if not self._buffer:
                    self._wake.wait(min(remaining, longest))
                    continue
                return
            self._pump(connection, min(remaining, longest))
        if limit <= FEW:
            return
        linger_until = time.monotonic() + LINGER
        while not self._has(limit):
            remaining = linger_until - time.monotonic()
            if remaining <= 0 or not self._pump(connection, remaining):
                return

    def _pump(self, connection: AmqpConnection, seconds: float) -> bool:
        """Read once, unless the budget is spent; then adapt the window."""
        if self._unsettled.is_full or not connection.pump(seconds):
            return False
        self._fit(connection)
        return True

    def _fit(self, connection: AmqpConnection) -> None:
        """Adapt the window to the received sizes: cancel the consumer, and start another."""
        if self._change is _Change.ENDED:
            self._consume_again(connection)
        elif self._change is _Change.NONE:
            # Unacknowledged messages of an earlier consumer come first.
            older = itertools.takewhile(lambda n: n <= self._last_older, self._unacked)
            if self._window.misfits(sum(1 for _ in older)):
                self._ask_to_end()

    def _ask_to_end(self) -> None:
        # Do not wait: the answer comes after frames that the broker has already sent.
        self._change = _Change.ASKED
        self._channel.send_method(spec.Basic.Cancel, "sb", (self._consumer, False))

    def _consume_again(self, connection: AmqpConnection) -> None:
        # No delivery is under way any more, so waiting for these answers reads no body.
        self._window.size = self._window.beside(len(self._unacked))
        with connection.asking():
            self._consume()

    def _consume(self) -> None:
        self._change = _Change.NONE
        self._channel.basic_qos(0, self._window.size, False)
        self._consumers += 1
        self._last_older = next(reversed(self._unacked), 0)
        self._channel.basic_consume(
            self._queue, consumer_tag=self._consumer, on_cancel=self._on_cancel
        )

    @property
    def _consumer(self) -> str:
        return f"timeoutmgr.{self._consumers}"

    def _on_consumer_end(self) -> None:
        self._change = _Change.ENDED

    def _has(self, limit: int) -> bool:
        """Return whether the buffer has enough messages."""
        return len(self._buffer) >= limit

    def _on_delivery(self, number: int, redelivered: bool, content: RawContent) -> None:
        properties = content.properties
        body = content.body or b""
        raw_headers = properties.get("application_headers")
        message, defect = unseal(properties, raw_headers, body, content.defect)
        self._unacked[number] = None
        self._unsettled.add(number, len(body))
        self._buffer.append(
            Received(
                message=message,
                queue=self._queue,
                tag=DeliveryTag(self._connection_number, number),
                delivery_count=_delivery_count(raw_headers, redelivered),
                defect=defect,
                death=_death(raw_headers),
                routing_key=delivered_key(content.frame_args),
            )
        )

    def _on_cancel(self, _consumer_tag: str) -> None:
        raise ConnectionAbortedError(f"the broker cancelled the consumer of queue {self._queue!r}")

    def _open(self) -> None:
        connection = self._connect()
        self._drop_unsettled()
        self._window = PrefetchWindow(self._prefetch, self._limit, self._unsettled)
        connection.holds_back = lambda: self._unsettled.is_full
        try:
            # Locked, as below: otherwise the heartbeat thread could read our answer.
            doing = f"consuming queue {self._queue!r}"
            with connection.lock, broker_errors(doing), connection.asking():
                channel = self._channel = connection.channel()
                channel.deliver = self._on_delivery
                channel.cancelled = self._on_consumer_end
                self._consume()
                connection.watch(self._wake)
        except TransportUnavailable as error:
            with connection.lock:
                connection.close()
            if isinstance(error.__cause__, NotFound):
                raise QueueMissing([self._queue], CREATE_QUEUE) from error.__cause__
            raise
        self._connection = connection

    def _let_go(self, reason: str, *, politely: bool = False) -> None:
        connection, self._connection = self._connection, None
        # Deliveries before the broker's answer to the close go back to the broker.
        self._channel.deliver = lambda *_: None
        self._drop_unsettled()
        if connection is not None:
            with connection.lock:
                if politely:
                    connection.close()
                else:
                    connection.drop(reason)

    @contextmanager
    def _used(self, what: str, *, reopen: bool = False) -> Iterator[AmqpConnection]:
        self._check_open()
        if self._connection is not None and self._connection.broken is not None:
            reason = self._connection.broken
            self._let_go(reason)
            # Lost between two calls (a missed heartbeat): forget the unacknowledged messages now.
            if not reopen:
                raise TransportUnavailable(f"{what} failed: the connection was lost: {reason}")
        if self._connection is None:
            if not reopen:
                raise self._lost()
            self._open()
        connection = self._connection
        assert connection is not None
        with connection.lock:
            try:
                with broker_errors(f"{what} (queue {self._queue!r})"):
                    yield connection
            except TransportUnavailable as error:
                self._let_go(str(error))
                raise

    def _settle(self, method: tuple[int, int], number: int, bit: bool) -> bytes:
        return settle_frame(self._channel.channel_id, method, number, bit)

    def _return(self, received: Sequence[Received], connection: AmqpConnection) -> None:
        numbers = sorted(self._own(received))
        frames = (self._settle(spec.Basic.Reject, number, True) for number in numbers)
        connection.write(b"".join(frames))
        self._forget(numbers)


def _death(raw_headers: Any) -> Death | None:
    """Return the newest entry of x-death, a header of the broker; None if malformed."""
    entries = raw_headers.get("x-death") if isinstance(raw_headers, dict) else None
    newest = entries[0] if isinstance(entries, list) and entries else None
    if not isinstance(newest, dict):
        return None
    queue, reason, count = (newest.get(name) for name in ("queue", "reason", "count"))
    if not isinstance(queue, str) or not isinstance(reason, str):
        return None
    return Death(queue, reason, count if isinstance(count, int) else 1)


def _delivery_count(raw_headers: Any, redelivered: bool) -> int:
    count = raw_headers.get("x-delivery-count") if isinstance(raw_headers, dict) else None
    if isinstance(count, int) and not isinstance(count, bool) and count > 0:
        return count
    return 1 if redelivered else 0
