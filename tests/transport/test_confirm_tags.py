"""A confirm counts for the messages that its tag says, one or all up to it, and for no other."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from datetime import timedelta
from typing import cast

from timeoutmgr.contracts import SendResult
from timeoutmgr.transport.connection import AmqpConnection
from timeoutmgr.transport.dispatch import ConfirmWindow, Publishing


class Broker:
    """The far end of a connection and its one channel; it says what is scripted, in order.

    A real broker chooses by itself which confirms it sends as one.
    """

    frame_limit = 131_072
    blocked = False
    channel_id = 1

    def __init__(self, *said: tuple[str, int, bool]) -> None:
        self.events: defaultdict[str, set[Callable[..., None]]] = defaultdict(set)
        self._said = deque(said)

    def channel(self) -> Broker:
        return self

    def confirm_select(self) -> None:
        return

    def write(self, frames: bytes) -> None:
        assert frames

    def tick(self) -> None:
        return

    def drop(self, reason: str) -> None:
        raise AssertionError(reason)

    def pump(self, seconds: float) -> bool:
        method, tag, multiple = self._said.popleft()
        for listener in self.events[method]:
            listener(tag, multiple)
        return True


def sent(count: int, *said: tuple[str, int, bool]) -> list[SendResult]:
    connection = cast(AmqpConnection, Broker(*said))
    window = ConfirmWindow(connection, 10, timedelta(seconds=10))
    return window.send([Publishing("q", f"m{n}", b"\0\0\0\0", b"", b"") for n in range(count)])


def test_a_confirm_of_all_up_to_a_tag_ends_at_it() -> None:
    results = sent(3, ("basic_ack", 2, True), ("basic_nack", 3, False))

    assert results == [SendResult.CONFIRMED, SendResult.CONFIRMED, SendResult.REFUSED]


def test_a_refusal_of_all_up_to_a_tag_spares_what_was_confirmed_before() -> None:
    results = sent(3, ("basic_ack", 2, False), ("basic_nack", 3, True))

    assert results == [SendResult.REFUSED, SendResult.CONFIRMED, SendResult.REFUSED]
