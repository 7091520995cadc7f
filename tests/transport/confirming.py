"""The far end of a connection and its single channel; a test writes its answers.

A real broker chooses by itself which confirms it combines, and when it sends them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import TypeAlias, cast

from tests.support.clock import FakeClock
from timeoutmgr.transport.amqp.connection import AmqpConnection
from timeoutmgr.transport.amqp.dispatch import ConfirmWindow, EncodedMessage
from timeoutmgr.transport.amqp.frames import BODY, publish_method, split_frames

Said: TypeAlias = tuple[str, int, bool] | tuple[str, str, str, str] | Exception
"""A confirm with its tag and whether it means all up to it; a return with its exchange, routing key
and message id; or how the connection ends."""


class Broker:
    """Records the messages published on a channel; *said* holds the answers still to be read."""

    frame_limit = 131_072
    blocked = False
    channel_id = 1

    def __init__(self, *said: Said) -> None:
        self.events: defaultdict[str, set[Callable[..., None]]] = defaultdict(set)
        self.said = deque(said)
        self.broken: str | None = None
        self.published: list[bytes] = []
        self.read_when_published: list[int] = []
        self.clock = FakeClock()
        self._read = 0

    def window(self, size: int = 10, *, each: int | None = None) -> ConfirmWindow:
        """Return a window on this connection, with a time-out of ten seconds."""
        return ConfirmWindow(
            cast(AmqpConnection, self),
            size,
            timedelta(seconds=10),
            each=each,
            monotonic=self.clock.monotonic,
        )

    def channel(self) -> Broker:
        return self

    def confirm_select(self) -> None:
        return

    def write(self, frames: bytes) -> None:
        found, rest = split_frames(frames)
        assert not rest
        bodies = [body for kind, _, body in found if kind == BODY]
        self.published += bodies
        self.read_when_published += [self._read] * len(bodies)

    def tick(self) -> None:
        return

    def drop(self, reason: str) -> None:
        self.broken, self.blocked = reason, False

    def pump(self, seconds: float) -> bool:
        if not self.said and seconds:
            self.idle()
        if not self.said or self._is_early(self.said[0]):
            self.clock.advance(seconds)
            return False
        self._read += 1
        said = self.said.popleft()
        if isinstance(said, Exception):
            raise said
        method, *given = said
        for listener in self.events[method]:
            if method == "basic_return":
                exchange, key, message_id = given
                content = SimpleNamespace(properties={"message_id": message_id})
                listener(None, exchange, key, content)
            else:
                listener(*given)
        return True

    def _is_early(self, said: Said) -> bool:
        """Return whether *said* confirms a message that is not published yet."""
        return (
            isinstance(said, tuple) and isinstance(said[1], int) and said[1] > len(self.published)
        )

    def idle(self) -> None:
        """Called while the client waits and there is nothing to read."""


def ack(tag: int, *, multiple: bool = False) -> Said:
    return "basic_ack", tag, multiple


def nack(tag: int, *, multiple: bool = False) -> Said:
    return "basic_nack", tag, multiple


def returned(key: str, message_id: str, exchange: str = "") -> Said:
    return "basic_return", exchange, key, message_id


def publishing(message_id: str, key: str = "q", body: bytes = b"{}") -> EncodedMessage:
    return EncodedMessage(key, message_id, publish_method(key), b"", body)


def publishings(*ids: str) -> list[EncodedMessage]:
    """Return a message for each id; the id is the body too."""
    return [publishing(one, body=one.encode()) for one in ids]
