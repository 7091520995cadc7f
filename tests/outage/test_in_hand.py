"""Messages leased when the database went away are delivered soon after its return."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from tests.support.waiting import eventually
from timeoutmgr.errors import TransportUnavailable
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.testing.faultproxy import FaultProxy
from timeoutmgr.transport.sql import SqlTransport

SOON = timedelta(seconds=10)


@pytest.mark.behaviour(32)
def test_a_leased_message_does_not_wait_for_its_lease_to_lapse_after_an_outage(
    postgres_url: str, unique: str
) -> None:
    with FaultProxy.before(postgres_url) as proxy:
        transport = SqlTransport(proxy.url(postgres_url), prefix=f"{unique}_")
        transport.install()
        session = transport.session()
        session.create_queues(["q"])
        session.send([Outgoing("q", Message(id="1"))])
        receiver = session.receiver("q", prefetch=5)
        assert len(receiver.receive(5, 1)) == 1
        proxy.refuse()
        proxy.reset()
        with pytest.raises(TransportUnavailable):
            receiver.close()  # as a pump does in an outage
        proxy.heal()
        back = time.monotonic()

        receiver = session.receiver("q", prefetch=5)
        eventually(lambda: receiver.receive(5, 0.5), "it comes again", SOON.total_seconds())

        assert time.monotonic() - back < SOON.total_seconds()
        receiver.close()
        transport.close()
