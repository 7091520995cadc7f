"""The confirm window: many messages written, then one wait for what the broker says of each."""

from __future__ import annotations

import logging
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from timeoutmgr.contracts import SendResult
from timeoutmgr.crashpoints import reach
from timeoutmgr.transport.connection import BROKER_ERRORS, AmqpConnection
from timeoutmgr.transport.frames import message_frames

logger = logging.getLogger(__name__)

_BURST = 65_536


@dataclass(frozen=True, slots=True)
class Publishing:
    """A message ready for the wire: all that can be wrong with it was found before."""

    routing_key: str
    message_id: str
    method: bytes
    header: bytes
    body: bytes


class ConfirmWindow:
    """A channel in confirm mode, on a connection of its own.

    Delivery tags are counted here: the broker numbers publishes of a channel from 1, and confirms
    one (or all up to one) by its number. A mandatory message to a missing queue comes back
    *before* its confirm, since the broker took care of it by returning it.
    """

    def __init__(self, connection: AmqpConnection, size: int, timeout: timedelta) -> None:
        self._connection = connection
        self._size = size
        self._timeout = timeout.total_seconds()
        self._channel = connection.channel()
        self._channel.confirm_select()
        self._channel.events["basic_ack"].add(self._on_ack)
        self._channel.events["basic_nack"].add(self._on_nack)
        self._channel.events["basic_return"].add(self._on_return)
        self.spent = False
        self._tag = 0
        # In the order of their tags: a confirm of "all up to" takes from the front.
        self._waiting: dict[int, Publishing] = {}
        self._returned: set[int] = set()
        self._returnable: dict[tuple[str, str], deque[int]] | None = None
        self._results: dict[int, SendResult] = {}

    def send(self, publishings: Sequence[Publishing]) -> list[SendResult]:
        """Publish all and return what became of each, in order.

        Never raises for the broker: where it goes away, or does not answer in time, what it has
        not answered is UNKNOWN, and the window is *spent*: a late confirm could otherwise be
        taken for a later message's. Its connection is dropped, unless the broker blocks it.
        """
        results: list[SendResult] = []
        for start in range(0, len(publishings), self._size):
            chunk = publishings[start : start + self._size]
            if self.spent and not self._connection.blocked:
                results += [SendResult.UNKNOWN] * len(chunk)
            elif self._connection.blocked:
                results += [SendResult.REFUSED] * len(chunk)
            else:
                results += self._send_chunk(chunk)
        return results

    def _send_chunk(self, chunk: Sequence[Publishing]) -> list[SendResult]:
        first = self._tag + 1
        self._results = {}
        try:
            self._write(chunk)
            reach("window.written")
            self._wait()
        except BROKER_ERRORS as error:
            self._give_up(f"{type(error).__name__}: {error}")
        if self._waiting:
            self._give_up(f"no confirm within {self._timeout} s")
        # What came back was not taken, whether its confirm still came or not.
        results = [
            self._results.get(tag)
            or (SendResult.UNROUTABLE if tag in self._returned else SendResult.UNKNOWN)
            for tag in range(first, first + len(chunk))
        ]
        self._returnable = None
        self._waiting.clear()
        self._returned.clear()
        return results

    def _write(self, chunk: Sequence[Publishing]) -> None:
        channel = self._channel.channel_id
        limit = self._connection.frame_limit
        # All of a chunk counts as written before any is: a confirm may be read between bursts.
        for publishing in chunk:
            self._tag += 1
            self._waiting[self._tag] = publishing
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
                # Read now and then: a broker that cannot get rid of returns stops reading.
                self._connection.pump(0)
        if burst:
            self._connection.write(b"".join(burst))

    def _wait(self) -> None:
        deadline = time.monotonic() + self._timeout
        while self._waiting:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return
            self._connection.pump(min(remaining, 1.0))
            self._connection.tick()

    def _give_up(self, reason: str) -> None:
        if self.spent:
            return
        self.spent = True
        logger.warning("%d messages are left unconfirmed: %s", len(self._waiting), reason)
        # A blocked one is kept to hear of the end of the alarm. Sending on yet another connection
        # meanwhile would leave one more copy in the broker's socket buffers each time.
        if not self._connection.blocked:
            self._connection.drop(reason)

    def _on_ack(self, tag: int, multiple: bool) -> None:
        for one in self._settled(tag, multiple):
            self._results[one] = (
                SendResult.UNROUTABLE if one in self._returned else SendResult.CONFIRMED
            )

    def _on_nack(self, tag: int, multiple: bool) -> None:
        for one in self._settled(tag, multiple):
            self._results[one] = SendResult.REFUSED

    def _on_return(self, _error: Exception, _exchange: str, key: str, content: Any) -> None:
        if self._returnable is None:
            self._returnable = defaultdict(deque)
            for tag, publishing in self._waiting.items():
                self._returnable[publishing.routing_key, publishing.message_id].append(tag)
        tags = self._returnable.get((key, content.properties.get("message_id", "")))
        if tags:
            self._returned.add(tags.popleft())

    def _settled(self, tag: int, multiple: bool) -> list[int]:
        if not multiple:
            return [tag] if self._waiting.pop(tag, None) else []
        tags = []
        for one in self._waiting:
            if one > tag:
                break
            tags.append(one)
        for one in tags:
            del self._waiting[one]
        return tags
