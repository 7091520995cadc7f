"""Fixtures that the tests of brokers share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from tests.transport.proxy import Proxy
from timeoutmgr.contracts import Receiver, Transport, TransportSession
from timeoutmgr.transport.kombu_transport import KombuTransport


@pytest.fixture
def transport(rabbitmq_url: str) -> Iterator[KombuTransport]:
    """RabbitMQ, where the module says no other."""
    with closing(KombuTransport(rabbitmq_url, queue_type="classic")) as transport:
        yield transport


@pytest.fixture
def session(transport: Transport) -> Iterator[TransportSession]:
    """A session of the *transport* that the module says."""
    with closing(transport.session()) as session:
        yield session


@pytest.fixture
def queue(session: TransportSession, unique: str) -> Iterator[str]:
    """A queue of this test alone."""
    session.create_queues([unique])
    yield unique
    session.delete_queues([unique])


@pytest.fixture
def receiver(session: TransportSession, queue: str) -> Iterator[Receiver]:
    """A receiver of that queue."""
    with closing(session.receiver(queue, prefetch=100)) as receiver:
        yield receiver


@pytest.fixture
def proxy(rabbitmq_url: str) -> Iterator[Proxy]:
    """A broken line to RabbitMQ."""
    parts = urlsplit(rabbitmq_url)
    with Proxy((parts.hostname or "127.0.0.1", parts.port or 5672)) as proxy:
        yield proxy
