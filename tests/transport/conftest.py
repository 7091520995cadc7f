"""What the tests of brokers share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from timeoutmgr.contracts import Receiver, Transport, TransportSession


@pytest.fixture
def session(transport: Transport) -> Iterator[TransportSession]:
    """A session of the *transport* that the module says."""
    with closing(transport.session()) as session:
        yield session


@pytest.fixture
def queue(session: TransportSession, unique: str) -> Iterator[str]:
    """A queue that nobody else has."""
    session.create_queues([unique])
    yield unique
    session.delete_queues([unique])


@pytest.fixture
def receiver(session: TransportSession, queue: str) -> Iterator[Receiver]:
    """A receiver of that queue."""
    with closing(session.receiver(queue, prefetch=100)) as receiver:
        yield receiver
