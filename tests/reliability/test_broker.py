"""A broker that is restarted properly, and a broker that drops a message after two tries."""

from __future__ import annotations

import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.acceptance.gate import Gate
from tests.acceptance.matrix import Pair
from tests.acceptance.place import Party, Place, stopping
from tests.services import rabbitmq
from tests.services.private import PrivateServer
from tests.support.waiting import eventually
from timeoutmgr.errors import DeliveryUnknown, TransportUnavailable
from timeoutmgr.satellites import TimeoutManager

LONG = timedelta(minutes=2)
DELIVERY_LIMIT = 2


@pytest.fixture
def broker(private_server: Callable[[str], PrivateServer]) -> PrivateServer:
    server = private_server("rabbitmq")
    server.start()
    return server


@pytest.fixture
def place(broker: PrivateServer, sqlite_url: str, unique: str) -> Iterator[Place]:
    urls = {"rabbitmq": broker.url, "sqlite": sqlite_url}
    with stopping(Place(Pair("rabbitmq", "sqlite"), urls, unique)) as made:
        yield made


@pytest.mark.slow
def test_a_restarted_broker_finds_everything_and_is_found_within_ten_seconds(
    place: Place, broker: PrivateServer
) -> None:
    party = Party(place, manager=TimeoutManager(time_to_wait_before_critical_error=LONG)).start()
    sent = [party.endpoint.send_local("Ping", n, delay=1 + n / 100) for n in range(50)]
    party.inbox.wait_for(1)

    broker.stop()
    with pytest.raises((TransportUnavailable, DeliveryUnknown)):
        party.endpoint.send_local("Ping", "while it is away", message_id="in doubt")
    broker.start()

    back = time.monotonic()
    last = party.endpoint.send_local("Ping", "after", delay=0)
    party.inbox.wait_for_id(last.message_id, timeout=30)
    took = time.monotonic() - back
    for each in sent:
        party.inbox.wait_for_id(each.message_id, timeout=30)
    eventually(lambda: party.endpoint.timeouts.count() == 0, "all are closed")
    wanted = {one.message_id for one in [*sent, last]}
    arrived = Counter(one.id for one in party.inbox.arrived)
    assert wanted <= set(arrived) <= wanted | {"in doubt"}
    assert took < 10
    assert party.endpoint.critical_error is None
    assert place.session.count(party.config.error_queue) == 0


@pytest.mark.slow
def test_an_outage_of_the_storage_uses_up_no_delivery_limit(
    place: Place, broker: PrivateServer
) -> None:
    limit = f'{{"delivery-limit": {DELIVERY_LIMIT}}}'
    _control(broker, "set_policy", "limit", r".*\.Timeouts", limit, "--apply-to", "queues")
    gate = Gate(place.persistence())
    manager = TimeoutManager(time_to_wait_before_critical_error=LONG)
    party = Party(place, persistence=gate, manager=manager).start()
    party.telemetry.wait_for("polls", 1)
    gate.shut()

    sent = [party.endpoint.send_local("Ping", n, delay=0.1).message_id for n in range(20)]
    for _ in range(4 * DELIVERY_LIMIT):  # looks of pump and poller, all in vain
        assert gate.asked_in_vain.acquire(timeout=10)
    gate.open()

    arrived = party.inbox.wait_for(20, timeout=30)
    assert Counter(one.id for one in arrived) == Counter(sent)
    assert place.session.count(party.config.error_queue) == 0


def _control(broker: PrivateServer, *words: str) -> None:
    subprocess.run(
        [str(Path(rabbitmq._script("rabbitmqctl") or "")), *words],
        env={**os.environ, **broker._env()},
        check=True,
        capture_output=True,
    )
