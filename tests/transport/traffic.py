"""Messages that are sent and surely taken, and received in just the number asked for."""

from __future__ import annotations

import time

from timeoutmgr.contracts import Receiver, SendResult, TransportSession
from timeoutmgr.message.message import Message, Outgoing, Received


def send(session: TransportSession, queue: str, *ids: str) -> None:
    results = session.send([Outgoing(queue, Message(id=one)) for one in ids])
    assert results == [SendResult.CONFIRMED] * len(ids)


def receive(receiver: Receiver, count: int) -> list[Received]:
    """Return exactly *count* messages, which come in as many pieces as the network likes."""
    found: list[Received] = []
    deadline = time.monotonic() + 10
    while len(found) < count and time.monotonic() < deadline:
        found += receiver.receive(count - len(found), 1)
    assert len(found) == count
    return found


def ids(received: list[Received]) -> list[str]:
    return [one.message.id for one in received]
