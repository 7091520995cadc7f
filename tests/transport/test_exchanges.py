"""Messages that go through an exchange: on RabbitMQ, and refused everywhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from struct import pack

import pytest

from tests.support.makers import a_message
from timeoutmgr.contracts import TransportSession
from timeoutmgr.endpoint.configuration import transport_from_url
from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message.message import Outgoing
from timeoutmgr.transport.amqp.frames import delivered_key, publish_method


class Through:
    """A way through an exchange."""

    def address(self) -> tuple[str, str]:
        return "some.exchange", "some.key"


@pytest.fixture(params=["sqlite", "memory"])
def elsewhere(request: pytest.FixtureRequest, sqlite_url: str) -> Iterator[TransportSession]:
    """A session of a transport without exchanges, on which the queue ``billing`` exists."""
    url = sqlite_url if request.param == "sqlite" else "memory://"
    with closing(transport_from_url(url, accept_loss=True)) as transport:
        transport.install()
        with closing(transport.session()) as session:
            session.create_queues(["billing"])
            yield session
            session.delete_queues(["billing"])


def test_a_message_that_a_broker_delays_is_never_put_straight_into_a_queue(
    elsewhere: TransportSession,
) -> None:
    delayed = Outgoing("billing", a_message(), Through())

    with pytest.raises(InvalidMessage, match="only RabbitMQ has them"):
        elsewhere.send([Outgoing("billing", a_message("m2")), delayed])

    assert elsewhere.count("billing") == 0


@pytest.mark.parametrize(
    ("tag", "exchange", "key", "read"),
    [
        (b"ctag1", b"", b"billing", "billing"),
        (b"", b"timeoutmgr.v1.delay-delivery", b"0.1.eu.sales", "0.1.eu.sales"),
        (b"c" * 255, b"e" * 255, "Zürich".encode(), "Zürich"),
        (b"ctag1", b"", b"", ""),
        (b"ctag1", b"\xff", b"bad \xff", "bad \N{REPLACEMENT CHARACTER}"),
    ],
)
def test_the_routing_key_of_a_delivery_is_read_for_any_bytes(
    tag: bytes, exchange: bytes, key: bytes, read: str
) -> None:
    short = [bytes((len(text),)) + text for text in (tag, exchange, key)]

    assert (
        delivered_key(pack(">HH", 60, 60) + short[0] + pack(">QB", 7, 1) + short[1] + short[2])
        == read
    )


def test_a_publish_names_its_exchange() -> None:
    assert publish_method("key") == pack(">HHHB", 60, 40, 0, 0) + b"\x03key\x01"
    assert publish_method("key", "ex") == pack(">HHH", 60, 40, 0) + b"\x02ex\x03key\x01"
