"""The database goes away and comes back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url, text

from timeoutmgr.errors import TransportUnavailable
from timeoutmgr.message.message import Message, Outgoing, Received
from timeoutmgr.transport.sql import SqlTransport


def made_in(server: Any, kind: str, prefix: str) -> SqlTransport:
    """Return an installed transport in a database of *server*, with the queue ``q``."""
    url = make_url(server.url)
    if kind == "mysql":
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.execute(text("CREATE DATABASE queues"))
        engine.dispose()
        url = url.set(database="queues")
    transport = SqlTransport(url, prefix=prefix)
    transport.install()
    transport.session().create_queues(["q"])
    return transport


def receive_at_last(receiver: Any, seconds: float) -> list[Received]:
    """Receive as a pump does: an unavailable transport is tried again."""
    until = time.monotonic() + seconds
    while True:
        try:
            if received := receiver.receive(10, 0.5):
                return list(received)
        except TransportUnavailable:
            pass
        assert time.monotonic() < until, "nothing came"


@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_a_killed_server_is_unavailable_and_nothing_is_lost(
    kind: str, private_server: Callable[[str], Any], prefix: str
) -> None:
    server = private_server(kind)
    transport = made_in(server, kind, prefix)
    session = transport.session()
    session.send([Outgoing("q", Message(id=str(number))) for number in range(3)])
    receiver = session.receiver("q", prefetch=0)
    held = receiver.receive(1, 0)

    server.kill()
    uses: list[Callable[[], Any]] = [
        lambda: session.send([Outgoing("q", Message(id="x"))]),
        lambda: receiver.receive(1, 0),
        lambda: receiver.ack(held),
        lambda: receiver.release(held),
        lambda: session.count("q"),
        lambda: session.missing_queues(["q"]),
        lambda: session.create_queues(["q2"]),
        lambda: session.transaction().__enter__(),
        session.ping,
        transport.check,
    ]
    for use in uses:
        with pytest.raises(TransportUnavailable):
            use()
    server.start()

    received = receive_at_last(receiver, 30)
    assert [one.message.id for one in received] == ["1", "2"]
    receiver.ack([*held, *received])  # still ours: there was no other receiver to lease them
    assert session.count("q") == 0
    transport.close()


@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_a_transaction_that_loses_its_server_raises_and_undoes(
    kind: str, private_server: Callable[[str], Any], prefix: str
) -> None:
    server = private_server(kind)
    transport = made_in(server, kind, prefix)
    session = transport.session()

    def cut_off() -> None:
        with session.transaction() as transaction:
            session.send([Outgoing("q", Message(id="1"))], transaction=transaction)
            server.kill()

    with pytest.raises(TransportUnavailable):
        cut_off()
    server.start()

    assert receive_nothing(transport) == []
    transport.close()


def receive_nothing(transport: SqlTransport) -> list[Received]:
    """Receive once the server answers again."""
    until = time.monotonic() + 30
    while True:
        try:
            return transport.session().receiver("q", prefetch=1).receive(1, 0)
        except TransportUnavailable:
            assert time.monotonic() < until
