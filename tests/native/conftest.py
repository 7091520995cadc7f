"""Delay levels on a real broker, declared once for a worker under its own names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from tests.native.fleet import Fleet
from timeoutmgr.native.infrastructure import delay_topology, unroutable_topology
from timeoutmgr.native.names import NSERVICEBUS_V1, NSERVICEBUS_V2, OURS
from timeoutmgr.transport.amqp.session import RabbitMQSession
from timeoutmgr.transport.kombu_transport import KombuTransport


@pytest.fixture
def transport(rabbitmq_url: str) -> Iterator[KombuTransport]:
    with closing(KombuTransport(rabbitmq_url)) as transport:
        yield transport


@pytest.fixture
def session(transport: KombuTransport) -> Iterator[RabbitMQSession]:
    with closing(transport.session()) as session:
        assert isinstance(session, RabbitMQSession)
        yield session


@pytest.fixture(scope="module")
def levels_of_others_go(rabbitmq_url: str) -> Iterator[None]:
    """Levels with NServiceBus' names are removed behind a module.

    Each is a queue with files of its own, and a broker may open a thousand.
    """
    yield
    with (
        closing(KombuTransport(rabbitmq_url)) as transport,
        closing(transport.session()) as session,
    ):
        assert isinstance(session, RabbitMQSession)
        for names in (NSERVICEBUS_V1, NSERVICEBUS_V2):
            session.remove(delay_topology(names))


@pytest.fixture
def levels(session: RabbitMQSession) -> RabbitMQSession:
    """A session with a broker that has our levels."""
    session.declare(unroutable_topology())
    session.declare(delay_topology(OURS))
    return session


@pytest.fixture
def fleet(rabbitmq_url: str, sqlite_url: str, unique: str) -> Iterator[Fleet]:
    """Endpoints that are stopped in the end."""
    with ExitStack() as stack:
        yield Fleet(rabbitmq_url, sqlite_url, unique, stack)
