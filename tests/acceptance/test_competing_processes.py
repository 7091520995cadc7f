"""Any number of processes share the work of one endpoint's timeout manager."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import pytest

from chaos.forkserver_client import ForkServer
from tests.acceptance.matrix import REFERENCE, REPRESENTATIVE, Pair, matrix
from tests.acceptance.place import Party, Place
from tests.acceptance.process import Child
from tests.support.waiting import eventually
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Timeout
from timeoutmgr.message import headers
from timeoutmgr.message.instants import from_wire, to_micros
from timeoutmgr.message.message import Message
from timeoutmgr.message.routes import timeout_id

FEW, MANY = 200, 10_000


def fill(place: Place, count: int, due: datetime, destination: str) -> list[str]:
    """Store *count* timeouts of one instant; return the ids of their messages."""
    store = place.persistence().timeouts(place.name, SystemClock())
    ids = [f"m{number:06}" for number in range(count)]
    for start in range(0, count, 1000):
        store.store_many(
            [
                Timeout(
                    id=timeout_id(place.name, message_id),
                    due=to_micros(due),
                    destination=destination,
                    message=Message(
                        id=message_id,
                        headers={headers.DELIVER_AT: "kept", headers.MESSAGE_ID: message_id},
                        body=message_id.encode(),
                    ),
                )
                for message_id in ids[start : start + 1000]
            ]
        )
    return ids


@matrix(pairs=REPRESENTATIVE)
@pytest.mark.behaviour(45, 50, 88)
def test_ten_thousand_timeouts_of_one_instant_are_each_delivered_once(place: Place) -> None:
    count = MANY if place.pair == REFERENCE else FEW
    party = Party(place)
    party.endpoint.install()
    target = place.queue(f"{place.name}-target")
    due = datetime.now(UTC) + timedelta(seconds=1)
    ids = fill(place, count, due, target)

    party.start()

    received = place.received(target)
    got = received.wait_for(count, timeout=60)
    assert Counter(message.id for message in got) == Counter(ids)
    eventually(lambda: party.endpoint.timeouts.count() == 0, "all are closed")
    assert len(received.poll()) == count
    at = [from_wire(message.headers[headers.DISPATCHED_AT]) for message in got]
    assert min(at) >= to_micros(due)


@matrix(pairs=[*REPRESENTATIVE, Pair("redis", "postgres")], needs={"processes"})
@pytest.mark.behaviour(46, 47, 63)
def test_competing_processes_repeat_and_lose_no_message(
    place: Place, fork_server: ForkServer
) -> None:
    count = 2_000 if place.pair == REFERENCE else FEW
    party = Party(place)
    party.endpoint.install()
    target = place.queue(f"{place.name}-target")

    with ExitStack() as stack:
        children = [stack.enter_context(Child(fork_server, place, chunk=10)) for _ in range(2)]
        for child in children:
            child.running()
        ids = fill(place, count, datetime.now(UTC) + timedelta(milliseconds=300), target)
        woken = [
            party.endpoint.send(target, "Ping", n, delay=0.3 + n / 50).message_id for n in range(25)
        ]

        received = place.received(target)
        got = received.wait_for(count + 25, timeout=60)
        eventually(lambda: party.endpoint.timeouts.count() == 0, "all are closed")

        assert Counter(message.id for message in got) == Counter(ids + woken)
        assert len(received.poll()) == count + 25
        assert [child.terminate() for child in children] == [0, 0]
    assert place.session.count(f"{place.name}.error") == 0
