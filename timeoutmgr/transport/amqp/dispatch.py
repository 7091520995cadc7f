"""The confirm window: many messages are written before one wait for the broker's answers."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from itertools import takewhile
from typing import Any

from amqp import spec
from amqp.exceptions import AccessRefused, NotFound, PreconditionFailed

from timeoutmgr.contracts import SendResult
from timeoutmgr.crashpoints import reach
from timeoutmgr.message.foreign import Route
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.transport.amqp.connection import BROKER_ERRORS, AmqpConnection
from timeoutmgr.transport.amqp.frames import message_frames, publish_method

logger = logging.getLogger(__name__)

_BURST = 65_536
_REFUSALS = (AccessRefused, NotFound)
"""The broker closes a channel over a publish to an exchange that does not exist or is forbidden."""
_DECLARE = (
    "; declare the exchange again (`timeoutmgr install` declares the exchanges of an endpoint)"
)


@dataclass(frozen=True, slots=True)
class EncodedMessage:
    """A message that was checked and encoded for the wire.

    A message for the exchange of a queue has *to_queue*, the method past that exchange. One *on
    trial* is the first by its route, and alone: an error of the channel is about it. A route that
    was *declared* for an earlier message may have lost its queues since.
    """

    routing_key: str
    message_id: str
    method: bytes
    header: bytes
    body: bytes
    to_queue: bytes | None = None
    on_trial: bool = False
    declared: Route | None = None


def straight(message: EncodedMessage) -> EncodedMessage:
    """Return *message*, which came back, on its last way: to its queue itself if it has one."""
    return replace(message, method=message.to_queue or message.method, to_queue=None, declared=None)


@dataclass(slots=True, eq=False)
class Started:
    """Messages in flight, and the answers so far, in order.

    *first* is the tag of the first message; the next messages have the next tags. Unwritten
    messages are last, and have their answer from the start.
    """

    publishings: Sequence[EncodedMessage]
    first: int
    results: list[SendResult | None] = field(default_factory=list)
    unanswered: int = 0


class ConfirmWindow:
    """A channel in confirm mode, on a connection of its own; used under the connection's lock.

    Delivery tags are counted here: the broker numbers publishes of a channel from 1, and confirms a
    publish (or all up to it) by its number. A mandatory message to a missing queue comes back
    *before* its confirm, since the broker took care of it by returning it.

    At most *size* messages wait for an answer. *timeout* is granted per *each* messages: a large
    window gets as long as several small windows.
    """

    def __init__(
        self,
        connection: AmqpConnection,
        size: int,
        timeout: timedelta,
        *,
        each: int | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._size = size
        self._timeout = timeout.total_seconds()
        self._each = each or size
        self._monotonic = monotonic
        self._channel = connection.channel()
        self._channel.confirm_select()
        self._channel.events["basic_ack"].add(partial(self._settle, answer=SendResult.CONFIRMED))
        self._channel.events["basic_nack"].add(partial(self._settle, answer=SendResult.REFUSED))
        self._channel.events["basic_return"].add(self._on_return)
        self.spent = False
        self._tag = 0
        # In the order of their tags: a confirm of "all up to" removes from the front.
        self._waiting: dict[int, Started] = {}
        self._returned: Counter[tuple[bytes, str]] = Counter()

    def send(self, publishings: Sequence[EncodedMessage]) -> list[SendResult]:
        """Publish all and return the results in order.

        Never raises for the broker. If the broker goes away or does not answer in time, unanswered
        messages are UNKNOWN, and the window is *spent*: the broker's later answers may count other
        messages. The connection is dropped, unless the broker blocks it.
        """
        return self.finish(self.start(publishings))

    def start(self, publishings: Sequence[EncodedMessage]) -> Started:
        """Publish all, behind earlier messages, and leave the wait to ``finish``.

        At most *size* messages are without an answer at any time: if the next messages would exceed
        it, first wait for all that are in flight.
        """
        started = Started(publishings, self._tag + 1)
        while (done := len(started.results)) < len(publishings):
            self._make_room()
            if (answer := self._answer_unwritten()) is not None:
                started.results += [answer] * (len(publishings) - done)
            else:
                room = self._size - len(self._waiting)
                self._publish(started, publishings[done : done + room])
        return started

    def settle(self) -> None:
        """Wait for the answers to all messages in flight."""
        if self._waiting:
            self._wait(lambda: not self._waiting)

    def finish(self, started: Started) -> list[SendResult]:
        """Wait for the answers to *started* alone; return them."""
        self._wait(lambda: not started.unanswered)
        return [result or SendResult.UNKNOWN for result in started.results]

    def _make_room(self) -> None:
        if len(self._waiting) >= self._size:
            self._wait(lambda: not self._waiting)
        elif self._waiting:
            # Read before writing more: a broker that cannot deliver its returns stops reading.
            self._guarded(self._read)

    def _answer_unwritten(self) -> SendResult | None:
        """Return the answer for messages that cannot be written; None if writing is possible."""
        if self._connection.broken is not None:
            self._give_up(self._connection.broken)
        if self._connection.blocked:
            return SendResult.REFUSED
        return SendResult.UNKNOWN if self.spent else None

    def _publish(self, started: Started, chunk: Sequence[EncodedMessage]) -> None:
        # Count a whole chunk as written beforehand: a confirm may be read between bursts.
        for tag in range(self._tag + 1, self._tag + 1 + len(chunk)):
            self._waiting[tag] = started
        self._tag += len(chunk)
        started.results += [None] * len(chunk)
        started.unanswered += len(chunk)
        self._guarded(lambda: self._write(chunk))

    def _write(self, chunk: Sequence[EncodedMessage]) -> None:
        channel = self._channel.channel_id
        limit = self._connection.frame_limit
        burst: list[bytes] = []
        size = 0
        for publishing in chunk:
            frames = message_frames(
                channel, publishing.method, publishing.header, publishing.body, limit
            )
            burst.append(frames)
            size += len(frames)
            if size >= _BURST:
                self._connection.write(b"".join(burst))
                burst, size = [], 0
                reach("window.burst_written")
                # Now and then, for the reason above.
                self._connection.pump(0)
        if burst:
            self._connection.write(b"".join(burst))
        reach("window.written")

    def _wait(self, is_over: Callable[[], bool]) -> None:
        """Wait until *is_over*; on a timeout, give up all messages in flight."""
        deadline, waiting = self._monotonic() + self._timeout, len(self._waiting)

        def wait_once() -> None:
            nonlocal deadline, waiting
            if waiting - len(self._waiting) >= self._each:
                deadline, waiting = self._monotonic() + self._timeout, len(self._waiting)
            remaining = deadline - self._monotonic()
            if self._connection.broken is not None:  # since the write
                self._give_up(self._connection.broken)
            elif remaining <= 0:
                self._give_up(f"no confirm within {self._timeout} s")
            else:
                self._connection.pump(min(remaining, 1.0))
                self._connection.tick()

        while not (self.spent or is_over()):
            self._guarded(wait_once)

    def _read(self) -> None:
        while self._connection.broken is None and self._connection.pump(0):
            pass

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except BROKER_ERRORS as error:
            self._give_up(f"{type(error).__name__}: {error}", error)

    def _give_up(self, reason: str, error: Exception | None = None) -> None:
        if self.spent:
            return
        self.spent = True
        lacks_exchange = isinstance(error, NotFound) and error.method_sig == spec.Basic.Publish
        logger.warning(
            "broker left %d messages unconfirmed: %s",
            len(self._waiting),
            on_one_line(reason + (_DECLARE if lacks_exchange else "")),
            extra={"event": "messages_unconfirmed"},
        )
        is_refusal = self._is_refusal(error)
        for tag, started in self._waiting.items():
            answer = self._answer_given_up(started, tag, error, is_refusal)
            started.results[tag - started.first] = answer
        self._waiting.clear()
        # Keep a blocked connection, to learn of the end of the alarm. Sending on another connection
        # meanwhile would leave one more copy in the broker's socket buffers each time.
        if not self._connection.blocked:
            self._connection.drop(reason)

    def _answer_given_up(
        self, started: Started, tag: int, error: Exception | None, is_refusal: bool
    ) -> SendResult | None:
        """Return the result of the message with *tag*, which got no confirm; None if unknown.

        If an exchange that does not exist or is forbidden has a queue behind it, the message stays
        unknown: the next send goes to the queue, and a refusal would have the message cut down.
        """
        message = started.publishings[tag - started.first]
        is_refused = message.on_trial and isinstance(error, _REFUSALS)
        # A returned message was not accepted, though its confirm did not come.
        if is_refused or self._came_back(started, tag):
            return SendResult.UNROUTABLE
        has_other_way = message.to_queue is not None and isinstance(error, _REFUSALS)
        return SendResult.REFUSED if is_refusal and not has_other_way else None

    def _is_refusal(self, error: Exception | None) -> bool:
        """Return whether the broker closed the channel over a publish and took no waiting message.

        If a single message waits, the error is about it. If several wait, earlier messages may have
        been accepted, unless all are the first and go to the default exchange, now forbidden.
        """
        if not isinstance(error, (*_REFUSALS, PreconditionFailed)):
            return False
        waiting = [each.publishings[tag - each.first] for tag, each in self._waiting.items()]
        is_about_all = len(waiting) == 1 or (
            isinstance(error, AccessRefused)
            and len(waiting) == self._tag
            and all(one.method == publish_method(one.routing_key) for one in waiting)
        )
        return is_about_all and error.method_sig == spec.Basic.Publish

    def _on_return(self, _error: Exception, exchange: str, key: str, content: Any) -> None:
        method = publish_method(key, exchange)
        self._returned[method, content.properties.get("message_id", "")] += 1

    def _settle(self, tag: int, multiple: bool, answer: SendResult) -> None:
        front = takewhile(lambda one: one <= tag, self._waiting)
        for one in list(front) if multiple else (tag,):
            started = self._waiting.pop(one, None)
            if started is None:
                continue
            is_back = answer is SendResult.CONFIRMED and self._came_back(started, one)
            started.results[one - started.first] = SendResult.UNROUTABLE if is_back else answer
            started.unanswered -= 1
        if not self._waiting:
            self._returned.clear()  # each comes before its confirm: none is outstanding

    def _came_back(self, started: Started, tag: int) -> bool:
        """Return whether the message with *tag* was returned, and count that return off.

        A return names no tag. The broker's next confirm belongs to the returned message: of several
        messages with the same exchange, key and id, it is the message that is confirmed first.
        """
        if not self._returned:
            return False
        publishing = started.publishings[tag - started.first]
        pair = publishing.method, publishing.message_id
        if not self._returned[pair]:
            return False
        self._returned[pair] -= 1
        return True
