"""Facts, fixtures and helpers of the cases of transports."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import ClassVar, Final

import pytest

from timeoutmgr.contracts import Receiver, SendResult, Transport, TransportSession
from timeoutmgr.errors import TransportUnavailable
from timeoutmgr.message.foreign import KOMBU
from timeoutmgr.message.headers import filled
from timeoutmgr.message.message import Message, Outgoing, Received, with_headers

PATIENCE: Final = 20.0
"""Maximum seconds to wait for a message."""
EMPTY: Final = 0.2
"""Seconds without a message after which a queue counts as empty."""


class TransportSuite:
    """The facts and the fixtures; every case is a method of a subclass."""

    durable: ClassVar[bool]
    """As in the capabilities: messages of a killed consumer come back."""
    transactions: ClassVar[bool]
    """The transport supports the mode SENDS_ATOMIC_WITH_RECEIVE."""
    expires_messages: ClassVar[bool] = False
    """The transport implements ExpiresMessages."""
    sends_foreign: ClassVar[bool] = False
    """The sessions send messages for other programs by a route."""
    foreign_codec: ClassVar[str] = KOMBU
    """The codec of the foreign messages that the broker accepts."""
    can_lose_leases: ClassVar[bool] = False
    """The fixture ``lose_leases`` is overridden."""

    @pytest.fixture
    def make_transport(self) -> Callable[[], Transport]:
        """Override this: return a factory of installed transports that share one broker."""
        raise NotImplementedError("a subclass overrides the fixture make_transport")

    @pytest.fixture
    def lose_leases(self) -> Callable[[], None]:
        """Override this: return a function that ends every lease, as a cut connection does."""
        raise NotImplementedError("a class with can_lose_leases overrides the fixture lose_leases")

    @pytest.fixture
    def transport(self, make_transport: Callable[[], Transport]) -> Iterator[Transport]:
        """Create a transport; close it after the test."""
        with closing(make_transport()) as transport:
            yield transport

    @pytest.fixture
    def session(self, transport: Transport) -> Iterator[TransportSession]:
        """Open a session."""
        with closing(transport.session()) as session:
            yield session

    @pytest.fixture
    def other_session(self, make_transport: Callable[[], Transport]) -> Iterator[TransportSession]:
        """Open a session of a second transport, like the session of another process."""
        with closing(make_transport()) as transport, closing(transport.session()) as session:
            yield session

    @pytest.fixture
    def new_queue(self, session: TransportSession) -> Iterator[Callable[[], str]]:
        """Return a function that creates queues; delete them after the test."""
        made: list[str] = []

        def make() -> str:
            made.append(f"conformance-{uuid.uuid4().hex[:12]}")
            session.create_queues(made[-1:])
            return made[-1]

        yield make
        session.delete_queues(made)

    @pytest.fixture
    def queue(self, new_queue: Callable[[], str]) -> str:
        """Return an empty queue."""
        return new_queue()

    @pytest.fixture
    def target(self, new_queue: Callable[[], str]) -> str:
        """Return another empty queue."""
        return new_queue()

    @pytest.fixture
    def name(self, session: TransportSession) -> Iterator[str]:
        """Return a name of no queue; the case may create queues ``<name>`` and ``<name>.…``."""
        name = f"conformance-{uuid.uuid4().hex[:12]}"
        yield name
        session.delete_queues([name])

    @pytest.fixture
    def receiver(self, session: TransportSession, queue: str) -> Iterator[Receiver]:
        """Open a receiver of ``queue``."""
        with closing(session.receiver(queue, prefetch=1_000)) as receiver:
            yield receiver


def messages(queue: str, *names: str) -> list[Outgoing]:
    """Return a message for each name, with the name as its id."""
    return [Outgoing(queue, Message(id=name, body=name.encode())) for name in names]


def put(session: TransportSession, queue: str, *names: str) -> None:
    """Send a message for each name, and check that all are confirmed."""
    results = session.send(messages(queue, *names))
    assert results == [SendResult.CONFIRMED] * len(names)


def numbers(count: int) -> list[str]:
    """Return *count* names."""
    return [f"{number:04}" for number in range(count)]


def with_properties(message: Message) -> Message:
    """Return *message* with the headers that a transport may fill from the broker's properties."""
    properties = {"message_id": message.id, "content_type": message.content_type}
    return with_headers(message, filled(dict(message.headers), properties))


def ids(received: Sequence[Received]) -> list[str]:
    """Return the message ids, in order."""
    return [one.message.id for one in received]


def receive(receiver: Receiver, count: int) -> list[Received]:
    """Receive exactly *count* messages, in as many calls as needed."""
    found: list[Received] = []
    deadline = time.monotonic() + PATIENCE
    while len(found) < count and time.monotonic() < deadline:
        found += receiver.receive(count - len(found), 1)
    assert len(found) == count, f"{len(found)} of {count} came: {ids(found)}"
    return found


def receive_all(receiver: Receiver) -> list[Received]:
    """Receive and acknowledge until nothing more comes."""
    found: list[Received] = []
    while received := receiver.receive(100, EMPTY):
        receiver.ack(received)
        found += received
    return found


def receive_again(receivers: Sequence[Receiver]) -> tuple[Receiver, list[Received]]:
    """Return the receiver that got messages, and the messages; retry lost connections."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for receiver in receivers:
            try:
                received = receiver.receive(100, EMPTY)
            except TransportUnavailable:
                continue
            if received:
                return receiver, received
    raise AssertionError("it never came again")


def receive_until_quiet(receiver: Receiver) -> list[Received]:
    """Receive with a receiver that may have lost its connection; settle nothing."""
    while True:
        try:
            return receiver.receive(100, EMPTY)
        except TransportUnavailable:
            continue


def counted(session: TransportSession, queue: str) -> int:
    """Return how many messages wait; the session may have lost its connection."""
    try:
        return session.count(queue)
    except TransportUnavailable:
        return session.count(queue)
