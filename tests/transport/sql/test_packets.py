"""A message that is too large for a packet of MySQL is refused, and its neighbours are unharmed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import kombu as kombu_package
import pytest
from sqlalchemy import event

from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message import headers
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.transport.sql import SqlTransport

kombu: Any = kombu_package  # its annotations are too few to check against
PACKET = 100_000
LARGE = b"\xff" * (PACKET // 2)
FITS = LARGE[: (PACKET - 40_000) // 2]


def to_q(*bodies: bytes) -> list[Outgoing]:
    """Return messages with *bodies*, whose ids count from 0."""
    return [Outgoing("q", Message(id=str(number), body=body)) for number, body in enumerate(bodies)]


@pytest.fixture
def transport(mysql_url: str, unique: str) -> Iterator[SqlTransport]:
    """A queue in a database of which every connection knows a small packet."""
    transport = SqlTransport(mysql_url, prefix=f"{unique}_")
    transport.database.dispose()

    def know(_driver: Any, record: Any) -> None:
        record.info["timeoutmgr_packet"] = PACKET

    event.listen(transport.database.engine, "connect", know)
    transport.install()
    transport.session().create_queues(["q"])
    yield transport
    event.remove(transport.database.engine, "connect", know)
    transport.database.dispose()
    transport.close()


def test_a_message_that_no_packet_carries_is_refused_with_nothing_sent(
    transport: SqlTransport,
) -> None:
    session = transport.session()

    with pytest.raises(InvalidMessage, match=r"'1' takes .* max_allowed_packet is 100000; raise"):
        session.send(to_q(b"small", LARGE))
    assert session.count("q") == 0

    session.send(to_q(*[FITS] * 7))
    received = session.receiver("q", prefetch=0).receive(10, 0)
    assert [one.message.body for one in received] == [FITS] * 7


def test_an_accepted_message_has_room_for_the_headers_of_dispatch_and_failure(
    transport: SqlTransport,
) -> None:
    session = transport.session()
    body = LARGE[: (PACKET - 24 * 1024) // 2]
    message = Message(id="m", body=body)

    with pytest.raises(InvalidMessage):
        session.send([Outgoing("q", message)])
    for added in (headers.DISPATCHED_AT, headers.RETRIES, headers.FAILED_QUEUE):
        session.send([Outgoing("q", replace(message, headers={added: "x"}))])

    assert session.count("q") == 3


def test_a_transaction_continues_after_a_message_that_is_too_large(transport: SqlTransport) -> None:
    session = transport.session()

    with session.transaction() as transaction:
        session.send(to_q(b"small"), transaction=transaction)
        with pytest.raises(InvalidMessage):
            session.send(to_q(LARGE), transaction=transaction)

    assert session.count("q") == 1


def test_kombus_producer_gets_the_same_error(
    transport: SqlTransport, mysql_url: str, unique: str
) -> None:
    options = {"prefix": f"{unique}_"}
    with kombu.Connection(f"timeoutmgr+{mysql_url}", transport_options=options) as connection:
        producer = connection.Producer()

        with pytest.raises(InvalidMessage, match="max_allowed_packet"):
            producer.publish(LARGE, routing_key="q", content_encoding="binary")
        producer.publish(FITS, routing_key="q", content_encoding="binary")

    assert transport.session().count("q") == 1
