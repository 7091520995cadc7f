"""Reads a queue that no endpoint consumes: an error queue, or a destination."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from timeoutmgr.contracts import Receiver, Transport, TransportSession
from timeoutmgr.message.message import Message, Received
from timeoutmgr.testing.signals import PATIENCE


class ErrorQueue:
    """Receives each message and keeps it; for a single thread."""

    def __init__(self, transport: Transport, queue: str) -> None:
        self._transport = transport
        self._queue = queue
        self._session: TransportSession | None = None
        self._receiver: Receiver | None = None
        self.received: list[Received] = []

    def __enter__(self) -> Self:
        self._session = self._transport.session()
        self._receiver = self._session.receiver(self._queue, prefetch=500)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._receiver is not None:
            self._receiver.close()
        if self._session is not None:
            self._session.close()
        self._transport.close()

    @property
    def messages(self) -> list[Message]:
        """The arrivals so far."""
        return [received.message for received in self.received]

    def of(self, message_id: str) -> list[Message]:
        """Return the arrivals so far under an id."""
        return [message for message in self.messages if message.id == message_id]

    def wait_for(self, count: int, timeout: float = PATIENCE) -> list[Message]:
        """Return the arrivals once they are *count* messages; AssertionError after the time-out."""
        deadline = time.monotonic() + timeout
        while len(self.received) < count:
            self._receive_before(deadline, f"{count} messages")
        return self.messages

    def wait_for_id(self, message_id: str, timeout: float = PATIENCE) -> Message:
        """Return the message of that id once it has arrived."""
        deadline = time.monotonic() + timeout
        while not self.of(message_id):
            self._receive_before(deadline, f"message {message_id}")
        return self.of(message_id)[-1]

    def poll(self, wait: float = 0.1) -> list[Message]:
        """Receive for at most *wait* seconds more; return all arrivals."""
        self._receive(wait)
        return self.messages

    def _receive_before(self, deadline: float, what: str) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            got = [message.id for message in self.messages][:10]
            raise AssertionError(f"{what} never came to {self._queue}; got {got}")
        self._receive(min(left, 1.0))

    def _receive(self, wait: float) -> None:
        assert self._receiver is not None, "enter it first"
        batch = self._receiver.receive(500, wait)
        if batch:
            self.received += batch
            self._receiver.ack(batch)
