"""Sends that are confirmed, and receives of an exact number of messages."""

from __future__ import annotations

import time

from timeoutmgr.contracts import Receiver, SendResult, TransportSession
from timeoutmgr.message.message import Message, Outgoing, Received


def send(session: TransportSession, queue: str, *ids: str) -> None:
    results = session.send([Outgoing(queue, Message(id=one)) for one in ids])
    assert results == [SendResult.CONFIRMED] * len(ids)


def receive(receiver: Receiver, count: int) -> list[Received]:
    """Return exactly *count* messages, however many receives they need."""
    found: list[Received] = []
    deadline = time.monotonic() + 10
    while len(found) < count and time.monotonic() < deadline:
        found += receiver.receive(count - len(found), 1)
    assert len(found) == count
    return found


def ids(received: list[Received]) -> list[str]:
    return [one.message.id for one in received]
