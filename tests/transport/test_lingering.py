"""A batch of few messages is returned without a wait for more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.transport.traffic import ids, send
from timeoutmgr.contracts import TransportSession
from timeoutmgr.transport.amqp import receiver as rabbitmq_receiver
from timeoutmgr.transport.kombu_transport import KombuTransport
from timeoutmgr.transport.virtual import receiver as virtual_receiver
from timeoutmgr.transport.work import FEW


@pytest.fixture(params=["rabbitmq_url", "redis_url"])
def session(request: pytest.FixtureRequest) -> Iterator[TransportSession]:
    url = request.getfixturevalue(request.param)
    with (
        closing(KombuTransport(url, accept_loss=True)) as transport,
        closing(transport.session()) as opened,
    ):
        yield opened


def test_a_receive_of_few_messages_does_not_wait_for_more(
    session: TransportSession, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (rabbitmq_receiver, virtual_receiver):
        monkeypatch.setattr(module, "LINGER", None)  # a wait for more messages raises TypeError
    session.create_queues([unique])
    with closing(session.receiver(unique, prefetch=FEW)) as receiver:
        send(session, unique, "alone")

        received = receiver.receive(FEW, 10)
        receiver.ack(received)
    session.delete_queues([unique])

    assert ids(received) == ["alone"]
