"""A broker that is killed while it holds delayed messages."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from tests.services.private import PrivateServer
from timeoutmgr import Endpoint, EndpointConfiguration, SendOptions, ToSend
from timeoutmgr.clock import SystemClock
from timeoutmgr.message.instants import from_micros
from timeoutmgr.native import NativeDelayedDelivery
from timeoutmgr.native.infrastructure import DelayLevels
from timeoutmgr.native.names import OURS
from timeoutmgr.testing import Inbox
from timeoutmgr.transport.kombu_transport import KombuTransport

SECOND = 1_000_000
COUNT = 300


@pytest.mark.slow
def test_a_killed_broker_loses_nothing_that_is_in_its_levels(
    private_server: Callable[[str], PrivateServer],
) -> None:
    broker = private_server("rabbitmq")
    broker.start()
    inbox = Inbox()
    config = EndpointConfiguration("sales")
    config.use_transport(broker.url)
    config.enable_feature(NativeDelayedDelivery())
    config.concurrency = 1
    config.add_handler("*", inbox)
    # Half of them are due while the broker is dead, the other half before and after that.
    first = SystemClock().now() + 2 * SECOND
    due = [from_micros(first + n * SECOND // 40) for n in range(COUNT)]

    with Endpoint(config) as endpoint:
        ids: set[str] = set()
        endpoint.send_many(
            (ToSend("sales", "Remind", {}, SendOptions(deliver_at=at)) for at in due),
            on_sent=lambda done: ids.update(one.message_id for one in done),
        )
        inbox.wait_for(20)
        broker.kill()
        broker.start()
        for message_id in ids:
            inbox.wait_for_id(message_id, timeout=60)

    assert len(ids) == COUNT
    assert {one.id for one in inbox.arrived} == ids
    assert all(one.lateness >= 0 for one in inbox.arrived)
    with closing(KombuTransport(broker.url)) as transport:
        levels = DelayLevels(transport=transport, names=OURS, queue_type="quorum")
        assert set(levels.counts().values()) == {0}
