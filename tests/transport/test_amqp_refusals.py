"""A broker that will not have a message says so for good: it is refused, with the reason."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, cast
from urllib.parse import urlsplit

import pytest

from tests.services.private import PrivateServer
from tests.services.rabbitmq import PrivateRabbitMQ
from tests.support.makers import a_message
from tests.support.waiting import eventually
from timeoutmgr import Endpoint, EndpointConfiguration, RecoverabilitySettings
from timeoutmgr.contracts import BrowsesQueues, SendResult
from timeoutmgr.contracts.transports import Queue, Topology
from timeoutmgr.errors import ConfigurationError, MessageTooLarge, TransportUnavailable
from timeoutmgr.message import headers
from timeoutmgr.message.message import Outgoing
from timeoutmgr.transport.amqp.session import RabbitMQSession
from timeoutmgr.transport.kombu_transport import KombuTransport

LIMIT = 1_000


@pytest.fixture
def server(private_server: Callable[[str], PrivateServer]) -> PrivateRabbitMQ:
    """A broker whose largest message is small, with a user *reader* who may not write."""
    server = cast(PrivateRabbitMQ, private_server("rabbitmq"))
    server.control("eval", f"application:set_env(rabbit, max_message_size, {LIMIT}).")
    server.control("add_user", "reader", "secret")
    server.control("set_permissions", "-p", "/", "reader", ".*", "^$", ".*")
    return server


@pytest.fixture
def transport(server: PrivateRabbitMQ) -> Iterator[KombuTransport]:
    with closing(KombuTransport(server.url, queue_type="classic")) as transport:
        yield transport


def test_a_message_over_the_brokers_limit_is_refused_with_both_sizes(
    transport: KombuTransport, unique: str
) -> None:
    small = Outgoing(unique, a_message("small"))
    large = Outgoing(unique, a_message("large", bytes(LIMIT + 1)))
    with closing(transport.session()) as session, closing(transport.session()) as other:
        session.create_queues([unique])

        with pytest.raises(MessageTooLarge, match=f"has {LIMIT + 1} bytes, the limit is {LIMIT};"):
            session.send([large])
        with pytest.raises(MessageTooLarge):
            other.send([small, large])

        assert session.count(unique) == 0
        assert other.send([small]) == [SendResult.CONFIRMED]


def test_a_queue_beyond_the_limit_of_the_virtual_host_is_refused_with_the_brokers_words(
    server: PrivateRabbitMQ, transport: KombuTransport, unique: str
) -> None:
    server.control("set_vhost_limits", "-p", "/", '{"max-queues": 1}')
    levels = Topology(queues=(Queue(f"{unique}.level", {"x-queue-type": "classic"}),))
    with closing(transport.session()) as session:
        assert isinstance(session, RabbitMQSession)
        session.create_queues([unique])

        with pytest.raises(ConfigurationError, match=r"queue limit .* is reached.*raise that"):
            session.create_queues([unique, f"{unique}.more"])
        with pytest.raises(ConfigurationError, match=r"queue limit .* is reached.*raise that"):
            session.declare(levels)

        assert session.missing_queues([unique, f"{unique}.more"]) == [f"{unique}.more"]


def test_a_user_who_may_not_write_hears_of_a_refusal(
    server: PrivateRabbitMQ, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = urlsplit(server.url)._replace(netloc=f"reader:secret@127.0.0.1:{server.port}").geturl()
    with (
        closing(KombuTransport(url, queue_type="classic")) as transport,
        closing(transport.session()) as session,
    ):
        session.create_queues([unique])

        assert session.send([Outgoing(unique, a_message())]) == [SendResult.REFUSED]
        assert session.send([Outgoing(unique, a_message())] * 3) == [SendResult.REFUSED] * 3
        assert session.count(unique) == 0
    assert "access to exchange 'amq.default' in vhost '/' refused for user 'reader'" in caplog.text

    config = EndpointConfiguration(unique)
    config.use_transport(url, queue_type="classic")
    config.disable_feature("timeout-manager")
    with Endpoint(config) as endpoint, pytest.raises(TransportUnavailable, match="refused message"):
        endpoint.send(unique, "Ping", {})


def test_a_handler_whose_message_is_too_large_fails_and_holds_no_other_up(
    server: PrivateRabbitMQ, transport: KombuTransport, unique: str
) -> None:
    config = EndpointConfiguration(unique)
    config.use_transport(server.url, queue_type="classic", management_url="off")
    config.error_queue = f"{unique}.error"
    config.disable_feature("timeout-manager")
    config.recoverability = RecoverabilitySettings(immediate=1, delayed=0)
    pinged = threading.Semaphore(0)

    @config.handler("Large")
    def send_large(beside: int, context: Any) -> None:
        for _ in range(beside):
            context.send_local("Ping", {})
        context.send_local("Ping", {"x": "y" * LIMIT})

    @config.handler("Ping")
    def ping(_body: Any, _context: Any) -> None:
        pinged.release()

    endpoint = Endpoint(config)
    endpoint.install()
    with endpoint, closing(transport.session()) as session:
        for beside in (0, 1):
            endpoint.send_local("Large", beside)
        for _ in range(5):
            endpoint.send_local("Ping", {})
        assert all(pinged.acquire(timeout=30) for _ in range(5))
        eventually(lambda: session.count(config.error_queue) == 2, "both are in the error queue")
        assert isinstance(session, BrowsesQueues)
        copies = list(session.browse(config.error_queue, 3))

    for copy in copies:
        assert f"the limit is {LIMIT}" in copy.message.headers[headers.EXCEPTION_MESSAGE]
