"""A process that is told to stop in the middle of its work ends soon, and repeats nothing."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack

import pytest

from chaos.forkserver_client import ForkServer
from tests.acceptance.matrix import EMBEDDED, REFERENCE, Pair
from tests.acceptance.place import Party, Place
from tests.acceptance.process import Child
from tests.persistence.making import timeout
from tests.reliability.pairs import on
from tests.support.waiting import eventually
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Insight, TimeoutFilter

PATIENCE = 60
COUNT = 300
MANY = 7_000
"""Due at one instant, so that 5,000 are in flight while the first are sent."""


@pytest.mark.behaviour(51, 97)
@on(EMBEDDED, REFERENCE, Pair("rabbitmq", "sqlite"), Pair("mysql", "mysql"))
def test_a_stop_under_load_is_prompt_and_neither_loses_nor_repeats(
    place: Place, fork_server: ForkServer
) -> None:
    party = Party(place)
    party.endpoint.install()
    target = place.queue(f"{place.name}-target")

    with ExitStack() as stack:
        leaving, staying = (
            stack.enter_context(Child(fork_server, place, chunk=10)) for _ in range(2)
        )
        leaving.running()
        staying.running()
        sent = [
            party.endpoint.send(target, "Ping", n, delay=1 + n / 150).message_id
            for n in range(COUNT)
        ]
        received = place.received(target)
        received.wait_for(COUNT // 5)
        assert len(received.poll()) < COUNT, "it is told to stop when all is done"

        began = time.monotonic()
        code = leaving.terminate()
        took = time.monotonic() - began

        assert (code, took < 10) == (0, True), took
        received.wait_for(COUNT, timeout=60)
        eventually(lambda: party.endpoint.timeouts.count() == 0, "all are closed")
        assert Counter(message.id for message in received.poll()) == Counter(sent)
        assert staying.terminate() == 0


@pytest.mark.slow
@on(REFERENCE)
def test_a_stop_with_5000_in_flight_is_prompt_and_its_claims_are_free(
    place: Place, fork_server: ForkServer
) -> None:
    Party(place).endpoint.install()
    target = place.queue(f"{place.name}-target")
    store = place.persistence().timeouts(place.name, SystemClock())
    assert isinstance(store, Insight)
    due = store.now()
    store.store_many([timeout(str(n), due, destination=target) for n in range(MANY)])
    received = place.received(target)

    with Child(fork_server, place, chunk=1_000) as leaving:
        eventually(lambda: store.in_flight().number >= 5_000, "5,000 are in flight", PATIENCE)
        began = time.monotonic()
        code = leaving.terminate()
        took = time.monotonic() - began
    pending = store.count(TimeoutFilter())

    assert (code, took < 10) == (0, True), took
    assert pending, "it was told to stop when all was done"
    received.wait_for(MANY - pending, timeout=PATIENCE)
    # No wait for the end of a claim: the rest is claimed anew at once.
    assert len(store.claim(store.now(), 1_000, "another").keys) == min(pending, 1_000)
    sent = Counter(message.id for message in received.poll())
    assert len(sent) == sent.total() == MANY - pending
