"""A send to a broker behind a broken line is unknown, and the outage is noticed in time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta

import pytest

from tests.support.waiting import eventually
from timeoutmgr.contracts import SendResult
from timeoutmgr.errors import TransportUnavailable
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.testing.faultproxy import FaultProxy
from timeoutmgr.transport.kombu_transport import KombuTransport


@pytest.fixture
def broker_proxy(rabbitmq_url: str) -> Iterator[FaultProxy]:
    with FaultProxy.before(rabbitmq_url) as proxy:
        yield proxy


@pytest.fixture
def queue(rabbitmq_url: str, unique: str) -> Iterator[str]:
    with (
        closing(KombuTransport(rabbitmq_url, queue_type="classic")) as transport,
        closing(transport.session()) as session,
    ):
        session.create_queues([unique])
        yield unique
        session.delete_queues([unique])


@pytest.fixture
def far(rabbitmq_url: str, broker_proxy: FaultProxy) -> Iterator[KombuTransport]:
    second = timedelta(seconds=1)
    with closing(
        KombuTransport(
            broker_proxy.url(rabbitmq_url), confirm_timeout=second, connect_timeout=second
        )
    ) as transport:
        yield transport


def outgoing(queue: str, *names: str) -> list[Outgoing]:
    return [Outgoing(queue, Message(id=name, body=b"body of " + name.encode())) for name in names]


@pytest.mark.parametrize("then_cut", [True, False])
def test_a_lost_confirm_is_unknown_and_the_message_is_there(
    far: KombuTransport, broker_proxy: FaultProxy, queue: str, then_cut: bool
) -> None:
    with closing(far.session()) as session:
        assert session.send(outgoing(queue, "before")) == [SendResult.CONFIRMED]
        broker_proxy.lose_reply(containing=b"body of lost", then_cut=then_cut)

        began = time.monotonic()
        results = session.send(outgoing(queue, "lost"))
        took = time.monotonic() - began
        broker_proxy.wait_until_fired()

        assert results == [SendResult.UNKNOWN]
        assert took < 5
        assert session.send(outgoing(queue, "after")) == [SendResult.CONFIRMED]
        assert session.count(queue) == 3


def test_a_broker_that_falls_silent_leaves_sends_unknown_within_the_confirm_timeout(
    far: KombuTransport, broker_proxy: FaultProxy, queue: str
) -> None:
    with closing(far.session()) as session:
        assert session.send(outgoing(queue, "before")) == [SendResult.CONFIRMED]
        broker_proxy.blackhole()

        began = time.monotonic()
        results = session.send(outgoing(queue, "a", "b"))
        took = time.monotonic() - began
        broker_proxy.heal()

        assert results == [SendResult.UNKNOWN] * 2
        assert took < 5
        assert session.send(outgoing(queue, "c")) == [SendResult.CONFIRMED]


def test_a_broker_that_answers_no_new_connection_is_an_outage_in_time(
    far: KombuTransport, broker_proxy: FaultProxy
) -> None:
    broker_proxy.blackhole()
    with closing(far.session()) as session:
        began = time.monotonic()
        with pytest.raises(TransportUnavailable):
            session.ping()
        assert time.monotonic() - began < 6

        broker_proxy.heal()
        session.ping()


def test_a_reset_receiver_gets_everything_again(
    far: KombuTransport, broker_proxy: FaultProxy, queue: str
) -> None:
    with closing(far.session()) as session:
        session.send(outgoing(queue, "a", "b"))
        with closing(session.receiver(queue, prefetch=9)) as receiver:
            eventually(lambda: receiver.receive(1, 1), "the first message is received")
            broker_proxy.reset()

            def receive_all() -> None:
                while receiver.receive(9, 5):
                    continue

            with pytest.raises(TransportUnavailable):
                receive_all()
            got: dict[str, int] = {}

            def both() -> bool:
                got.update((one.message.id, one.delivery_count) for one in receiver.receive(9, 1))
                return len(got) == 2

            eventually(both, "both messages come again")
    assert got == {"a": 1, "b": 1}


def test_a_refused_broker_is_an_outage_and_then_is_none(
    far: KombuTransport, broker_proxy: FaultProxy
) -> None:
    broker_proxy.refuse()
    with closing(far.session()) as session:
        with pytest.raises(TransportUnavailable):
            session.ping()
        broker_proxy.heal()
        session.ping()
